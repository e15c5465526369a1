"""Which calls OpenVINO takes: those that its frontend converts to the type and shape that the program records."""

from __future__ import annotations

from delegraph.backend import to_specs
from delegraph.exported import CORE_CALLS
from delegraph.partitioner import Asking, CapabilityPartitioner, ValueCheck, dequantized_parts, is_dequantized
from torch.fx import Node

from .frontend import NO_RULE, RULES, TYPES, Draft
from .runtime import PREFIX, properties_of

VALUES = ValueCheck("OpenVINO", TYPES)
"""Its CPU crashes at sizes that depend on values where they are 0, and has int32 and floats for all integers."""
ASKED = Asking(
    lambda program: Draft(program).convert(),
    lambda node, why: why == NO_RULE and node.target not in CORE_CALLS,
    lambda node: str(node.target) in RULES,
)
"""The frontend's answers: it takes a millisecond or more for a call."""


class OpenVINOPartitioner(CapabilityPartitioner):
    """``device``, ``precision`` and ``properties`` are described in ``plugin``."""

    def __init__(self, device: str = "CPU", precision: str = "f32", properties: str | None = None) -> None:
        settings = {"device": device, "precision": precision, "properties": properties or ""}
        properties_of(settings)  # a property that cannot be read is the user's mistake of now, not of the first run
        specs = to_specs(PREFIX, {name: text for name, text in settings.items() if text})
        super().__init__(ASKED.after(why_not), "OpenVINOBackend", specs)


def why_not(node: Node) -> str | None:
    """Why OpenVINO does not take this call, as far as that is known without its frontend."""
    if (reason := VALUES(node)) is not None:
        return reason
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    if name in ("group_norm", "native_group_norm"):
        return "OpenVINO's compiler crashes where it is multiplied by a tensor"
    if name in ("var", "std", "var_mean", "std_mean"):
        return "OpenVINO's frontend forgets the correction of a variance"
    if name == "repeat" and not node.args[1]:
        return "OpenVINO returns whatever is in memory for a number that is repeated by nothing"
    masked = "scaled_dot_product" in name and any(isinstance(a, Node) for a in (*node.args[3:], *node.kwargs.values()))
    if masked or name == "_safe_softmax":
        return "OpenVINO computes NaN where a mask hides a whole row"
    computed = [value for value in node.all_input_nodes[1:] if value.op == "call_function"]
    if computed and str(node.target) in RULES:
        return f"OpenVINO has fixed scales, and {computed[0].name} is computed"
    if name in ("eq", "ne", "lt", "le", "gt", "ge") and any(map(is_dequantized, node.all_input_nodes)):
        return "OpenVINO computes a dequantized 0 as a number that is nearly 0, which a comparison tells apart"
    parts = dequantized_parts(node)
    differ = parts and ("channel" in str(parts[0].target) or len({part.args[1:] for part in parts}) > 1)
    return "OpenVINO concatenates quantized tensors right if they have one scale and one zero point" if differ else None

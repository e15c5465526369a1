"""Which calls OpenVINO takes: those that its frontend converts to the type and shape
that the program records.
"""

from __future__ import annotations

from typing import Any

from delegraph.backend import to_specs
from delegraph.partitioner import CapabilityPartitioner, PartitionResult
from delegraph_engines import TrialCompilation
from delegraph_programs import bound_arguments
from delegraph_programs.interpolation_scales import why_factor_undecided
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from .core_calls import CORE_CALLS
from .frontend import NO_RULE, RULES, TYPES, Draft, ignores_product
from .indices import mark_indices
from .runtime import PREFIX, properties_of
from .value_check import ValueCheck, dequantized_parts, is_dequantized

VALUES = ValueCheck("OpenVINO", TYPES)
"""Its CPU crashes at sizes that depend on values where they are 0, and has int32 and
floats for all integers.
"""
ASKED = TrialCompilation(
    lambda program: Draft(program).convert(),
    lambda node, why: why == NO_RULE and node.target not in CORE_CALLS,
    lambda node: str(node.target) in RULES,
)
"""The frontend's answers: it takes a millisecond or more for a call."""
_WRONG = {
    "group_norm native_group_norm": (
        "OpenVINO's compiler crashes where it is multiplied by a tensor"
    ),
    "var std var_mean std_mean": (
        "OpenVINO's frontend forgets the correction of a variance"
    ),
    "_safe_softmax": "OpenVINO computes NaN where a mask hides a whole row",
    "erfinv erfc": "OpenVINO's formula for it has fewer right digits than float32",
    "logaddexp2 log_sigmoid_forward": (
        "OpenVINO's formula for it is infinite for large numbers"
    ),
    "remainder fmod floor_divide": (
        "OpenVINO divides, rounds and multiplies back: it loses digits, and is NaN for"
        " an infinite divisor"
    ),
    "atan2": "OpenVINO computes NaN of two infinities, and ignores the sign of zero",
}
WRONG = {name: why for names, why in _WRONG.items() for name in names.split()}
"""What OpenVINO computes otherwise than torch, whatever the arguments."""


class OpenVINOPartitioner(CapabilityPartitioner):
    """``device``, ``precision`` and ``properties`` are described in ``plugin``."""

    def __init__(
        self, device: str = "CPU", precision: str = "f32", properties: str = ""
    ) -> None:
        settings = {"device": device, "precision": precision, "properties": properties}
        # a property that cannot be read is the user's mistake of now, not of the first
        # run
        properties_of(settings)
        super().__init__(
            ASKED.after(why_not), "OpenVINOBackend", to_specs(PREFIX, settings)
        )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        mark_indices(exported_program)
        return super().partition(exported_program)


def why_not(node: Node) -> str | None:
    """Why OpenVINO does not take this call, as far as that is known without its
    frontend.
    """
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    if (reason := VALUES(node) or WRONG.get(name)) is not None:
        return reason
    if (reason := _why_empty(node)) is not None:
        return reason
    given = (
        bound_arguments(node) if getattr(node.target, "namespace", "") == "aten" else {}
    )
    if given.get("rounding_mode") == "floor":
        return (
            "OpenVINO rounds the quotient, and torch the exact one:"
            " rounding_mode='floor' may differ by 1"
        )
    if name in ("addmm", "baddbmm", "addmv", "addbmm", "addr"):
        for factor in ("beta", "alpha"):
            if given[factor] == 0 and not ignores_product(node):
                return (
                    f"OpenVINO multiplies by {factor}=0, which keeps NaN and"
                    " infinities; torch ignores the operand"
                )
    if (
        name.startswith("avg_pool")
        and given["ceil_mode"]
        and given["count_include_pad"]
        and any(given["padding"])
    ):
        return (
            "OpenVINO counts elements beyond the padding with ceil_mode=True,"
            " count_include_pad=True"
        )
    if name == "_cdist_forward" and node.args[2] != 2:
        return "OpenVINO takes powers of differences, and not of their sizes"
    if (
        reason := why_factor_undecided(node) or _why_not_resized(node, name)
    ) is not None:
        return reason
    if name == "repeat" and not node.args[1]:
        return (
            "OpenVINO returns whatever is in memory for a number that is repeated by"
            " nothing"
        )
    computed = [
        value for value in node.all_input_nodes[1:] if value.op == "call_function"
    ]
    if computed and str(node.target) in RULES:
        return f"OpenVINO has fixed scales, and {computed[0].name} is computed"
    if name in ("eq", "ne", "lt", "le", "gt", "ge") and any(
        map(is_dequantized, node.all_input_nodes)
    ):
        return (
            "OpenVINO computes a dequantized 0 as a number that is nearly 0, which a"
            " comparison tells apart"
        )
    parts = dequantized_parts(node)
    differ = parts and (
        "channel" in str(parts[0].target) or len({part.args[1:] for part in parts}) > 1
    )
    return (
        "OpenVINO concatenates quantized tensors right if they have one scale and one"
        " zero point"
        if differ
        else None
    )


def _why_empty(node: Node) -> str | None:
    """Return a reason if an operand or a result has no elements; None if all have some.

    Where a size of 0 is known, OpenVINO's compiler ends the process with SIGFPE for
    some operators, such as select. A dynamic size may be 0: its kernels look at sizes
    at run time.
    """
    for value in (*node.all_input_nodes, node):
        for val in pytree.tree_leaves(value.meta.get("val")):
            if not isinstance(val, Tensor):
                continue
            if any(type(size) is int and size == 0 for size in val.shape):
                shape = list(val.shape)
                return (
                    f"{value.name} has no elements (shape {shape}): OpenVINO's compiler"
                    " may crash"
                )
    return None


_BY_FACTOR = frozenset(
    {
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "upsample_bicubic2d",
    }
)
"""Interpolations that step by the scale factor also where an axis keeps its size."""
_BETWEEN_PIXELS = frozenset(
    {
        "upsample_linear1d",
        "upsample_bilinear2d",
        "upsample_trilinear3d",
        "upsample_bicubic2d",
    }
)
"""Interpolations that read between pixels."""


def _why_not_resized(node: Node, name: str) -> str | None:
    """Why OpenVINO resizes otherwise than eager does."""
    if name not in _BY_FACTOR | _BETWEEN_PIXELS:
        return None
    arguments = bound_arguments(node)
    corners = bool(arguments.get("align_corners"))
    image: Any = node.args[0]
    sizes = image.meta["val"].shape[2:]
    outs = node.meta["val"].shape[2:]
    scales = [value for key, value in arguments.items() if key.startswith("scales")]
    factors = arguments.get("scale_factors") or scales or [None] * len(sizes)
    for size, out, factor in zip(sizes, outs, factors, strict=True):
        is_known = isinstance(size, int) and isinstance(out, int)
        may_be_one = out == 1 != size if is_known else factor is None or factor < 1
        if name in _BETWEEN_PIXELS and not corners and may_be_one:
            return (
                "OpenVINO reads a single output pixel at the corner of the input, and"
                " eager at its centre"
            )
        if (
            name in _BETWEEN_PIXELS
            and not corners
            and not is_known
            and factor
            and not float(factor).is_integer()
        ):
            return (
                "of dynamic sizes, OpenVINO resizes by their ratio, and eager by the"
                f" scale factor {factor}"
            )
        may_stay = size == out if is_known else factor is not None and 1 < factor < 1.5
        if (
            name in _BY_FACTOR
            and not corners
            and factor not in (None, 1.0)
            and may_stay
        ):
            return (
                "OpenVINO copies an axis that keeps its size, and eager steps by the"
                f" scale factor {factor}"
            )
    return None

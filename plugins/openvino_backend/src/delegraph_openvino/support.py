"""Decides which calls OpenVINO supports.

These are the calls that its frontend converts to the recorded type and shape.
"""

from __future__ import annotations

from typing import Any

from delegraph.partitioner import CapabilityPartitioner, PartitionResult
from delegraph_engines import TrialCompilation, mark_indices, to_specs
from delegraph_programs import bound_arguments
from delegraph_programs.interpolation_scale_factors import why_factor_undecided
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from .core_calls import CORE_CALLS
from .frontend import NO_RULE, RULES, TYPES, Draft, ignores_product
from .runtime import PREFIX, properties_of
from .value_check import ValueCheck, dequantized_parts, is_dequantized

VALUES = ValueCheck("OpenVINO", TYPES)
"""The check of types and sizes.

OpenVINO's CPU crashes at data-dependent sizes of 0. It computes all integers as int32
or floats.
"""
TRIALS = TrialCompilation(
    compile=lambda program: Draft(program).convert(),
    for_all=lambda node, why: why == NO_RULE and node.target not in CORE_CALLS,
    is_sure=lambda node: str(node.target) in RULES,
)
"""Trial conversions by OpenVINO's frontend; one takes a millisecond or more."""
_WRONG = {
    "group_norm native_group_norm": (
        "OpenVINO's compiler crashes if the result is multiplied by a tensor"
    ),
    "var std var_mean std_mean": (
        "OpenVINO's frontend ignores the correction of a variance"
    ),
    "_safe_softmax": "OpenVINO computes NaN for a row that is completely masked",
    "erfinv erfc": "OpenVINO's formula for it is less precise than float32",
    "logaddexp2 log_sigmoid_forward": (
        "OpenVINO's formula for it is infinite for large numbers"
    ),
    "remainder fmod floor_divide": (
        "OpenVINO divides, rounds and multiplies back: this loses precision, and gives"
        " NaN for an infinite divisor"
    ),
    "atan2": "OpenVINO computes NaN of two infinities, and ignores the sign of zero",
}
WRONG = {name: why for names, why in _WRONG.items() for name in names.split()}
"""Operators that OpenVINO computes otherwise than torch, for all arguments."""


class OpenVINOPartitioner(CapabilityPartitioner):
    """Gives OpenVINO the calls that it supports.

    ``device``, ``precision`` and ``properties`` are described in ``plugin``.
    """

    def __init__(
        self, device: str = "CPU", precision: str = "f32", properties: str = ""
    ) -> None:
        settings = {"device": device, "precision": precision, "properties": properties}
        # report an invalid property now, and not at the first run
        properties_of(settings)
        super().__init__(
            TRIALS.after(why_not), "OpenVINOBackend", to_specs(PREFIX, settings)
        )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        mark_indices(exported_program)
        return super().partition(exported_program)


def why_not(node: Node) -> str | None:
    """Return why OpenVINO cannot run this call, without a trial conversion, or None."""
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    return (
        VALUES(node)
        or WRONG.get(name)
        or _why_empty(node)
        or _why_not_arguments(node, name)
        or why_factor_undecided(node)
        or _why_not_resized(node, name)
        or _why_not_quantized(node, name)
    )


def _why_not_arguments(node: Node, name: str) -> str | None:
    """Return why OpenVINO is wrong for the arguments of a call, or None."""
    if getattr(node.target, "namespace", "") != "aten":
        return None
    given = bound_arguments(node)
    if given.get("rounding_mode") == "floor":
        return (
            "OpenVINO takes the floor of a rounded quotient:"
            " rounding_mode='floor' may differ by 1"
        )
    if name in ("addmm", "baddbmm", "addmv", "addbmm", "addr"):
        for factor in ("beta", "alpha"):
            if given[factor] == 0 and not ignores_product(node):
                return (
                    f"OpenVINO multiplies by {factor}=0, which keeps NaN and"
                    " infinities; torch ignores the operand"
                )
    if name.startswith("avg_pool") and given["ceil_mode"]:
        if given["count_include_pad"] and any(given["padding"]):
            return (
                "with ceil_mode=True and count_include_pad=True, OpenVINO counts"
                " elements beyond the padding, and eager PyTorch does not"
            )
    if name == "_cdist_forward" and node.args[2] != 2:
        return "OpenVINO raises differences to a power without taking their absolute values first"
    if name == "repeat" and not node.args[1]:
        return "OpenVINO returns uninitialized memory for repeat() with no sizes"
    return None


def _why_not_quantized(node: Node, name: str) -> str | None:
    """Return why OpenVINO is wrong for the quantized operands of a call, or None."""
    if str(node.target) in RULES:
        for value in node.all_input_nodes[1:]:
            if value.op == "call_function":
                return f"OpenVINO needs constant scales, and {value.name} is computed"
    is_comparison = name in ("eq", "ne", "lt", "le", "gt", "ge")
    if is_comparison and any(map(is_dequantized, node.all_input_nodes)):
        return (
            "in OpenVINO, a dequantized 0 may differ a little from 0, which changes"
            " comparisons"
        )
    parts = dequantized_parts(node)
    if not parts:
        return None
    by_channel = "channel" in str(parts[0].target)
    if by_channel or len({part.args[1:] for part in parts}) > 1:
        return (
            "OpenVINO concatenates quantized tensors correctly only if they have the"
            " same scale and zero point"
        )
    return None


def _why_empty(node: Node) -> str | None:
    """Return a reason if an operand or a result has no elements.

    For a known size of 0, OpenVINO's compiler ends the process with SIGFPE for some
    operators, such as select. A dynamic size may be 0: its kernels read sizes at run
    time.
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
"""Interpolations whose step in eager is 1 / scale factor, also if a size stays equal.

Example: a factor of 1.2 keeps the size 4, and eager still steps by 1 / 1.2.
"""
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
    """Return why OpenVINO resizes otherwise than eager does, or None."""
    if name not in _BY_FACTOR | _BETWEEN_PIXELS:
        return None
    arguments = bound_arguments(node)
    if arguments.get("align_corners"):
        return None
    image: Any = node.args[0]
    sizes = image.meta["val"].shape[2:]  # of the axes after batch and channels
    outs = node.meta["val"].shape[2:]
    # overloads have one list, an argument for each axis, or no factors
    scales = [value for key, value in arguments.items() if key.startswith("scales")]
    factors = arguments.get("scale_factors") or scales or [None] * len(sizes)
    for size, out, factor in zip(sizes, outs, factors, strict=True):
        is_known = isinstance(size, int) and isinstance(out, int)
        if is_known:
            may_become_one_pixel = out == 1 and size != 1
            may_keep_size = size == out
        else:
            may_become_one_pixel = factor is None or factor < 1
            may_keep_size = factor is not None and 1 < factor < 1.5
        if name in _BETWEEN_PIXELS and may_become_one_pixel:
            return (
                "OpenVINO reads a single output pixel at the corner of the input, and"
                " eager at its centre"
            )
        has_fraction = factor and not float(factor).is_integer()
        if name in _BETWEEN_PIXELS and not is_known and has_fraction:
            return (
                "for dynamic sizes, OpenVINO resizes by their ratio, and eager by the"
                f" scale factor {factor}"
            )
        if name in _BY_FACTOR and may_keep_size and factor not in (None, 1.0):
            return (
                "OpenVINO copies an axis that keeps its size, and eager steps by the"
                f" scale factor {factor}"
            )
    return None

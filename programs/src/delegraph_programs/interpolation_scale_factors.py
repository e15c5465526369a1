"""Corrects scale factors of interpolations that eager ignores.

``interpolate(x, scale_factor=1.1)`` of 4 elements has 4 elements. Some of eager's
kernels ("copying" kernels) copy an axis that keeps its size, and repeat each element of
an axis that doubles its size. Other kernels ("stepping" kernels) find each source
element by the factor. The choice of the kernel depends on the operator, the sizes and
the memory layout. Backends cannot know it, so the factor in the graph becomes 1.0 or
2.0 where eager ignores it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx import Graph, Node
from torch.utils._sympy.value_ranges import bound_sympy

from .operator_schema import bound_arguments
from .symbolic_sizes import are_static

_SMALL = 128
"""Up to this sum of output height and width, ``upsample_nearest2d`` always copies."""
_FEW = 3
"""With at most this many channels, eager's choice ignores the memory layout."""
_UNBOUNDED = 1 << 31
"""Replaces the bound of a size without an upper bound."""
_NEAREST = frozenset({"upsample_nearest2d", "upsample_nearest3d"})
"""Operators with copying and with stepping kernels."""
_COPYING = frozenset(
    {
        "upsample_linear1d",
        "upsample_bilinear2d",
        "upsample_trilinear3d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
    }
)
"""Operators that copy an axis of unchanged size in all kernels, and repeat none."""
_CUBIC = "upsample_bicubic2d"
"""Its kernel for uint8 copies an axis of unchanged size. Its kernel for floats steps."""


class ResizedAxis(NamedTuple):
    """One axis of an interpolation: its sizes, and its scale factor if it has one."""

    size: Any
    out: Any
    factor: float | None


def use_factors_of_eager(graph: Graph) -> None:
    """Set the scale factors of interpolations to those that eager uses, if known."""
    for node in graph.nodes:
        name = _name_of(node)
        if name is None:
            continue
        axes = _axes_of(node)
        factors = [_factor_of(node, name, axis) for axis in axes]
        if factors != [axis.factor for axis in axes]:
            _set_factors(node, factors)


def why_factor_undecided(node: Node) -> str | None:
    """Return why eager's scale factor depends on run-time sizes; None if it does not."""
    name = _name_of(node)
    if name is None:
        return None
    copies = _is_copying(node, name)
    for axis in _axes_of(node):
        if copies is False or not _may_differ(axis, repeats=name in _NEAREST):
            continue  # eager uses the factor at all sizes
        if copies is None or not _is_fixed(axis):
            return (
                f"at some sizes, eager ignores the scale factor {axis.factor}, and"
                " sizes are known at run time only; interpolate with"
                " recompute_scale_factor=True uses the sizes everywhere"
            )
    return None


def _name_of(node: Node) -> str | None:
    """Return the name of an interpolation that may ignore factors in eager, or None."""
    packet = getattr(node.target, "overloadpacket", None)
    name: str = getattr(packet, "__name__", "")
    if name == _CUBIC and node.meta["val"].dtype is torch.uint8:
        return name
    return name if name in _NEAREST | _COPYING else None


def _axes_of(node: Node) -> list[ResizedAxis]:
    """Return the spatial axes of an interpolation.

    With aligned corners, factors have no effect and are None.
    """
    image: Any = node.args[0]
    sizes = image.meta["val"].shape[2:]
    outs = node.meta["val"].shape[2:]
    arguments = bound_arguments(node)
    if arguments.get("align_corners"):
        factors = [None] * len(sizes)
    elif "scale_factors" in arguments:
        factors = arguments["scale_factors"] or [None] * len(sizes)
    else:
        factors = [arguments[name] for name in _factor_arguments(arguments)]
    return [ResizedAxis(*row) for row in zip(sizes, outs, factors, strict=True)]


def _factor_arguments(arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments with the factor of one axis, in axis order.

    They are ``scales``, or ``scales_d``, ``scales_h`` and ``scales_w``.
    """
    return [name for name in arguments if name.startswith("scales")]


def _set_factors(node: Node, factors: list[float | None]) -> None:
    """Replace the scale factors of an interpolation by ``factors``, one for each axis.

    All arguments of the call become positional.
    """
    arguments = bound_arguments(node)
    if "scale_factors" in arguments:
        arguments["scale_factors"] = factors
    else:
        names = _factor_arguments(arguments)
        arguments.update(zip(names, factors, strict=True))
    node.args = tuple(arguments.values())
    node.kwargs = {}


def _is_fixed(axis: ResizedAxis) -> bool:
    """Return whether both sizes are known."""
    return are_static((axis.size, axis.out))


def _factor_of(node: Node, name: str, axis: ResizedAxis) -> float | None:
    """Return eager's factor for ``axis``, or the given factor if eager's is unknown."""
    if axis.factor is None or not _is_fixed(axis) or not _is_copying(node, name):
        return axis.factor
    if axis.out == axis.size:
        return 1.0
    if axis.out == 2 * axis.size and name in _NEAREST:
        return 2.0
    return axis.factor


def _is_copying(node: Node, name: str) -> bool | None:
    """Return whether eager runs a copying kernel; None if run-time sizes decide it."""
    if name not in _NEAREST:
        return True
    argument: Any = node.args[0]
    image = argument.meta["val"]
    outs = [_range_of(out) for out in node.meta["val"].shape[2:]]
    is_image = name == "upsample_nearest2d"
    if is_image and sum(high for _, high in outs) <= _SMALL:
        return True
    # Other kernels copy if there are several channels, and they lie last in memory.
    channels = image.shape[1]
    few = isinstance(channels, int) and channels <= _FEW
    if not few:
        if not are_static((*image.shape, *image.stride())):
            return None
        layout = torch.channels_last if is_image else torch.channels_last_3d
        if image.is_contiguous(memory_format=layout):
            return True
    may_be_small = is_image and sum(low for low, _ in outs) <= _SMALL
    return None if may_be_small else False


def _range_of(size: Any) -> tuple[int, int]:
    """Return the least and the largest value that a size may have."""
    if isinstance(size, int):
        return size, size
    ranges = size.node.shape_env.var_to_range
    expression = size.node.expr
    bounds = bound_sympy(
        expression, {symbol: ranges[symbol] for symbol in expression.free_symbols}
    )
    return max(_limited(bounds.lower), 0), _limited(bounds.upper)


def _limited(bound: Any) -> int:
    """Return torch's bound of a size as an int, at most ``_UNBOUNDED``."""
    return int(bound) if bound < _UNBOUNDED else _UNBOUNDED


def _may_differ(axis: ResizedAxis, repeats: bool) -> bool:
    """Return whether an axis may keep its size under a factor other than 1.

    ``repeats``: also whether it may double its size under a factor other than 2.
    Sizes below 2 are left out: a single element is copied in any case.
    """
    if axis.factor is None:
        return False
    least, most = _range_of(axis.size)
    for whole in (1, 2) if repeats else (1,):
        rest = axis.factor - whole
        # kernels step by 1 / factor in float32
        if rest > 0 and np.float32(1 / axis.factor) != np.float32(1 / whole):
            # int(size * factor) == whole * size needs size * rest < 1
            largest = min(most, math.ceil(1 / rest))
            sizes = range(max(least, 2), largest + 1)
            if any(int(size * axis.factor) == whole * size for size in sizes):
                return True
    return False

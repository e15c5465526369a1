"""Removes the TRANSPOSE before a linear layer, by permuting the weight."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any, NamedTuple

from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Operator, Value
from ..ir.operators import RESHAPE, TRANSPOSE
from ..ir.types import Type
from . import view_axes as ax
from .pending_views import Views
from .rewriter import merge_sources, rebuilt
from .view_axes import Shape


class _Window(NamedTuple):
    """How a layer reads ``base``: reshaped to ``image``, with a kernel of height H.

    The kernel sums H and C of [N,H,W,C]. ``summed`` are the axes of ``base`` that the
    layer sums, in the order in which its weight has them.
    """

    base: Value
    image: Shape
    summed: list[int]
    source: Any


def read_as_it_lies(views: Views, layer: Operator) -> None:
    """Read the operand of the TRANSPOSE before a linear layer.

    This is the rule of ``sink_transposes`` for CONV2D.

    Heads of an attention become the height of the kernel:
        before: x [N,H,L,E] - TRANSPOSE (0,2,1,3) - RESHAPE [N,1,L,H*E] - CONV2D (weight
        [O,1,1,H*E]) after:  x - CONV2D (weight [O,H,1,E])
    For a feature map that is flattened channels first, or with shuffled channels,
    the weight is permuted:
        before: x [N,H,W,C] - TRANSPOSE (0,3,1,2) - RESHAPE [1,1,N,C*H*W] - CONV2D
        (weight [O,1,1,C*H*W]) after:  x - RESHAPE [1,1,N,H*W*C] - CONV2D (weight
        [O,1,1,H*W*C])
    This is done only if neither the transposed operand nor the weight has another use.
    """
    x, weight, *_ = layer.inputs
    result = layer.outputs[0]
    new = None
    if (
        weight.constant is not None
        and views.uses[x] == views.uses[weight] == 1
        and _is_linear(layer)
    ):
        new = _windowed(views, layer)
    if new is None or not (
        new.outputs[0].shape == result.shape or views.movable(result.dtype)
    ):
        return views.keep(layer)
    views.operators.append(new)
    return views.replace(result, new)


def _windowed(views: Views, layer: Operator) -> Operator | None:
    """Return ``layer`` reading the operand of the TRANSPOSE before it.

    None if that is not possible. Its result may have another shape, with the same
    elements.
    """
    x, weight, *others = [views.value(v) for v in layer.inputs]
    window = _window(x)
    if window is None:
        return None
    base, image, summed, source = window
    source = merge_sources(source, layer.source)
    outputs = weight.shape[0]
    inputs = weight.shape[3]
    kernel = views.reshape(
        weight, (outputs, *[base.shape[axis] for axis in summed]), source
    )
    kernel = views.transpose(
        kernel, (0, *[1 + summed.index(axis) for axis in sorted(summed)]), source
    )
    kernel = views.reshape(kernel, (outputs, inputs // image[3], 1, image[3]), source)
    new = rebuilt(
        layer, (Value(Type(image, base.dtype)), kernel, *others), source=source
    )
    if views.spec.why_not(new) is not None:
        return None
    new.inputs = (views.reshape(base, image, source), *new.inputs[1:])
    return new


def _is_linear(layer: Operator) -> bool:
    """Return whether a CONV2D has a kernel of 1x1, a stride of 1 and no padding."""
    is_plain = set(layer.pad) == {0} and set(layer.stride) == {1}  # type: ignore[attr-defined]
    return is_plain and layer.inputs[1].shape[1:3] == (1, 1)


def _window(x: Value) -> _Window | None:
    """Return how a layer can skip the TRANSPOSE before it, or None."""
    reshape = x.producer
    transpose = reshape.inputs[0].producer if isinstance(reshape, RESHAPE) else None
    if reshape is None or not isinstance(transpose, TRANSPOSE):
        return None
    base = transpose.inputs[0]
    perms = transpose.perms
    old, new = next(
        piece
        for piece in ax.pieces(transpose.outputs[0].shape, x.shape)
        if x.rank - 1 in piece[1]
    )
    summed = [perms[axis] for axis in old]
    kept = [axis for axis in perms if axis not in summed and base.shape[axis] != 1]
    if (
        len(new) > 1
        or not ax.ascends(kept)
        or any(is_dynamic(base.shape[axis]) for axis in summed)
    ):
        return None
    image = _image(base.shape, summed, x.shape)
    return (
        None
        if image is None
        else _Window(
            base, image, summed, merge_sources(transpose.source, reshape.source)
        )
    )


def _image(shape: Shape, summed: list[int], joined: Shape) -> Shape | None:
    """Return ``shape``, with axes joined, as [N,H,W,C]; H and C are summed.

    None if summed and other axes alternate in another way. If only the last axes are
    summed, ``joined``, the shape of the layer's present operand.
    """
    wide = [axis for axis in range(len(shape)) if shape[axis] != 1]
    runs = [
        (is_summed, list(run))
        for is_summed, run in groupby(wide, lambda axis: axis in summed)
    ]
    if not runs or not runs[-1][0] or len(runs) > 4:
        return None
    if len(runs) <= 2:
        return joined
    sizes = [math.prod([shape[axis] for axis in run]) for _, run in runs]
    return (*(1,) * (4 - len(sizes)), *sizes)

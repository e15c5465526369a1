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


class _Reading(NamedTuple):
    """How a layer reads ``base``, the operand of the TRANSPOSE before it.

    ``base`` is reshaped to ``image`` [N,H,W,C], of which a kernel [O,H,1,C] sums H and
    C. ``summed`` are the axes of ``base`` that the layer sums, in the order in which
    its weight has them.
    """

    base: Value
    image: Shape
    summed: list[int]
    source: Any


def read_untransposed(views: Views, layer: Operator) -> None:
    """Let a linear layer read the operand of the TRANSPOSE before it.

    This is the rule of ``sink_transposes`` for CONV2D.

    Heads of an attention become the height of the kernel:
        before: x [N,H,L,E] - TRANSPOSE (0,2,1,3) - RESHAPE [N,1,L,H*E]
                - CONV2D (weight [O,1,1,H*E])
        after:  x - CONV2D (weight [O,H,1,E])
    For a feature map that is flattened channels first, or with shuffled channels,
    the weight is permuted:
        before: x [N,H,W,C] - TRANSPOSE (0,3,1,2) - RESHAPE [1,1,N,C*H*W]
                - CONV2D (weight [O,1,1,C*H*W])
        after:  x - RESHAPE [1,1,N,H*W*C] - CONV2D (weight [O,1,1,H*W*C])
    This is done only if neither the transposed operand nor the weight has another use.
    """
    x, weight, *_ = layer.inputs
    result = layer.outputs[0]
    if weight.constant is None or not _is_linear(layer):
        return views.keep(layer)
    if views.uses[x] != 1 or views.uses[weight] != 1:
        return views.keep(layer)
    new = _layer_on_base(views, layer)
    if new is None:
        return views.keep(layer)
    # a result of another shape takes a RESHAPE
    if new.outputs[0].shape != result.shape and not views.can_transpose(result.dtype):
        return views.keep(layer)
    views.operators.append(new)
    return views.replace(result, new)


def _layer_on_base(views: Views, layer: Operator) -> Operator | None:
    """Return a copy of ``layer`` that reads the operand of the TRANSPOSE before it.

    None if that is not possible. Its result may have another shape, with the same
    elements.
    """
    x, weight, *others = [views.value(v) for v in layer.inputs]
    reading = _reading(x)
    if reading is None:
        return None
    base, image, summed, source = reading
    source = merge_sources(source, layer.source)
    outputs = weight.shape[0]
    inputs = weight.shape[3]
    channels = image[3]
    # the weight gets one axis for each summed axis, in the order of the base
    shape_by_axis = (outputs, *[base.shape[axis] for axis in summed])
    perms = (0, *[1 + summed.index(axis) for axis in sorted(summed)])
    kernel = views.reshape(weight, shape_by_axis, source)
    kernel = views.transpose(kernel, perms, source)
    kernel_shape = (outputs, inputs // channels, 1, channels)
    kernel = views.reshape(kernel, kernel_shape, source)
    # the base is reshaped only if the target supports the layer
    stand_in = Value(Type(image, base.dtype))
    new = rebuilt(layer, (stand_in, kernel, *others), source=source)
    if views.spec.why_not(new) is not None:
        return None
    new.inputs = (views.reshape(base, image, source), *new.inputs[1:])
    return new


def _is_linear(layer: Operator) -> bool:
    """Return whether a CONV2D has a kernel of 1x1, a stride of 1 and no padding."""
    attributes = layer.attribute_values()
    if any(attributes["pad"]) or set(attributes["stride"]) != {1}:
        return False
    weight = layer.inputs[1]
    return weight.shape[1:3] == (1, 1)


def _reading(x: Value) -> _Reading | None:
    """Return how a layer can skip the TRANSPOSE before its operand x, or None."""
    reshape = x.producer
    if not isinstance(reshape, RESHAPE):
        return None
    transpose = reshape.inputs[0].producer
    if not isinstance(transpose, TRANSPOSE):
        return None
    base = transpose.inputs[0]
    perms = transpose.perms
    # the piece of the RESHAPE that makes the channels
    pieces = ax.pieces(transpose.outputs[0].shape, x.shape)
    old, new = next(piece for piece in pieces if x.rank - 1 in piece.new)
    summed = [perms[axis] for axis in old]
    kept = [axis for axis in perms if axis not in summed and base.shape[axis] != 1]
    if len(new) > 1 or kept != sorted(kept):
        return None
    if any(is_dynamic(base.shape[axis]) for axis in summed):
        return None
    image = _image_shape(base.shape, summed, x.shape)
    if image is None:
        return None
    source = merge_sources(transpose.source, reshape.source)
    return _Reading(base, image, summed, source)


def _image_shape(shape: Shape, summed: list[int], present: Shape) -> Shape | None:
    """Return ``shape``, with axes joined, as [N,H,W,C]; H and C are summed.

    For example, [2,3,5,7,4] with the ``summed`` axes 1, 2, 4 becomes [2,15,7,4]. None
    if there are more alternations of summed and other axes, or if the last axis is not
    summed. If only the last axes are summed, returns ``present``, the shape of the
    layer's present operand.
    """
    wide = [axis for axis, size in enumerate(shape) if size != 1]
    if not wide or wide[-1] not in summed:
        return None
    # one size for each run of axes that are summed, or are not
    sizes: list[int] = []
    for _, run in groupby(wide, summed.__contains__):
        sizes.append(math.prod([shape[axis] for axis in run]))
    if len(sizes) > 4:
        return None
    if len(sizes) <= 2:
        return present
    leading = (1,) * (4 - len(sizes))
    return (*leading, *sizes)

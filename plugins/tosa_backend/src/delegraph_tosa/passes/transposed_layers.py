"""Linear layers whose operand is transposed: they read it as it was before, with a permuted weight."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any, NamedTuple

from ..ir.graph import Operator, Value
from ..ir.operators import RESHAPE, TRANSPOSE
from ..ir.sizes import is_dynamic
from ..ir.types import Type
from . import axes as ax
from .axes import Shape
from .rewriter import both, rebuilt
from .views import Views


class _Window(NamedTuple):
    """How a layer reads ``base``: as ``image`` [N,H,W,C], of which it sums C and, as the height of its kernel, H.

    ``summed`` are the axes of the base that it sums, in the order of its weight.
    """

    base: Value
    image: Shape
    summed: list[int]
    source: Any


def read_as_it_lies(views: Views, layer: Operator) -> None:
    """Let a CONV2D read what was transposed for it as it lay before, if nothing else uses that or the weight.

    Heads of an attention become the height of the kernel:
        before: x [N,H,L,E] - TRANSPOSE (0,2,1,3) - RESHAPE [N,1,L,H*E] - CONV2D (weight [O,1,1,H*E])
        after:  x - CONV2D (weight [O,H,1,E])
    For a feature map that is flattened channels first, or whose channels are shuffled, the weight is permuted:
        before: x [N,H,W,C] - TRANSPOSE (0,3,1,2) - RESHAPE [1,1,N,C*H*W] - CONV2D (weight [O,1,1,C*H*W])
        after:  x - RESHAPE [1,1,N,H*W*C] - CONV2D (weight [O,1,1,H*W*C])
    """
    (x, weight, *_), result, new = layer.inputs, layer.outputs[0], None
    if weight.constant is not None and views.uses[x] == views.uses[weight] == 1 and _is_linear(layer):
        new = _windowed(views, layer)
    if new is None or not (new.outputs[0].shape == result.shape or views.movable(result.dtype)):
        return views.keep(layer)
    views.operators.append(new)
    return views.replace(result, new)


def _windowed(views: Views, layer: Operator) -> Operator | None:
    """The layer in its new form, its result perhaps in another shape."""
    x, weight, *others = [views.value(v) for v in layer.inputs]
    window = _window(x)
    if window is None:
        return None
    base, image, summed, source = window
    source = both(source, layer.source)
    outputs, inputs = weight.shape[0], weight.shape[3]
    kernel = views.reshape(weight, (outputs, *[base.shape[axis] for axis in summed]), source)
    kernel = views.transpose(kernel, (0, *[1 + summed.index(axis) for axis in sorted(summed)]), source)
    kernel = views.reshape(kernel, (outputs, inputs // image[3], 1, image[3]), source)
    new = rebuilt(layer, (Value(Type(image, base.dtype)), kernel, *others), source=source)
    if views.spec.why_not(new) is not None:
        return None
    new.inputs = (views.reshape(base, image, source), *new.inputs[1:])
    return new


def _is_linear(layer: Operator) -> bool:
    is_plain = set(layer.pad) == {0} and set(layer.stride) == {1}  # type: ignore[attr-defined]
    return is_plain and layer.inputs[1].shape[1:3] == (1, 1)


def _window(x: Value) -> _Window | None:
    """How a layer can read what was transposed for its operand ``x``."""
    reshape = x.producer
    transpose = reshape.inputs[0].producer if isinstance(reshape, RESHAPE) else None
    if reshape is None or not isinstance(transpose, TRANSPOSE):
        return None
    base, perms = transpose.inputs[0], transpose.perms
    old, new = next(piece for piece in ax.pieces(transpose.outputs[0].shape, x.shape) if x.rank - 1 in piece[1])
    summed = [perms[axis] for axis in old]
    kept = [axis for axis in perms if axis not in summed and base.shape[axis] != 1]
    if len(new) > 1 or not ax.ascends(kept) or any(is_dynamic(base.shape[axis]) for axis in summed):
        return None
    image = _image(base.shape, summed, x.shape)
    return None if image is None else _Window(base, image, summed, both(transpose.source, reshape.source))


def _image(shape: Shape, summed: list[int], joined: Shape) -> Shape | None:
    """``shape`` as [N,H,W,C], of which C and H are summed and N and W are not; None if it cannot be seen so.

    If only the last axes are summed it is ``joined``, the image as it is now.
    """
    wide = [axis for axis in range(len(shape)) if shape[axis] != 1]
    runs = [(is_summed, list(run)) for is_summed, run in groupby(wide, lambda axis: axis in summed)]
    if not runs or not runs[-1][0] or len(runs) > 4:
        return None
    if len(runs) <= 2:
        return joined
    sizes = [math.prod([shape[axis] for axis in run]) for _, run in runs]
    return (*(1,) * (4 - len(sizes)), *sizes)

"""Folds a PAD with zeros into the convolution that reads it."""

from __future__ import annotations

from ..ir.graph import Graph, Literal, Operator, Value, shape_of
from ..ir.operators import CONV2D, CONV3D, DEPTHWISE_CONV2D, PAD
from ..spec import TosaSpec
from .rewriter import Rewrite, merge_sources, sweep, with_operands

WINDOWED = frozenset({CONV2D, CONV3D, DEPTHWISE_CONV2D})


def fold_pads(graph: Graph, spec: TosaSpec) -> Graph:
    """Fold a PAD of height and width into the ``pad`` of the convolution after it.

    The PAD must pad with the convolution's zero point.

    before: PAD (0,0, 1,2, 1,2, 0,0) - CONV2D (pad 0,0,0,0)
    after:  CONV2D (pad 1,2,1,2)

    The PAD remains; ``drop_dead`` removes it if it has no other use.
    """

    def change(operator: Operator, _: Rewrite) -> Operator:
        return _padded(operator, spec)

    return sweep(graph, change)


def _padded(operator: Operator, spec: TosaSpec) -> Operator:
    """Return a convolution with the padding of the PAD before it.

    Returns ``operator`` itself if it is no convolution after a suitable PAD, or if the
    target does not support that much padding.
    """
    if type(operator) not in WINDOWED:
        return operator
    padded, *others = operator.inputs
    pad = padded.producer
    if not isinstance(pad, PAD):
        return operator
    x, padding, number = pad.inputs
    zero_point = operator.inputs[3]
    if _number(number) is None or _number(number) != _number(zero_point):
        return operator
    # (before, after) of the batch, of each axis of the image, and of the channels
    entries = shape_of(padding)
    if entries[:2] != (0, 0) or entries[-2:] != (0, 0):
        return operator
    own_padding = operator.attribute_values()["pad"]
    sums = [a + b for a, b in zip(entries[2:-2], own_padding, strict=True)]
    source = merge_sources(pad.source, operator.source)
    new = with_operands(operator, (x, *others), source, pad=tuple(sums))
    if spec.why_not(new) is not None:
        return operator
    return new


def _number(value: Value) -> float | None:
    """Return the element of a constant of one element.

    None if ``value`` is no constant in memory.
    """
    if not isinstance(value.constant, Literal):
        return None
    number: float = value.constant.array.item()
    return number

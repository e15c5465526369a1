"""Folds a PAD with zeros into the convolution that reads it."""

from __future__ import annotations

from ..ir.graph import Graph, Literal, Operator, Value, shape_of
from ..ir.operators import CONV2D, CONV3D, DEPTHWISE_CONV2D, PAD
from ..ir.types import Type
from ..spec import TosaSpec
from .rewriter import merge_sources, rebuilt, sweep

WINDOWED = frozenset({CONV2D, CONV3D, DEPTHWISE_CONV2D})


def fold_pads(graph: Graph, spec: TosaSpec) -> Graph:
    """Fold a PAD of height and width into the ``pad`` of a convolution.

    It must pad with the convolution's zero point. before: PAD (0,0, 1,2, 1,2, 0,0) -
    CONV2D (pad 0,0,0,0) after: CONV2D (pad 1,2,1,2)

    The PAD remains; ``drop_dead`` removes it if it has no other use.
    """
    return sweep(
        graph,
        lambda operator, _: (
            _padded(operator, spec) if type(operator) in WINDOWED else operator
        ),
    )


def _padded(convolution: Operator, spec: TosaSpec) -> Operator:
    """Return ``convolution`` with the padding of the PAD before it.

    Itself if there is no PAD, or one of other axes or another number, or if the target
    does not take so much padding.
    """
    pad = convolution.inputs[0].producer
    if (
        not isinstance(pad, PAD)
        or _number(pad.inputs[2]) is None
        or _number(pad.inputs[2]) != _number(convolution.inputs[3])
    ):
        return convolution
    first, *inner = _pairs(shape_of(pad.inputs[1]))
    if first != (0, 0) or inner.pop() != (0, 0):
        return convolution
    present = _pairs(convolution.pad)  # type: ignore[attr-defined]
    sums = tuple(
        [
            a + b
            for pair, other in zip(inner, present, strict=True)
            for a, b in zip(pair, other, strict=True)
        ]
    )
    inputs = (pad.inputs[0], *convolution.inputs[1:])
    types: list[Type] = [v.type for v in convolution.outputs]
    new = rebuilt(
        convolution,
        inputs,
        types,
        pad=sums,
        source=merge_sources(pad.source, convolution.source),
    )
    new.outputs[0].name = convolution.outputs[0].name
    return new if spec.why_not(new) is None else convolution


def _pairs(entries: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return (before, after) for each axis, from a flat list."""
    return list(zip(entries[::2], entries[1::2], strict=True))


def _number(value: Value) -> float | None:
    """Return the element of a constant of one element.

    None if ``value`` is no constant in memory.
    """
    return value.constant.array.item() if isinstance(value.constant, Literal) else None

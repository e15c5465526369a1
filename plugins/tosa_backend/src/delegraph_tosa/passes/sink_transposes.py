"""Moves TRANSPOSEs behind operators that work in any layout.

They cancel there, or stop where a layout is needed.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from ..ir import operators as tosa
from ..ir.graph import Graph, Operator, shape_of
from ..spec import TosaSpec
from . import view_axes as ax
from .layout_rules import LAYOUT, Rule
from .parallel_heads import join_heads, parallel_heads
from .pending_views import View, Views
from .repeated_operands import multiply_once
from .transposed_layers import read_as_it_lies
from .view_axes import Shape


def sink_transposes(graph: Graph, spec: TosaSpec) -> Graph:
    """Move TRANSPOSE, and RESHAPE that adds or drops axes of size 1, to the results.

    before: TRANSPOSE (0,2,3,1) - CONV2D - TRANSPOSE (0,3,1,2) - CLAMP - TRANSPOSE
    (0,2,3,1) - CONV2D - TRANSPOSE after:  TRANSPOSE (0,2,3,1) - CONV2D - CLAMP - CONV2D
    - TRANSPOSE (0,3,1,2)

    In one sweep, the result of a TRANSPOSE is noted as a view of its operand
    (``views``). Elementwise operators, reductions, slices, concatenations and the like
    are applied to the base of the view, and their result is a view too. For an operator
    that needs a layout, the view is computed as a value, once for all uses. Linear
    layers and products can often do without that (``parallel_heads``,
    ``transposed_layers``, ``repeated_operands``). Constants get the layout of a view by
    folded TRANSPOSE and RESHAPE. Values of element types for which the target has no
    TRANSPOSE stay as they are.
    """
    uses = Counter(
        [v for operator in graph.operators for v in operator.inputs] + graph.outputs
    )
    views = Views(spec, uses)
    groups = parallel_heads(graph, uses)
    joined = {
        operator: group
        for group in groups
        for heads in group
        for operator in heads.operators
    }
    for operator in graph.operators:
        if operator not in joined:
            _visit(views, operator)
        elif operator is joined[operator][0].layer:
            join_heads(views, joined[operator])
    return views.graph(graph)


def _visit(views: Views, operator: Operator) -> None:
    """Apply the rule of ``operator``.

    An operator without rule, or without an operand that is a view, stays.
    """
    rule = LAYOUT.get(type(operator)) or DEMANDING.get(type(operator))
    if rule is None and views.has_view(operator.inputs):
        rule = CARRIED.get(type(operator))
    (rule or Views.keep)(views, operator)


def _along(views: Views, operator: Operator) -> None:
    """The rule for reductions and REVERSE, with their axis mapped to the base.

    Kept if the view added this axis.
    """
    axis = views.view(operator.inputs[0]).axes[operator.axis]  # type: ignore[attr-defined]
    if axis is None:
        views.keep(operator)
    else:
        views.carry(operator, axis=axis)


def _argmax(views: Views, operator: Operator) -> None:
    """The rule for ARGMAX, which drops its axis."""
    view = views.view(operator.inputs[0])
    result = operator.outputs[0]
    dropped: int = operator.axis  # type: ignore[attr-defined]
    axis = view.axes[dropped]
    if axis is None or view.base.rank == 1 or not views.movable(result.dtype):
        return views.keep(operator)
    axes = ax.without(view.axes[:dropped] + view.axes[dropped + 1 :], axis)
    new = views.rebuild(operator, (view.base,), axis=axis)
    return views.see(result, View(new.outputs[0], axes, view.source))


def _slice(views: Views, operator: Operator) -> None:
    _carry_entries(
        views,
        operator,
        [(shape_of(operator.inputs[1]), 0), (shape_of(operator.inputs[2]), 1)],
    )


def _tile(views: Views, operator: Operator) -> None:
    _carry_entries(views, operator, [(shape_of(operator.inputs[1]), 1)])


def _carry_entries(
    views: Views, operator: Operator, operands: list[tuple[Shape, int]]
) -> None:
    """Apply ``operator`` to the base, with SHAPE operands in the base's order.

    ``operands`` are pairs: the entries, and the entry for an axis of the base that is
    not in the view. The operator is kept if it changes an axis that the view added.
    """
    base, axes, _ = views.view(operator.inputs[0])
    base_entries = [
        ax.spread(entries, axes, base.rank, fill) for entries, fill in operands
    ]
    if None in base_entries:
        views.keep(operator)
    else:
        views.carry(
            operator,
            [views.shape(entries) for entries in base_entries if entries is not None],
        )


def _pad(views: Views, operator: Operator) -> None:
    """Apply PAD to the base, with its pairs in the order of the base's axes.

    A PAD of an axis that only the view has is kept.
    """
    base, axes, _ = views.view(operator.inputs[0])
    entries = shape_of(operator.inputs[1])
    pairs = ax.spread(
        list(zip(entries[::2], entries[1::2], strict=True)), axes, base.rank, (0, 0)
    )
    if pairs is None:
        views.keep(operator)
    else:
        views.carry(
            operator,
            [
                views.shape(tuple([n for pair in pairs for n in pair])),
                views.value(operator.inputs[2]),
            ],
        )


def _rescale(views: Views, operator: Operator) -> None:
    """The rule for RESCALE.

    Kept if it has scales of channels and the view's last axis is not the base's last
    one.
    """
    view = views.view(operator.inputs[0])
    per_channel: bool = operator.per_channel  # type: ignore[attr-defined]
    if per_channel and view.axes[-1] != view.base.rank - 1:
        views.keep(operator)
    else:
        views.carry(operator)


def _broadcast(views: Views, operator: Operator, count: int = 2) -> None:
    """Bring the ``count`` operands of an elementwise operator to one layout."""
    result = operator.outputs[0]
    if views.movable(result.dtype):
        views.lead_by(
            views.lead(operator.inputs[:count], result.shape), operator, count
        )
    else:
        views.keep(operator)


def _concat(views: Views, operator: Operator) -> None:
    """The rule for CONCAT, with its axis mapped to the base.

    Its operands are brought to the layout of one of them.
    """
    lead = views.lead(operator.inputs, operator.outputs[0].shape)
    axis = lead.axes[operator.axis]  # type: ignore[attr-defined]
    if axis is None:
        views.keep(operator)
    else:
        views.lead_by(lead, operator, len(operator.inputs), axis=axis)


DEMANDING: dict[type[Operator], Rule] = {
    tosa.CONV2D: read_as_it_lies,
    tosa.MATMUL: multiply_once,
}
"""Maps an operator that needs a layout to its rule, which may read a base."""

CARRIED: dict[type[Operator], Rule] = {
    **dict.fromkeys(
        (
            tosa.ABS, tosa.BITWISE_NOT, tosa.CAST, tosa.CEIL, tosa.CLAMP, tosa.CLZ, tosa.COS, tosa.ERF, tosa.EXP,
            tosa.FLOOR, tosa.LOG, tosa.LOGICAL_NOT, tosa.NEGATE, tosa.RECIPROCAL, tosa.RSQRT, tosa.SIGMOID, tosa.SIN,
            tosa.TABLE, tosa.TANH,
        ),
        Views.carry,
    ),
    **dict.fromkeys(
        (
            tosa.ADD, tosa.ARITHMETIC_RIGHT_SHIFT, tosa.BITWISE_AND, tosa.BITWISE_OR, tosa.BITWISE_XOR, tosa.EQUAL,
            tosa.GREATER, tosa.GREATER_EQUAL, tosa.INTDIV, tosa.LOGICAL_AND, tosa.LOGICAL_LEFT_SHIFT, tosa.LOGICAL_OR,
            tosa.LOGICAL_RIGHT_SHIFT, tosa.LOGICAL_XOR, tosa.MAXIMUM, tosa.MINIMUM, tosa.MUL, tosa.POW, tosa.SUB,
        ),
        _broadcast,
    ),
    tosa.SELECT: partial(_broadcast, count=3),
    **dict.fromkeys(
        (
            tosa.REDUCE_ALL, tosa.REDUCE_ANY, tosa.REDUCE_MAX, tosa.REDUCE_MIN, tosa.REDUCE_PRODUCT, tosa.REDUCE_SUM,
            tosa.REVERSE,
        ),
        _along,
    ),
    tosa.ARGMAX: _argmax,
    tosa.CONCAT: _concat,
    tosa.PAD: _pad,
    tosa.RESCALE: _rescale,
    tosa.SLICE: _slice,
    tosa.TILE: _tile,
}  # fmt: skip
"""Operator that can work on the base of a view -> its rule.

All other operators get values as operands.
"""

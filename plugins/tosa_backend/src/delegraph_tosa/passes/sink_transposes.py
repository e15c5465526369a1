"""Moves TRANSPOSEs after operators that work in any layout.

There, two TRANSPOSEs often cancel.
"""

from __future__ import annotations

from functools import partial
from itertools import chain

from ..ir import operators as tosa
from ..ir.graph import Graph, Operator, shape_of
from ..spec import TosaSpec
from . import view_axes as ax
from .layout_rules import LAYOUT, Rule
from .parallel_heads import Heads, join_heads, parallel_heads
from .pending_views import View, Views
from .repeated_operands import multiply_once
from .rewriter import count_uses
from .transposed_layers import read_untransposed
from .view_axes import Shape


def sink_transposes(graph: Graph, spec: TosaSpec) -> Graph:
    """Move TRANSPOSE, and RESHAPE that adds or drops axes of size 1, to the results.

    before: TRANSPOSE (0,2,3,1) - CONV2D - TRANSPOSE (0,3,1,2) - CLAMP
            - TRANSPOSE (0,2,3,1) - CONV2D - TRANSPOSE (0,3,1,2)
    after:  TRANSPOSE (0,2,3,1) - CONV2D - CLAMP - CONV2D - TRANSPOSE (0,3,1,2)

    Operators are visited in order. The result of a TRANSPOSE is noted as a pending view
    of its operand, the base (``view_axes``). Elementwise operators, reductions, slices,
    concatenations and the like are applied to the base, and their result is a view too.
    For an operator that needs a layout, the view is computed as a value, once for all
    uses. Linear layers and products can often do without that (``parallel_heads``,
    ``transposed_layers``, ``repeated_operands``). Constants get the layout of a view by
    folded TRANSPOSE and RESHAPE. Values of element types for which the target has no
    TRANSPOSE stay as they are.
    """
    uses = count_uses(graph)
    views = Views(spec, uses)
    # operator -> the group of layers that replaces it
    joined: dict[Operator, list[Heads]] = {}
    for group in parallel_heads(graph, uses):
        for heads in group:
            joined.update(dict.fromkeys(heads.operators, group))
    for operator in graph.operators:
        if operator not in joined:
            _visit(views, operator)
            continue
        group = joined[operator]
        if operator is group[0].layer:
            join_heads(views, group)
    return views.graph(graph)


def _visit(views: Views, operator: Operator) -> None:
    """Apply the rule of ``operator``.

    An operator without a rule is kept. Rules in ON_BASE are only for operators with a
    view as operand.
    """
    rule = LAYOUT.get(type(operator)) or DEMANDING.get(type(operator))
    if rule is None and views.has_view(operator.inputs):
        rule = ON_BASE.get(type(operator))
    if rule is None:
        views.keep(operator)
    else:
        rule(views, operator)


def _along(views: Views, operator: Operator) -> None:
    """Apply a reduction or REVERSE to the base, with the axis mapped to the base.

    If the view added this axis, the operator is kept, and its operand is computed.
    """
    axis = _axis_of_base(views.view(operator.inputs[0]), operator)
    if axis is None:
        views.keep(operator)
    else:
        views.apply_to_base(operator, axis=axis)


def _axis_of_base(view: View, operator: Operator) -> int | None:
    """Return the axis of the base that is the operator's ``axis`` in ``view``.

    Returns None if the view added this axis.
    """
    axis: int = operator.attribute_values()["axis"]
    return view.axes[axis]


def _argmax(views: Views, operator: Operator) -> None:
    """Apply ARGMAX, which drops its axis, to the base."""
    view = views.view(operator.inputs[0])
    result = operator.outputs[0]
    dropped: int = operator.attribute_values()["axis"]
    axis = view.axes[dropped]
    if axis is None or view.base.rank == 1 or not views.can_transpose(result.dtype):
        return views.keep(operator)
    others = view.axes[:dropped] + view.axes[dropped + 1 :]
    new = views.append_copy(operator, (view.base,), axis=axis)
    axes = ax.without_base_axis(others, axis)
    return views.note_view(result, View(new.outputs[0], axes, view.source))


def _slice(views: Views, operator: Operator) -> None:
    """Apply SLICE to the base. An axis that is not in the view is sliced whole."""
    _, start, size = operator.inputs
    start_of_base = _entries_of_base(views, operator, shape_of(start), fill=0)
    size_of_base = _entries_of_base(views, operator, shape_of(size), fill=1)
    if start_of_base is None or size_of_base is None:
        return views.keep(operator)
    operands = [views.shape(start_of_base), views.shape(size_of_base)]
    return views.apply_to_base(operator, operands)


def _tile(views: Views, operator: Operator) -> None:
    """Apply TILE to the base. An axis that is not in the view is not repeated."""
    multiples = shape_of(operator.inputs[1])
    multiples_of_base = _entries_of_base(views, operator, multiples, fill=1)
    if multiples_of_base is None:
        return views.keep(operator)
    return views.apply_to_base(operator, [views.shape(multiples_of_base)])


def _entries_of_base(
    views: Views, operator: Operator, entries: Shape, fill: int
) -> Shape | None:
    """Return the entries of a SHAPE operand in the order of the base's axes.

    ``fill`` is the entry for an axis that is not in the view. None if ``operator``
    changes an axis that the view added.
    """
    view = views.view(operator.inputs[0])
    return ax.spread(entries, view.axes, view.base.rank, fill)


def _pad(views: Views, operator: Operator) -> None:
    """Apply PAD to the base, with its pairs in the order of the base's axes.

    If it pads an axis that the view added, the operator is kept.
    """
    x, padding, number = operator.inputs
    view = views.view(x)
    entries = shape_of(padding)
    pairs = list(zip(entries[::2], entries[1::2], strict=True))
    pairs_of_base = ax.spread(pairs, view.axes, view.base.rank, (0, 0))
    if pairs_of_base is None:
        return views.keep(operator)
    padding_of_base = views.shape(tuple(chain.from_iterable(pairs_of_base)))
    return views.apply_to_base(operator, [padding_of_base, views.value(number)])


def _rescale(views: Views, operator: Operator) -> None:
    """Apply RESCALE to the base.

    The operator is kept if it has a scale for each channel, and the view's last axis is
    not the base's last one.
    """
    view = views.view(operator.inputs[0])
    per_channel: bool = operator.attribute_values()["per_channel"]
    if per_channel and view.axes[-1] != view.base.rank - 1:
        views.keep(operator)
    else:
        views.apply_to_base(operator)


def _elementwise(views: Views, operator: Operator, count: int = 2) -> None:
    """Apply an elementwise operator to ``count`` operands in their cheapest layout.

    Its result becomes a view. If the target cannot transpose the result, the operator
    is kept, and its operands are computed.
    """
    result = operator.outputs[0]
    if not views.can_transpose(result.dtype):
        return views.keep(operator)
    layout = views.cheapest_layout(operator.inputs[:count], result.shape)
    return views.apply_in_layout(layout, operator, count)


def _concat(views: Views, operator: Operator) -> None:
    """Apply CONCAT to its operands in one layout, with the axis mapped to the base."""
    layout = views.cheapest_layout(operator.inputs, operator.outputs[0].shape)
    axis = _axis_of_base(layout, operator)
    if axis is None:
        views.keep(operator)
    else:
        views.apply_in_layout(layout, operator, len(operator.inputs), axis=axis)


DEMANDING: dict[type[Operator], Rule] = {
    tosa.CONV2D: read_untransposed,
    tosa.MATMUL: multiply_once,
}
"""Operator that needs a layout -> its rule, which may avoid a TRANSPOSE."""

ONE_OPERAND = (
    tosa.ABS,
    tosa.BITWISE_NOT,
    tosa.CAST,
    tosa.CEIL,
    tosa.CLAMP,
    tosa.CLZ,
    tosa.COS,
    tosa.ERF,
    tosa.EXP,
    tosa.FLOOR,
    tosa.LOG,
    tosa.LOGICAL_NOT,
    tosa.NEGATE,
    tosa.RECIPROCAL,
    tosa.RSQRT,
    tosa.SIGMOID,
    tosa.SIN,
    tosa.TABLE,
    tosa.TANH,
)


TWO_OPERANDS = (
    tosa.ADD,
    tosa.ARITHMETIC_RIGHT_SHIFT,
    tosa.BITWISE_AND,
    tosa.BITWISE_OR,
    tosa.BITWISE_XOR,
    tosa.EQUAL,
    tosa.GREATER,
    tosa.GREATER_EQUAL,
    tosa.INTDIV,
    tosa.LOGICAL_AND,
    tosa.LOGICAL_LEFT_SHIFT,
    tosa.LOGICAL_OR,
    tosa.LOGICAL_RIGHT_SHIFT,
    tosa.LOGICAL_XOR,
    tosa.MAXIMUM,
    tosa.MINIMUM,
    tosa.MUL,
    tosa.POW,
    tosa.SUB,
)


ALONG_AN_AXIS = (
    tosa.REDUCE_ALL,
    tosa.REDUCE_ANY,
    tosa.REDUCE_MAX,
    tosa.REDUCE_MIN,
    tosa.REDUCE_PRODUCT,
    tosa.REDUCE_SUM,
    tosa.REVERSE,
)


ON_BASE: dict[type[Operator], Rule] = {
    **dict.fromkeys(ONE_OPERAND, Views.apply_to_base),
    **dict.fromkeys(TWO_OPERANDS, _elementwise),
    **dict.fromkeys(ALONG_AN_AXIS, _along),
    tosa.SELECT: partial(_elementwise, count=3),
    tosa.ARGMAX: _argmax,
    tosa.CONCAT: _concat,
    tosa.PAD: _pad,
    tosa.RESCALE: _rescale,
    tosa.SLICE: _slice,
    tosa.TILE: _tile,
}
"""Operator that can work on the base of a view -> its rule.

All other operators get values as operands.
"""

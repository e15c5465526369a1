"""Joins linear layers of one operand that are split into heads.

Examples are query, key and value of an attention.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from functools import reduce
from typing import Any, NamedTuple

from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Graph, Operator, Value
from ..ir.operators import CONCAT, CONV2D, RESHAPE, SLICE, TILE, TRANSPOSE
from ..ir.types import FLOATS, Type
from . import view_axes as ax
from .pending_views import View, Views
from .rewriter import merge_sources, rebuilt


class Heads(NamedTuple):
    """A linear layer with channels split into heads, which are transposed: CONV2D
    - RESHAPE ... - TRANSPOSE.

    ``operators`` are all of these. The axes of the operand of ``transpose`` are rows,
    heads, channels of a head.
    """

    operators: list[Operator]

    @property
    def layer(self) -> Operator:
        return self.operators[0]

    @property
    def transpose(self) -> TRANSPOSE:
        last = self.operators[-1]
        assert isinstance(last, TRANSPOSE)
        return last

    @property
    def number(self) -> int:
        """The number of heads."""
        return self.transpose.inputs[0].shape[-2]


def parallel_heads(graph: Graph, uses: Counter[Value]) -> list[list[Heads]]:
    """Groups of at least two layers that can be joined.

    One TRANSPOSE then moves the heads of all. before: x - CONV2D [N,1,L,H*E] - RESHAPE
    [N,L,H,E] - TRANSPOSE (0,2,1,3), three times with weights of their own after: x -
    CONV2D [N,1,L,3*H*E] - RESHAPE [N,L,3*H,E] - TRANSPOSE (0,2,1,3), and three SLICE of
    that

    Layers have floats (integers would have one zero point for each layer), and constant
    weights with no other use. They are equal in all but the number of heads. A key is
    often transposed again for its product. Alone it needs one TRANSPOSE for both; in a
    group it needs a second one. So a group has to save more TRANSPOSE than it has such
    layers.
    """
    users = {
        v: operator
        for operator in graph.operators
        for v in operator.inputs
        if uses[v] == 1
    }
    alike: dict[Hashable, list[Heads]] = defaultdict(list)
    for operator in graph.operators:
        if type(operator) is CONV2D and (heads := _heads(operator, users, uses)):
            alike[_kind(heads)].append(heads)
    return [
        group
        for group in alike.values()
        if len(group) > 1 + sum(_moves_again(h, users) for h in group)
    ]


def _heads(
    layer: Operator, users: dict[Value, Operator], uses: Counter[Value]
) -> Heads | None:
    """Return the CONV2D ``layer`` as Heads.

    None if its result is not split into heads that are transposed. ``users`` maps a
    value with one use to its user.
    """
    _, weight, bias, *_ = layer.inputs
    if (
        weight.constant is None
        or bias.constant is None
        or uses[weight] != 1
        or weight.dtype not in FLOATS
    ):
        return None
    operators = [layer, *_following(layer.outputs[0], users)]
    result = layer.outputs[0]
    moved = operators[-1]
    if not isinstance(moved, TRANSPOSE) or moved.inputs[0].rank < 3:
        return None
    shape = moved.inputs[0].shape
    split = ((result.rank - 1,), (len(shape) - 2, len(shape) - 1))
    if split not in ax.pieces(result.shape, shape) or any(map(is_dynamic, shape[-2:])):
        return None
    return None if ax.ascends(ax.order(shape, moved.perms)) else Heads(operators)


def _following(value: Value, users: dict[Value, Operator]) -> Iterable[Operator]:
    """Return the RESHAPEs after ``value`` and the TRANSPOSE that follows them.

    Each is the only user of its operand.
    """
    while (operator := users.get(value)) is not None and isinstance(
        operator, (RESHAPE, TRANSPOSE)
    ):
        yield operator
        value = operator.outputs[0]
        if isinstance(operator, TRANSPOSE):
            break


def _kind(heads: Heads) -> Hashable:
    """Return a key that is equal for layers that can be joined."""
    x, weight, bias, *_ = heads.layer.inputs
    while isinstance(x.producer, RESHAPE):
        x = x.producer.inputs[0]
    *rows, _, width = heads.transpose.inputs[0].shape
    kernel = (weight.shape[1:], weight.dtype, bias.dtype)
    attributes = tuple(heads.layer.attribute_values().values())
    return (
        x,
        heads.layer.inputs[0].type,
        kernel,
        attributes,
        tuple(rows),
        width,
        heads.transpose.perms,
    )


def _moves_again(heads: Heads, users: dict[Value, Operator]) -> bool:
    """Return whether the transposed heads are transposed again."""
    return any(
        isinstance(operator, TRANSPOSE)
        for operator in _following(heads.transpose.outputs[0], users)
    )


def join_heads(views: Views, group: list[Heads]) -> None:
    """Replace the layers in ``group`` by one layer.

    The transposed heads of each become a view of a SLICE.
    """
    result = _joined_layer(views, group)
    *rows, _, width = group[0].transpose.inputs[0].shape
    shape = (*rows, sum([heads.number for heads in group]), width)
    kept = [axis for axis, size in enumerate(shape) if size != 1 or axis >= len(rows)]
    split = views.reshape(
        result, tuple([shape[axis] for axis in kept]), _source(_reshapes(group))
    )
    order = [axis for axis in group[0].transpose.perms if axis in kept]
    perms = tuple([kept.index(axis) for axis in order])
    moved = views.transpose(split, perms, _source([heads.transpose for heads in group]))
    axes = tuple(
        [
            order.index(axis) if axis in kept else None
            for axis in group[0].transpose.perms
        ]
    )
    for heads, part in zip(
        group, _parts(views, moved, order.index(len(rows)), group), strict=True
    ):
        views.see(heads.transpose.outputs[0], View(part, axes, heads.transpose.source))


def _parts(
    views: Views, moved: Value, axis: int, group: list[Heads]
) -> Iterable[Value]:
    """Return the heads of each layer of ``group``, as SLICEs of ``moved``.

    ``moved`` has the heads of all layers along ``axis``.
    """
    start = [0] * moved.rank
    size = list(moved.shape)
    for heads in group:
        size[axis] = heads.number
        operands = (moved, views.shape(tuple(start)), views.shape(tuple(size)))
        yield views.make(
            SLICE, operands, Type(tuple(size), moved.dtype), _source(heads.operators)
        )
        start[axis] += heads.number


def _joined_layer(views: Views, group: list[Heads]) -> Value:
    """Return the result of one CONV2D with the output channels of ``group``."""
    layers = [heads.layer for heads in group]
    source = _source(layers)
    _, weight, bias, *zero_points = layers[0].inputs
    channels = sum(layer.inputs[1].shape[0] for layer in layers)
    weights = tuple([layer.inputs[1] for layer in layers])
    weight = views.make(
        CONCAT,
        weights,
        Type((channels, *weight.shape[1:]), weight.dtype),
        source,
        axis=0,
    )
    biases = tuple([_wide_bias(views, layer) for layer in layers])
    bias = views.make(CONCAT, biases, Type((channels,), bias.dtype), source, axis=0)
    result = Type(
        (*layers[0].outputs[0].shape[:-1], channels), layers[0].outputs[0].dtype
    )
    x = views.value(layers[0].inputs[0])
    new = rebuilt(layers[0], (x, weight, bias, *zero_points), [result], source=source)
    views.operators.append(new)
    return new.outputs[0]


def _wide_bias(views: Views, layer: Operator) -> Value:
    """Return the bias of a layer as [O]; a bias [1] is repeated."""
    bias = layer.inputs[2]
    channels = layer.inputs[1].shape[0]
    if bias.shape == (channels,):
        return bias
    return views.make(
        TILE,
        (bias, views.shape((channels,))),
        Type((channels,), bias.dtype),
        layer.source,
    )


def _reshapes(group: list[Heads]) -> list[Operator]:
    """Return the RESHAPE operators of all layers of ``group``."""
    return [operator for heads in group for operator in heads.operators[1:-1]]


def _source(operators: Iterable[Operator]) -> Any:
    """Return the source of an operator that replaces ``operators``."""
    return reduce(merge_sources, [operator.source for operator in operators], None)

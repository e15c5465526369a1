"""Joins linear layers of the same operand with results that are split into heads.

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
from .view_axes import Shape


class Heads(NamedTuple):
    """A linear layer with channels that are split into heads and transposed.

    ``operators`` are CONV2D, one or more RESHAPEs, TRANSPOSE. The last two axes of the
    operand of TRANSPOSE are the heads and the channels of a head.
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
        """Return the number of heads."""
        return self.split_shape[-2]

    @property
    def split_shape(self) -> Shape:
        """Return the shape of ``transpose``'s operand: [*rows, heads, channels]."""
        return self.transpose.inputs[0].shape


def parallel_heads(graph: Graph, uses: Counter[Value]) -> list[list[Heads]]:
    """Return groups of at least two layers that can be joined.

    One TRANSPOSE then moves the heads of all.

    before: x - CONV2D [N,1,L,H*E] - RESHAPE [N,L,H,E] - TRANSPOSE (0,2,1,3),
            three times with weights of their own
    after:  x - CONV2D [N,1,L,3*H*E] - RESHAPE [N,L,3*H,E] - TRANSPOSE (0,2,1,3),
            and three SLICE of that

    Layers have floats (integers would have one zero point for each layer), and constant
    weights with no other use. They are equal in all but the number of heads.

    A key is often transposed again for its product. Alone, it needs one TRANSPOSE for
    both; in a group, it needs a second one. So a group is returned only if it saves
    more TRANSPOSEs than it has such layers.
    """
    # value with one use -> its user
    users: dict[Value, Operator] = {}
    for operator in graph.operators:
        for value in operator.inputs:
            if uses[value] == 1:
                users[value] = operator
    groups: dict[Hashable, list[Heads]] = defaultdict(list)
    for operator in graph.operators:
        if type(operator) is not CONV2D:
            continue
        heads = _heads(operator, users, uses)
        if heads is not None:
            groups[_group_key(heads)].append(heads)
    return [group for group in groups.values() if _is_worth_it(group, users)]


def _is_worth_it(group: list[Heads], users: dict[Value, Operator]) -> bool:
    """Return whether joining ``group`` saves more TRANSPOSEs than it adds."""
    moved_again = [heads for heads in group if _moves_again(heads, users)]
    return len(group) > 1 + len(moved_again)


def _heads(
    layer: Operator, users: dict[Value, Operator], uses: Counter[Value]
) -> Heads | None:
    """Return the CONV2D ``layer`` as Heads.

    None if its result is not split into heads that are transposed. ``users`` maps a
    value with one use to its user.
    """
    _, weight, bias, *_ = layer.inputs
    if weight.constant is None or bias.constant is None:
        return None
    if uses[weight] != 1 or weight.dtype not in FLOATS:
        return None
    result = layer.outputs[0]
    operators = [layer, *_following(result, users)]
    transpose = operators[-1]
    if not isinstance(transpose, TRANSPOSE) or transpose.inputs[0].rank < 3:
        return None
    shape = transpose.inputs[0].shape
    heads = len(shape) - 2
    channels = len(shape) - 1
    split = ((result.rank - 1,), (heads, channels))
    if split not in ax.pieces(result.shape, shape):
        return None
    if any(map(is_dynamic, shape[heads:])):
        return None
    if ax.is_reshape(shape, transpose.perms):
        return None
    return Heads(operators)


def _following(value: Value, users: dict[Value, Operator]) -> Iterable[Operator]:
    """Yield the RESHAPEs after ``value`` and the TRANSPOSE that follows them.

    Each is the only user of its operand.
    """
    operator = users.get(value)
    while isinstance(operator, RESHAPE):
        yield operator
        operator = users.get(operator.outputs[0])
    if isinstance(operator, TRANSPOSE):
        yield operator


def _group_key(heads: Heads) -> Hashable:
    """Return a key that is equal for layers that can be joined."""
    x, weight, bias, *_ = heads.layer.inputs
    type = x.type
    while isinstance(x.producer, RESHAPE):
        x = x.producer.inputs[0]
    *rows, _, width = heads.split_shape
    kernel = (weight.shape[1:], weight.dtype, bias.dtype)
    attributes = tuple(heads.layer.attribute_values().values())
    return x, type, kernel, attributes, tuple(rows), width, heads.transpose.perms


def _moves_again(heads: Heads, users: dict[Value, Operator]) -> bool:
    """Return whether the transposed heads are transposed again."""
    following = _following(heads.transpose.outputs[0], users)
    return any(isinstance(operator, TRANSPOSE) for operator in following)


def join_heads(views: Views, group: list[Heads]) -> None:
    """Replace the layers in ``group`` by one layer, and their TRANSPOSEs by one.

    The transposed heads of each layer become a view of a SLICE.
    """
    result = _joined_layer(views, group)
    *rows, _, width = group[0].split_shape
    number = sum([heads.number for heads in group])
    shape = (*rows, number, width)
    # axes of size 1 before the heads are dropped: they are added by the views
    head_axis = len(rows)
    kept = [axis for axis, size in enumerate(shape) if size != 1 or axis >= head_axis]
    kept_shape = tuple([shape[axis] for axis in kept])
    split = views.reshape(result, kept_shape, _source_of_reshapes(group))
    all_perms = group[0].transpose.perms
    # the kept axes of ``shape`` in transposed order
    order = [axis for axis in all_perms if axis in kept]
    perms = tuple([kept.index(axis) for axis in order])
    source = _source([heads.transpose for heads in group])
    moved = views.transpose(split, perms, source)
    axes = tuple([order.index(axis) if axis in kept else None for axis in all_perms])
    parts = _parts(views, moved, order.index(head_axis), group)
    for heads, part in zip(group, parts, strict=True):
        view = View(part, axes, heads.transpose.source)
        views.note_view(heads.transpose.outputs[0], view)


def _parts(
    views: Views, moved: Value, axis: int, group: list[Heads]
) -> Iterable[Value]:
    """Yield the heads of each layer of ``group``, as SLICEs of ``moved``.

    ``moved`` has the heads of all layers along ``axis``.
    """
    start = [0] * moved.rank
    size = list(moved.shape)
    for heads in group:
        size[axis] = heads.number
        shape = tuple(size)
        operands = (moved, views.shape(tuple(start)), views.shape(shape))
        source = _source(heads.operators)
        yield views.make(SLICE, operands, Type(shape, moved.dtype), source)
        start[axis] += heads.number


def _joined_layer(views: Views, group: list[Heads]) -> Value:
    """Return the result of one CONV2D with the output channels of ``group``."""
    layers = [heads.layer for heads in group]
    first = layers[0]
    source = _source(layers)
    _, weight, bias, *zero_points = first.inputs
    channels = sum(layer.inputs[1].shape[0] for layer in layers)
    weights = tuple([layer.inputs[1] for layer in layers])
    weight_type = Type((channels, *weight.shape[1:]), weight.dtype)
    all_weights = views.make(CONCAT, weights, weight_type, source, axis=0)
    biases = tuple([_wide_bias(views, layer) for layer in layers])
    bias_type = Type((channels,), bias.dtype)
    all_biases = views.make(CONCAT, biases, bias_type, source, axis=0)
    *image, _ = first.outputs[0].shape
    result = Type((*image, channels), first.outputs[0].dtype)
    x = views.value(first.inputs[0])
    operands = (x, all_weights, all_biases, *zero_points)
    new = rebuilt(first, operands, [result], source=source)
    views.operators.append(new)
    return new.outputs[0]


def _wide_bias(views: Views, layer: Operator) -> Value:
    """Return the bias of a layer as [O]; a bias [1] is repeated."""
    bias = layer.inputs[2]
    channels = layer.inputs[1].shape[0]
    if bias.shape == (channels,):
        return bias
    operands = (bias, views.shape((channels,)))
    return views.make(TILE, operands, Type((channels,), bias.dtype), layer.source)


def _source_of_reshapes(group: list[Heads]) -> Any:
    """Return the source of the RESHAPE operators of all layers of ``group``."""
    reshapes: list[Operator] = []
    for heads in group:
        reshapes += heads.operators[1:-1]
    return _source(reshapes)


def _source(operators: Iterable[Operator]) -> Any:
    """Return the source of an operator that replaces ``operators``."""
    sources = [operator.source for operator in operators]
    return reduce(merge_sources, sources, None)

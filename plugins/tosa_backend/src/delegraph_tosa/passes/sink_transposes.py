"""Transpositions sink: past every operator that does not mind, until they meet and cancel or something needs them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..ir import operators as tosa
from ..ir.graph import Graph, Operator, Value, shape_of
from ..ir.operators import RESHAPE, TRANSPOSE
from ..ir.sizes import range_of
from ..ir.types import DType, Type
from ..spec import TosaSpec
from . import axes as ax
from .axes import Axes, Shape
from .parallel_heads import Heads, join_heads, parallel_heads
from .repeated_operands import repetition
from .rewriter import Rewrite, both, rebuilt, replaced
from .transposed_layers import read_as_it_lies

MAX_RANK = 6
"""Highest rank of level 8K (specification: Levels); no RESHAPE here makes a higher one than this."""


class View(NamedTuple):
    """A value that was not computed: ``base``, seen along ``axes`` (see ``axes``). ``source`` made it a view.

    It names every operator that moved an axis, so that the one that arranges the view in the end stands for them all.
    """

    base: Value
    axes: Axes
    source: Any


def sink_transposes(graph: Graph, spec: TosaSpec) -> Graph:
    """Move TRANSPOSE, and RESHAPE that adds or drops axes of size 1, towards the results.

    before: TRANSPOSE (0,2,3,1) - CONV2D - TRANSPOSE (0,3,1,2) - CLAMP - TRANSPOSE (0,2,3,1) - CONV2D - TRANSPOSE
    after:  TRANSPOSE (0,2,3,1) - CONV2D - CLAMP - CONV2D - TRANSPOSE (0,3,1,2)

    One sweep, in which the result of a TRANSPOSE is only remembered as a view of its operand. Elementwise operators,
    reductions, slices, concatenations and the like are applied to the base of the view and their result is a view
    again; for an operator that needs the axes as they are, the view is made into a value, once for all its uses.
    Linear layers and products can do without (``transposed_layers``, ``repeated_operands``).
    Constants meet a view by folded TRANSPOSE and RESHAPE. What has an element type that the target does not move stays.
    """
    uses = Counter([v for operator in graph.operators for v in operator.inputs] + graph.outputs)
    sweep = Sweep(spec, uses, parallel_heads(graph, uses))
    for operator in graph.operators:
        sweep.visit(operator)
    return Graph(graph.inputs, [sweep.value(v) for v in graph.outputs], sweep.operators, graph.name)


class Sweep(Rewrite):
    """The new operators, and for each value of the old graph what it became: a value or a view."""

    def __init__(self, spec: TosaSpec, uses: Counter[Value], parallel: list[list[Heads]]) -> None:
        super().__init__()
        self._spec = spec
        self._uses = uses
        self._parallel = {group[0].layer: group for group in parallel}
        self._joined = {operator for group in parallel for heads in group for operator in heads.operators}
        self._values: dict[Value, Value] = {}
        self._views: dict[Value, View] = {}
        self._movable: dict[DType, bool] = {}

    def visit(self, operator: Operator) -> None:
        if operator in self._joined:
            return self.join(operator)
        rule = LAYOUT.get(type(operator))
        if rule is None and not self._views.keys().isdisjoint(operator.inputs):
            rule = CARRIED.get(type(operator))
        if rule is None:
            return self.keep(operator)
        return rule(self, operator)

    def keep(self, operator: Operator) -> None:
        """``operator`` with its operands as they are; itself if none of them changed."""
        inputs = tuple([self.value(v) for v in operator.inputs])
        if inputs == operator.inputs:
            self.operators.append(operator)
        else:
            new = replaced(operator, inputs)
            self.operators.append(new)
            self._values.update(zip(operator.outputs, new.outputs, strict=True))

    def join(self, operator: Operator) -> None:
        """Make one of layers that are alike, where the first of them was; nothing in the place of the others."""
        group = self._parallel.get(operator)
        if group is not None:
            views = join_heads(self, group, self.value(operator.inputs[0]))
            for heads, (part, axes) in zip(group, views, strict=True):
                self.see(heads.transpose.outputs[0], View(part, axes, heads.transpose.source))

    def linear(self, layer: Operator) -> None:
        """A CONV2D reads its operand as it was before it was transposed, if nothing else uses that or the weight."""
        (x, weight, *_), result, new = layer.inputs, layer.outputs[0], None
        if weight.constant is not None and self._uses[x] == self._uses[weight] == 1:
            new = read_as_it_lies(self, layer, [self.value(v) for v in layer.inputs], self._spec)
        if new is None or not (new.outputs[0].shape == result.shape or self.movable(result.dtype)):
            return self.keep(layer)
        self.operators.append(new)
        return self.shaped(result, new)

    def product(self, product: Operator) -> None:
        """A MATMUL whose right matrix is that of neighbours in the batch: their left ones lie below each other.

        before: MATMUL (q [B*G,L,E], TILE k [B*G,E,S])
        after:  MATMUL (RESHAPE q [B,G*L,E], k [B,E,S]) - RESHAPE [B*G,L,S]
        """
        repeated, result = repetition(product.inputs[1], self._uses), product.outputs[0]
        if repeated is None or repeated.axis != 0 or not self.movable(result.dtype):
            return self.keep(product)
        for operator in repeated.operators:
            self.visit(operator)
        left, right = self.value(product.inputs[0]), self.value(repeated.once)
        source = both(repeated.source, product.source)
        joined = self.reshape(left, (right.shape[0], repeated.times * left.shape[1], left.shape[2]), source)
        return self.shaped(result, self.rebuild(product, (joined, right, *product.inputs[2:]), source=source))

    def shaped(self, old: Value, operator: Operator) -> None:
        """``old`` became the result of ``operator``, in the shape of ``old``."""
        new = self.reshape(operator.outputs[0], old.shape, operator.source)
        self.see(old, View(new, ax.plain(old.rank), None))

    def rebuild(self, operator: Operator, inputs: Sequence[Value], **attributes: Any) -> Operator:
        new = rebuilt(operator, inputs, **attributes)
        self.operators.append(new)
        return new

    def value(self, old: Value) -> Value:
        """What ``old`` became, as a value."""
        view = self._views.get(old)
        return self._values.get(old, old) if view is None else self.arrange(*view)

    def view(self, old: Value) -> View:
        """What ``old`` became, as a view; of itself if it is none."""
        view = self._views.get(old)
        return View(self._values.get(old, old), ax.plain(old.rank), None) if view is None else view

    def see(self, old: Value, view: View) -> None:
        """Remember what ``old`` became."""
        if view.axes == ax.plain(view.base.rank):
            self._values[old] = view.base
        else:
            self._views[old] = view

    def carry(self, operator: Operator, operands: Sequence[Value] | None = None, **attributes: Any) -> None:
        """Apply ``operator`` to the base of its first operand; ``operands`` are the others, the old ones if None."""
        view, result = self.view(operator.inputs[0]), operator.outputs[0]
        if not self.movable(result.dtype):
            return self.keep(operator)
        others = [self.value(v) for v in operator.inputs[1:]] if operands is None else operands
        new = self.rebuild(operator, (view.base, *others), **attributes)
        return self.see(result, View(new.outputs[0], view.axes, view.source))

    def movable(self, dtype: DType) -> bool:
        """Whether the target has TRANSPOSE and RESHAPE for ``dtype``: int32 ones need PRO-INT, for example."""
        if dtype not in self._movable:
            value, scratch = Value(Type((1, 1), dtype)), Rewrite()
            scratch.transpose(value, (1, 0), None)
            scratch.reshape(value, (1,), None)
            self._movable[dtype] = all(self._spec.why_not(operator) is None for operator in scratch.operators)
        return self._movable[dtype]

    def arrange(self, base: Value, axes: Axes, source: Any) -> Value:
        """The view as a value: ``base`` itself, a RESHAPE of it, a TRANSPOSE, or at worst one of each."""
        shape = ax.viewed(base.shape, axes)
        if ax.ascends(ax.order(base.shape, axes)):
            return self.reshape(base, shape, source)
        if len(axes) != base.rank:
            base, axes = self._of_rank(base, axes, shape, source)
        return self.transpose(base, ax.completed(axes), source)

    def _of_rank(self, base: Value, axes: Axes, shape: Shape, source: Any) -> tuple[Value, Axes]:
        """The same view of a base of the view's rank."""
        single = [a is None or base.shape[a] == 1 for a in axes]
        places = sorted(range(len(axes)), key=lambda i: -1 if single[i] else axes[i])  # type: ignore[arg-type,return-value]
        reshaped = self.reshape(base, tuple([shape[i] for i in places]), source)
        return reshaped, tuple([places.index(i) for i in range(len(axes))])

    def lead(self, operands: Sequence[Value], shape: Shape) -> View:
        """The view whose arrangement an operator of several operands and a result of ``shape`` takes: the cheapest.

        Constants follow for free. Between equals a view wins over a value as it is, so that residual branches stay
        in the layout of their convolutions.
        """
        views = [self.view(v) for v in operands if v.constant is None]
        layouts = {(v.axes, v.base.rank): v for v in views}
        if len(layouts) == 1 and _holds(views[0], shape):
            return views[0]
        candidates = [v for v in layouts.values() if v.axes != ax.plain(v.base.rank) and _holds(v, shape)]
        candidates.append(View(operands[0], ax.plain(len(shape)), None))
        return min(candidates, key=lambda lead: sum(self._cost(v, lead) for v in views))

    def _cost(self, view: View, lead: View) -> float:
        """What ``view`` costs in the arrangement of ``lead``: a TRANSPOSE its elements, a RESHAPE next to nothing."""
        base, axes = view.base, ax.through(view.axes, lead.axes, lead.base.rank)
        if ax.ascends(ax.order(base.shape, axes)):
            return float(ax.viewed(base.shape, axes) != base.shape)
        if len(axes) == base.rank and (TRANSPOSE, (base,), ax.completed(axes)) in self._made:
            return 0.0
        return 1.0 + range_of(math.prod(base.shape))[0] if self.movable(base.dtype) else math.inf

    def follow(self, operand: Value, lead: View, source: Any) -> Value:
        """``operand`` in the arrangement of ``lead``."""
        base, axes, made_by = self.view(operand)
        rank = lead.base.rank
        if axes == lead.axes and base.rank == rank:
            return base
        return self.arrange(base, ax.through(axes, lead.axes, rank), made_by or source)

    def lead_by(self, lead: View, operator: Operator, count: int, **attributes: Any) -> None:
        """Apply ``operator`` to its first ``count`` operands in the arrangement of ``lead``."""
        result, source = operator.outputs[0], operator.source
        operands = [self.follow(v, lead, source) for v in operator.inputs[:count]]
        operands += [self.value(v) for v in operator.inputs[count:]]
        arranged = ax.through(ax.plain(result.rank), lead.axes, lead.base.rank)
        type = Type(ax.viewed(result.shape, arranged), result.dtype)
        new = rebuilt(operator, operands, (type,), **attributes)
        self.operators.append(new)
        self.see(result, View(new.outputs[0], lead.axes, lead.source))


def _holds(view: View, shape: Shape) -> bool:
    """Whether a result of ``shape`` fits the axes: one that the view adds must stay of size 1."""
    return None not in view.axes or all(
        axis is not None or size == 1 for axis, size in zip(view.axes, shape, strict=True)
    )


def _identity(sweep: Sweep, operator: Operator) -> None:
    sweep.see(operator.outputs[0], sweep.view(operator.inputs[0]))


def _transpose(sweep: Sweep, operator: Operator) -> None:
    assert isinstance(operator, TRANSPOSE)
    base, axes, source = sweep.view(operator.inputs[0])
    axes = tuple([axes[p] for p in operator.perms])
    sweep.see(operator.outputs[0], View(base, axes, both(source, operator.source)))


def _reshape(sweep: Sweep, operator: Operator) -> None:
    result, (base, axes, source) = operator.outputs[0], sweep.view(operator.inputs[0])
    source = both(source, operator.source)
    pieces = ax.pieces(operator.inputs[0].shape, result.shape)
    seen = ax.renamed(pieces, axes, result.rank)
    if seen is not None and base.rank:  # TRANSPOSE, SLICE and others have no form of rank 0
        sweep.see(result, View(base, seen, source))
    else:
        sweep.see(result, _regrouped(sweep, View(base, axes, source), pieces, result.shape))


def _regrouped(sweep: Sweep, view: View, pieces: list[ax.Piece], shape: Shape) -> View:
    """A RESHAPE that joins and splits axes of the view, applied to its base.

    Axes that are joined must lie side by side in the base. If they do, in another order, a TRANSPOSE within them is
    enough (channel shuffle); otherwise all axes are put in the view's order first.
    """
    base, axes, source = view
    joined = [[a for i in old if (a := axes[i]) is not None and base.shape[a] != 1] for old, _ in pieces]
    perms = _gathered(base.shape, joined)
    rank = base.rank + sum(len(new) - 1 for _, new in pieces if new)
    if perms is None or rank > MAX_RANK:
        straight = sweep.transpose(base, _as_viewed(axes, base.rank), source)
        return View(sweep.reshape(straight, shape, source), ax.plain(len(shape)), source)
    moved = tuple([None if a is None else perms.index(a) for a in axes])
    return _split(sweep, View(sweep.transpose(base, perms, source), moved, source), pieces, shape)


def _gathered(shape: Shape, joined: list[list[int]]) -> tuple[int, ...] | None:
    """The base's axes with each of ``joined`` in order, or None if one of them does not lie side by side."""
    group = {axis: axes for axes in joined for axis in axes}
    perms: list[int] = []
    wide = [a for a in range(len(shape)) if shape[a] != 1]
    for axes in joined:
        places = [wide.index(a) for a in axes]
        if places and max(places) - min(places) != len(places) - 1:
            return None
    for axis in range(len(shape)):
        if axis not in perms:
            perms += group.get(axis, [axis])
    return tuple(perms)


def _as_viewed(axes: Axes, rank: int) -> tuple[int, ...]:
    """The base's axes in the order of the view; those that it does not name come last."""
    named = [a for a in axes if a is not None]
    return (*named, *[a for a in range(rank) if a not in named])


def _split(sweep: Sweep, view: View, pieces: list[ax.Piece], shape: Shape) -> View:
    """The same for a base in which the axes of each piece lie side by side and in order."""
    base, axes, source = view
    targets = _targets(base.shape, axes, pieces)
    sizes: list[int] = []
    seen: list[int | None] = [None] * len(shape)
    for axis in range(base.rank):
        new = targets.get(axis, ())
        if not new:
            sizes.append(1)
        elif seen[new[0]] is None:
            for j in new:
                seen[j] = len(sizes)
                sizes.append(shape[j])
    if ax.ascends(ax.order(tuple(sizes), tuple(seen))):
        return View(sweep.reshape(base, shape, source), ax.plain(len(shape)), source)
    return View(sweep.reshape(base, tuple(sizes), source), tuple(seen), source)


def _targets(shape: Shape, axes: Axes, pieces: list[ax.Piece]) -> dict[int, tuple[int, ...]]:
    """Axis of the base -> the axes of the result that take its elements; axes of size 1 only if they stay alone."""
    return {
        a: new
        for old, new in pieces
        for i in old
        if (a := axes[i]) is not None and (shape[a] != 1 or len(old) == len(new) == 1)
    }


def _along(sweep: Sweep, operator: Operator) -> None:
    """Reductions and REVERSE: their axis is another one in the base."""
    axis = sweep.view(operator.inputs[0]).axes[operator.axis]  # type: ignore[attr-defined]
    if axis is None:
        sweep.keep(operator)
    else:
        sweep.carry(operator, axis=axis)


def _argmax(sweep: Sweep, operator: Operator) -> None:
    view, result = sweep.view(operator.inputs[0]), operator.outputs[0]
    dropped: int = operator.axis  # type: ignore[attr-defined]
    axis = view.axes[dropped]
    if axis is None or view.base.rank == 1 or not sweep.movable(result.dtype):
        return sweep.keep(operator)
    axes = ax.without(view.axes[:dropped] + view.axes[dropped + 1 :], axis)
    new = sweep.rebuild(operator, (view.base,), axis=axis)
    return sweep.see(result, View(new.outputs[0], axes, view.source))


def _slice(sweep: Sweep, operator: Operator) -> None:
    _carry_entries(sweep, operator, [(shape_of(operator.inputs[1]), 0), (shape_of(operator.inputs[2]), 1)])


def _tile(sweep: Sweep, operator: Operator) -> None:
    _carry_entries(sweep, operator, [(shape_of(operator.inputs[1]), 1)])


def _carry_entries(sweep: Sweep, operator: Operator, operands: list[tuple[Shape, int]]) -> None:
    """SHAPE operands with one entry an axis, and what an axis that the view does not name has."""
    base, axes, _ = sweep.view(operator.inputs[0])
    places = [ax.spread(entries, axes, base.rank, fill) for entries, fill in operands]
    if None in places:
        sweep.keep(operator)
    else:
        sweep.carry(operator, [sweep.shape(entries) for entries in places if entries is not None])


def _pad(sweep: Sweep, operator: Operator) -> None:
    base, axes, _ = sweep.view(operator.inputs[0])
    entries = shape_of(operator.inputs[1])
    pairs = ax.spread(list(zip(entries[::2], entries[1::2], strict=True)), axes, base.rank, (0, 0))
    if pairs is None:
        sweep.keep(operator)
    else:
        sweep.carry(
            operator, [sweep.shape(tuple([n for pair in pairs for n in pair])), sweep.value(operator.inputs[2])]
        )


def _rescale(sweep: Sweep, operator: Operator) -> None:
    """Scales of channels belong to the last axis, which must stay the last."""
    view = sweep.view(operator.inputs[0])
    per_channel: bool = operator.per_channel  # type: ignore[attr-defined]
    if per_channel and view.axes[-1] != view.base.rank - 1:
        sweep.keep(operator)
    else:
        sweep.carry(operator)


def _broadcast(sweep: Sweep, operator: Operator, count: int = 2) -> None:
    """Elementwise operators of ``count`` operands: all in the arrangement of one of them."""
    result = operator.outputs[0]
    if sweep.movable(result.dtype):
        sweep.lead_by(sweep.lead(operator.inputs[:count], result.shape), operator, count)
    else:
        sweep.keep(operator)


def _concat(sweep: Sweep, operator: Operator) -> None:
    lead = sweep.lead(operator.inputs, operator.outputs[0].shape)
    axis = lead.axes[operator.axis]  # type: ignore[attr-defined]
    if axis is None:
        sweep.keep(operator)
    else:
        sweep.lead_by(lead, operator, len(operator.inputs), axis=axis)


Rule = Callable[[Sweep, Operator], None]

LAYOUT: dict[type[Operator], Rule] = {
    TRANSPOSE: _transpose,
    RESHAPE: _reshape,
    tosa.IDENTITY: _identity,
    tosa.CONV2D: Sweep.linear,
    tosa.MATMUL: Sweep.product,
}
"""What happens at operators that only arrange their operand, or can do without its being arranged."""

CARRIED: dict[type[Operator], Rule] = {
    **dict.fromkeys(
        (
            tosa.ABS, tosa.BITWISE_NOT, tosa.CAST, tosa.CEIL, tosa.CLAMP, tosa.CLZ, tosa.COS, tosa.ERF, tosa.EXP,
            tosa.FLOOR, tosa.LOG, tosa.LOGICAL_NOT, tosa.NEGATE, tosa.RECIPROCAL, tosa.RSQRT, tosa.SIGMOID, tosa.SIN,
            tosa.TABLE, tosa.TANH,
        ),
        Sweep.carry,
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
"""What happens at operators that can work on the base of a view; any other one gets its operands as they are."""

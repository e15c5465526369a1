"""State of ``sink_transposes``: the new value of each old one, or a pending view."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..ir.dynamic_sizes import range_of
from ..ir.graph import Operator, Value
from ..ir.operators import TRANSPOSE
from ..ir.types import DType, Type
from ..spec import TosaSpec
from . import view_axes as ax
from .rewriter import Rewrite, rebuilt, replaced
from .view_axes import Axes, Shape


class View(NamedTuple):
    """A value that is not computed: ``base`` with its axes arranged as ``axes``.

    ``source`` has the sources of all operators that moved an axis. The operator that
    computes the view gets them all.
    """

    base: Value
    axes: Axes
    source: Any


class Views(Rewrite):
    """The new operators, and for each value of the old graph its new value or view.

    ``uses`` counts the uses of the old values.
    """

    def __init__(self, spec: TosaSpec, uses: Counter[Value]) -> None:
        super().__init__()
        self.spec = spec
        self.uses = uses
        self._views: dict[Value, View] = {}
        self._movable: dict[DType, bool] = {}

    def has_view(self, operands: Iterable[Value]) -> bool:
        """Return whether one of these old values is a view now."""
        return not self._views.keys().isdisjoint(operands)

    def keep(self, operator: Operator) -> None:
        """Append ``operator`` as it is, with its operands in their own layout.

        Operands that are views are computed first. If any operand is new, a copy of
        ``operator`` is appended.
        """
        inputs = tuple([self.value(v) for v in operator.inputs])
        if inputs == operator.inputs:
            self.operators.append(operator)
        else:
            self.put(operator, replaced(operator, inputs))

    def replace(self, old: Value, operator: Operator) -> None:
        """Replace ``old`` by the result of ``operator``, reshaped like ``old``."""
        new = self.reshape(operator.outputs[0], old.shape, operator.source)
        self.see(old, View(new, ax.plain(old.rank), None))

    def rebuild(
        self, operator: Operator, inputs: Sequence[Value], **attributes: Any
    ) -> Operator:
        """Append and return a copy of ``operator`` with other operands."""
        new = rebuilt(operator, inputs, **attributes)
        self.operators.append(new)
        return new

    def value(self, old: Value) -> Value:
        """Return the new value for ``old``; a view is computed."""
        view = self._views.get(old)
        if view is None:
            return super().value(old)
        return self.arrange(view.base, view.axes, view.source)

    def view(self, old: Value) -> View:
        """Return the view for ``old``.

        If ``old`` is no view, returns the identity view of its new value.
        """
        view = self._views.get(old)
        if view is None:
            return View(super().value(old), ax.plain(old.rank), None)
        return view

    def see(self, old: Value, view: View) -> None:
        """Note that ``old`` is ``view`` now; an identity view is noted as a value."""
        if view.axes == ax.plain(view.base.rank):
            self._values[old] = view.base
        else:
            self._views[old] = view

    def carry(
        self,
        operator: Operator,
        operands: Sequence[Value] | None = None,
        **attributes: Any,
    ) -> None:
        """Apply ``operator`` to the base of its first operand.

        Its result is a view with the same axes. ``operands`` are its other operands, or
        None for the present ones.
        """
        view = self.view(operator.inputs[0])
        result = operator.outputs[0]
        if not self.movable(result.dtype):
            return self.keep(operator)
        if operands is None:
            operands = [self.value(v) for v in operator.inputs[1:]]
        new = self.rebuild(operator, (view.base, *operands), **attributes)
        return self.see(result, view._replace(base=new.outputs[0]))

    def movable(self, dtype: DType) -> bool:
        """Return whether the target has TRANSPOSE and RESHAPE for ``dtype``.

        For example, TRANSPOSE of int32 needs the profile PRO-INT.
        """
        if dtype not in self._movable:
            value = Value(Type((1, 1), dtype))
            scratch = Rewrite()
            scratch.transpose(value, (1, 0), None)
            scratch.reshape(value, (1,), None)
            refusals = [self.spec.why_not(operator) for operator in scratch.operators]
            self._movable[dtype] = not any(refusals)
        return self._movable[dtype]

    def arrange(self, base: Value, axes: Axes, source: Any) -> Value:
        """Return the view of ``base`` as a value, by RESHAPE or TRANSPOSE."""
        shape = ax.viewed(base.shape, axes)
        if ax.ascends(ax.order(base.shape, axes)):
            return self.reshape(base, shape, source)
        if len(axes) != base.rank:
            base, axes = self._of_rank(base, axes, shape, source)
        return self.transpose(base, ax.completed(axes), source)

    def _of_rank(
        self, base: Value, axes: Axes, shape: Shape, source: Any
    ) -> tuple[Value, Axes]:
        """Return the same view of the base, reshaped to the rank of the view."""

        def place(axis_of_view: int) -> int:
            """Return the place in the base, for a sort; -1 for an axis of size 1."""
            axis = axes[axis_of_view]
            if axis is None or base.shape[axis] == 1:
                return -1
            return axis

        # the axes of the view in the order of the base, axes of size 1 first
        in_order = sorted(range(len(axes)), key=place)
        shape_in_order = tuple([shape[axis] for axis in in_order])
        reshaped = self.reshape(base, shape_in_order, source)
        return reshaped, tuple([in_order.index(axis) for axis in range(len(axes))])

    def cheapest_layout(self, operands: Sequence[Value], shape: Shape) -> View:
        """Return the view with the cheapest layout for all ``operands``.

        The result of their operator has the shape ``shape``. Constants cost nothing. If
        costs are equal, a view is preferred to a value without view, so that residual
        branches stay in the layout of their convolutions.
        """
        views = [self.view(v) for v in operands if v.constant is None]
        layouts = {(view.axes, view.base.rank): view for view in views}
        if len(layouts) == 1 and _holds(views[0], shape):
            return views[0]
        candidates: list[View] = []
        for view in layouts.values():
            is_moved = view.axes != ax.plain(view.base.rank)
            if is_moved and _holds(view, shape):
                candidates.append(view)
        candidates.append(View(operands[0], ax.plain(len(shape)), None))

        def cost(layout: View) -> float:
            """Return the cost of bringing all operands to ``layout``."""
            return sum(self._cost(view, layout) for view in views)

        return min(candidates, key=cost)

    def _cost(self, view: View, layout: View) -> float:
        """Return the cost of bringing ``view`` to ``layout``.

        It is 1 for a RESHAPE, the size for a TRANSPOSE, and inf if neither works.
        """
        base = view.base
        axes = ax.through(view.axes, layout.axes, layout.base.rank)
        if ax.ascends(ax.order(base.shape, axes)):
            needs_reshape = ax.viewed(base.shape, axes) != base.shape
            return float(needs_reshape)
        if len(axes) == base.rank:
            transpose = (TRANSPOSE, (base,), ax.completed(axes))
            if transpose in self._made:
                return 0.0
        if not self.movable(base.dtype):
            return math.inf
        least, _ = range_of(math.prod(base.shape))
        return 1.0 + least

    def in_layout(self, operand: Value, layout: View, source: Any) -> Value:
        """Return ``operand`` as a value, with its axes as in the base of ``layout``.

        ``source`` is the source of the operator that uses it, for a TRANSPOSE or
        RESHAPE that this takes.
        """
        view = self.view(operand)
        rank = layout.base.rank
        if view.axes == layout.axes and view.base.rank == rank:
            return view.base
        axes = ax.through(view.axes, layout.axes, rank)
        return self.arrange(view.base, axes, view.source or source)

    def apply_in_layout(
        self, layout: View, operator: Operator, count: int, **attributes: Any
    ) -> None:
        """Append ``operator`` with its first ``count`` operands in ``layout``.

        Other operands are computed as they are. The result of ``operator`` becomes a
        view with the axes of ``layout``.
        """
        result = operator.outputs[0]
        source = operator.source
        operands = [self.in_layout(v, layout, source) for v in operator.inputs[:count]]
        operands += [self.value(v) for v in operator.inputs[count:]]
        axes = ax.through(ax.plain(result.rank), layout.axes, layout.base.rank)
        type = Type(ax.viewed(result.shape, axes), result.dtype)
        new = rebuilt(operator, operands, (type,), **attributes)
        self.operators.append(new)
        self.see(result, layout._replace(base=new.outputs[0]))


def _holds(view: View, shape: Shape) -> bool:
    """Return whether a result of ``shape`` can have the axes of ``view``.

    Axes that the view adds must have size 1.
    """
    if None not in view.axes:
        return True
    sizes = zip(view.axes, shape, strict=True)
    return all(axis is not None or size == 1 for axis, size in sizes)

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
        """Append ``operator`` with values as operands; views are computed.

        Unchanged if its operands did not change.
        """
        inputs = tuple([self.value(v) for v in operator.inputs])
        if inputs == operator.inputs:
            self.operators.append(operator)
        else:
            new = replaced(operator, inputs)
            self.operators.append(new)
            self._values.update(zip(operator.outputs, new.outputs, strict=True))

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
        return self._values.get(old, old) if view is None else self.arrange(*view)

    def view(self, old: Value) -> View:
        """Return the view for ``old``.

        The identity view of its new value if it is no view.
        """
        view = self._views.get(old)
        return (
            View(self._values.get(old, old), ax.plain(old.rank), None)
            if view is None
            else view
        )

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
        others = (
            [self.value(v) for v in operator.inputs[1:]]
            if operands is None
            else operands
        )
        new = self.rebuild(operator, (view.base, *others), **attributes)
        return self.see(result, View(new.outputs[0], view.axes, view.source))

    def movable(self, dtype: DType) -> bool:
        """Return whether the target has TRANSPOSE and RESHAPE for ``dtype``.

        Those for int32 take PRO-INT, for example.
        """
        if dtype not in self._movable:
            value = Value(Type((1, 1), dtype))
            scratch = Rewrite()
            scratch.transpose(value, (1, 0), None)
            scratch.reshape(value, (1,), None)
            self._movable[dtype] = all(
                self.spec.why_not(operator) is None for operator in scratch.operators
            )
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
        single = [a is None or base.shape[a] == 1 for a in axes]
        # the axes of the view in the order of the base, axes of size 1 first
        in_order = sorted(range(len(axes)), key=lambda i: -1 if single[i] else axes[i])  # type: ignore[arg-type,return-value]
        reshaped = self.reshape(base, tuple([shape[i] for i in in_order]), source)
        return reshaped, tuple([in_order.index(i) for i in range(len(axes))])

    def lead(self, operands: Sequence[Value], shape: Shape) -> View:
        """Return the view with the cheapest layout for all ``operands``.

        The result of their operator has the shape ``shape``. Constants cost nothing. If
        costs are equal, a view is preferred to a value without view, so that residual
        branches stay in the layout of their convolutions.
        """
        views = [self.view(v) for v in operands if v.constant is None]
        layouts = {(v.axes, v.base.rank): v for v in views}
        if len(layouts) == 1 and _holds(views[0], shape):
            return views[0]
        candidates = [
            v
            for v in layouts.values()
            if v.axes != ax.plain(v.base.rank) and _holds(v, shape)
        ]
        candidates.append(View(operands[0], ax.plain(len(shape)), None))
        return min(candidates, key=lambda lead: sum(self._cost(v, lead) for v in views))

    def _cost(self, view: View, lead: View) -> float:
        """Return the cost of bringing ``view`` to the layout of ``lead``.

        It is 1 for a RESHAPE, the size for a TRANSPOSE, and inf if neither works.
        """
        base = view.base
        axes = ax.through(view.axes, lead.axes, lead.base.rank)
        if ax.ascends(ax.order(base.shape, axes)):
            return float(ax.viewed(base.shape, axes) != base.shape)
        if (
            len(axes) == base.rank
            and (TRANSPOSE, (base,), ax.completed(axes)) in self._made
        ):
            return 0.0
        return (
            1.0 + range_of(math.prod(base.shape))[0]
            if self.movable(base.dtype)
            else math.inf
        )

    def follow(self, operand: Value, lead: View, source: Any) -> Value:
        """Return ``operand`` as a value in the layout of the base of ``lead``.

        ``source`` is the source of the operator that uses it, for a TRANSPOSE or
        RESHAPE that this takes.
        """
        base, axes, view_source = self.view(operand)
        rank = lead.base.rank
        if axes == lead.axes and base.rank == rank:
            return base
        return self.arrange(
            base, ax.through(axes, lead.axes, rank), view_source or source
        )

    def lead_by(
        self, lead: View, operator: Operator, count: int, **attributes: Any
    ) -> None:
        """Apply ``operator`` with ``count`` operands in the layout of ``lead``.

        Its result is a view with the axes of ``lead``.
        """
        result = operator.outputs[0]
        source = operator.source
        operands = [self.follow(v, lead, source) for v in operator.inputs[:count]]
        operands += [self.value(v) for v in operator.inputs[count:]]
        arranged = ax.through(ax.plain(result.rank), lead.axes, lead.base.rank)
        type = Type(ax.viewed(result.shape, arranged), result.dtype)
        new = rebuilt(operator, operands, (type,), **attributes)
        self.operators.append(new)
        self.see(result, View(new.outputs[0], lead.axes, lead.source))


def _holds(view: View, shape: Shape) -> bool:
    """Return whether a result of ``shape`` can have the axes of ``view``.

    Axes that the view adds must have size 1.
    """
    return None not in view.axes or all(
        axis is not None or size == 1
        for axis, size in zip(view.axes, shape, strict=True)
    )

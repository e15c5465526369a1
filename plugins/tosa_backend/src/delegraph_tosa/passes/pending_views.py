"""State of ``sink_transposes``: the new value for each old value, or a pending view.

A pending view is a TRANSPOSE or RESHAPE that is not applied yet (``view_axes``).
"""

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
from .rewriter import Rewrite, rebuilt, with_operands
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
        self._transposable: dict[DType, bool] = {}

    def has_view(self, operands: Iterable[Value]) -> bool:
        """Return whether one of these old values is a view now."""
        return not self._views.keys().isdisjoint(operands)

    def keep(self, operator: Operator) -> None:
        """Append ``operator`` with the layout that it has in the old graph.

        Operands that are views are computed first. If any operand is new, a copy of
        ``operator`` is appended.
        """
        inputs = tuple([self.value(v) for v in operator.inputs])
        if inputs == operator.inputs:
            self.operators.append(operator)
        else:
            self.put(operator, with_operands(operator, inputs))

    def replace(self, old: Value, operator: Operator) -> None:
        """Replace ``old`` by the result of ``operator``, reshaped to its shape."""
        new = self.reshape(operator.outputs[0], old.shape, operator.source)
        self.note_view(old, View(new, ax.identity(old.rank), None))

    def append_copy(
        self, operator: Operator, inputs: Sequence[Value], **attributes: Any
    ) -> Operator:
        """Append and return a copy of ``operator`` with operands of other types."""
        new = rebuilt(operator, inputs, **attributes)
        self.operators.append(new)
        return new

    def value(self, old: Value) -> Value:
        """Return the new value for ``old``. If ``old`` is a view, it is computed."""
        view = self._views.get(old)
        if view is None:
            return super().value(old)
        return self.compute_view(view.base, view.axes, view.source)

    def view(self, old: Value) -> View:
        """Return the view for ``old``.

        If ``old`` is no view, returns the identity view of its new value.
        """
        view = self._views.get(old)
        if view is None:
            return View(super().value(old), ax.identity(old.rank), None)
        return view

    def note_view(self, old: Value, view: View) -> None:
        """Replace ``old`` by ``view``; by its base if it is the identity view."""
        if view.axes == ax.identity(view.base.rank):
            self._values[old] = view.base
        else:
            self._views[old] = view

    def apply_to_base(
        self,
        operator: Operator,
        operands: Sequence[Value] | None = None,
        **attributes: Any,
    ) -> None:
        """Apply ``operator`` to the base of its first operand, a view.

        Its result becomes a view with the same axes. ``operands`` replace its other
        operands, and ``attributes`` its attributes. If the target cannot transpose the
        result, the operator is kept.
        """
        view = self.view(operator.inputs[0])
        result = operator.outputs[0]
        if not self.can_transpose(result.dtype):
            return self.keep(operator)
        if operands is None:
            operands = [self.value(v) for v in operator.inputs[1:]]
        new = self.append_copy(operator, (view.base, *operands), **attributes)
        return self.note_view(result, view._replace(base=new.outputs[0]))

    def can_transpose(self, dtype: DType) -> bool:
        """Return whether the target has TRANSPOSE and RESHAPE for ``dtype``.

        For example, TRANSPOSE of int32 needs the profile PRO-INT.
        """
        if dtype not in self._transposable:
            value = Value(Type((1, 1), dtype))
            scratch = Rewrite()
            scratch.transpose(value, (1, 0), None)
            scratch.reshape(value, (1,), None)
            refusals = [self.spec.why_not(operator) for operator in scratch.operators]
            self._transposable[dtype] = not any(refusals)
        return self._transposable[dtype]

    def compute_view(self, base: Value, axes: Axes, source: Any) -> Value:
        """Return the view of ``base`` as a value, by RESHAPE or TRANSPOSE.

        Both may be necessary if the view has another rank than the base.
        """
        shape = ax.view_shape(base.shape, axes)
        if ax.is_reshape(base.shape, axes):
            return self.reshape(base, shape, source)
        if len(axes) != base.rank:
            base, axes = self._with_rank_of_view(base, axes, shape, source)
        return self.transpose(base, ax.as_permutation(axes), source)

    def _with_rank_of_view(
        self, base: Value, axes: Axes, shape: Shape, source: Any
    ) -> tuple[Value, Axes]:
        """Return the base, reshaped to the rank of the view, and the view's axes in it.

        ``shape`` is the shape of the view. For example, the base [H,W] with the view
        (1,None,0) becomes the base [1,H,W] with the view (2,0,1).
        """

        def axis_of_base(axis_of_view: int) -> int:
            """Return the axis of the base, for a sort; -1 for an axis of size 1."""
            axis = axes[axis_of_view]
            if axis is None or base.shape[axis] == 1:
                return -1
            return axis

        # the axes of the view in the order of the base, axes of size 1 first
        in_order = sorted(range(len(axes)), key=axis_of_base)
        shape_in_order = tuple([shape[axis] for axis in in_order])
        reshaped = self.reshape(base, shape_in_order, source)
        return reshaped, tuple([in_order.index(axis) for axis in range(len(axes))])

    def cheapest_layout(self, operands: Sequence[Value], shape: Shape) -> View:
        """Return the view with the cheapest layout for an operator on ``operands``.

        The result of the operator has the shape ``shape``. Constants cost nothing. If
        costs are equal, a view is preferred to the identity, so that residual branches
        stay in the layout of their convolutions.
        """
        views = [self.view(v) for v in operands if v.constant is None]
        layouts = {(view.axes, view.base.rank): view for view in views}
        if len(layouts) == 1 and _can_have_layout(shape, views[0]):
            return views[0]
        candidates: list[View] = []
        for view in layouts.values():
            is_identity = view.axes == ax.identity(view.base.rank)
            if not is_identity and _can_have_layout(shape, view):
                candidates.append(view)
        candidates.append(View(operands[0], ax.identity(len(shape)), None))

        def cost(layout: View) -> float:
            """Return the cost of bringing all operands to ``layout``."""
            return sum(self._cost(view, layout) for view in views)

        return min(candidates, key=cost)

    def _cost(self, view: View, layout: View) -> float:
        """Return the cost of bringing ``view`` to ``layout``.

        It is 1 for a RESHAPE, the size for a TRANSPOSE, and inf if neither works.
        """
        base = view.base
        axes = ax.axes_in_layout(view.axes, layout.axes, layout.base.rank)
        if ax.is_reshape(base.shape, axes):
            needs_reshape = ax.view_shape(base.shape, axes) != base.shape
            return float(needs_reshape)
        if len(axes) == base.rank:
            transpose = (TRANSPOSE, (base,), ax.as_permutation(axes))
            if transpose in self._made:  # another operator has computed it
                return 0.0
        if not self.can_transpose(base.dtype):
            return math.inf
        least, _ = range_of(math.prod(base.shape))
        return 1.0 + least

    def in_layout(self, operand: Value, layout: View, source: Any) -> Value:
        """Return ``operand`` as a value, with its axes as in the base of ``layout``.

        ``source`` is the source of the operator that reads it. A new TRANSPOSE or
        RESHAPE gets it if ``operand`` is no view with a source of its own.
        """
        view = self.view(operand)
        rank = layout.base.rank
        if view.axes == layout.axes and view.base.rank == rank:
            return view.base
        axes = ax.axes_in_layout(view.axes, layout.axes, rank)
        return self.compute_view(view.base, axes, view.source or source)

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
        axes = ax.axes_in_layout(
            ax.identity(result.rank), layout.axes, layout.base.rank
        )
        type = Type(ax.view_shape(result.shape, axes), result.dtype)
        new = rebuilt(operator, operands, (type,), **attributes)
        self.operators.append(new)
        self.note_view(result, layout._replace(base=new.outputs[0]))


def _can_have_layout(shape: Shape, layout: View) -> bool:
    """Return whether a result of ``shape`` can be a view with the axes of ``layout``.

    It must have size 1 along each axis that ``layout`` adds.
    """
    sizes = zip(layout.axes, shape, strict=True)
    return all(axis is not None or size == 1 for axis, size in sizes)

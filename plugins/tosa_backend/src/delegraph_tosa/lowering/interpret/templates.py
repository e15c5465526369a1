"""Templates: equal calls are lowered once, and their operators copied.

A rule with operands of floats and bools reads only their types, which of them are
constant, and its other arguments. So for equal arguments it makes the same operators.
Networks repeat few calls: of the 249 calls of ViT-B/16, 20
differ. Copying takes a fifth of the time of a rule with its type inference and checks.
All lowerings of a process share templates, and so do the support check and the
lowering. Templates hold types only, no weights.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from torch.fx import Node

from ...ir.graph import Array, Deferred, Entries, Folded, Literal, Operator, Value
from ...ir.types import FLOATS, DType
from ...spec import TosaSpec
from ..arguments import map_values
from ..builder import Tosa
from ..registry import Result, Rule, apply
from ..torch_values.tensor_types import refused

COPIED = FLOATS | {DType.BOOL}
"""Types of operands that have templates.

Rules also read the ranges of integers and the entries of shapes.
"""
MOST = 4096
"""The most templates of a target. If one more is made, all others are dropped."""


def _refuse_reading() -> Array:
    """Raise Unsupported, in place of reading the elements of a constant."""
    raise refused("a rule read the elements of a constant")


ABSENT = Deferred(_refuse_reading)
"""A constant without elements: a rule that reads them raises Unsupported."""


class Template:
    """The operators that a rule made for some operands, to be copied for others."""

    def __init__(self, operands: Iterable[Value], t: Tosa, result: Result) -> None:
        """Collect the operators that depend on ``operands``, which a copy must repeat.

        ``t`` is the builder on which the rule ran, ``result`` is the rule's result.
        """
        self._operands = list(operands)
        self.result = result
        self._depends: dict[Value, bool] = dict.fromkeys(self._operands, True)
        """Value of the template -> whether it depends on the operands."""
        self._operators: list[tuple[Operator, str]] = []
        """(operator, its attributes as text), in the order of computation."""
        self.is_usable = True
        """Whether copies are right: results have ``COPIED`` types and are not lazy."""
        for operator in t.operators:
            for value in operator.inputs:
                self._visit(value)
            self._add(operator)
        results = result if isinstance(result, tuple) else (result,)
        for returned in results:
            if returned is not None:
                self._visit(returned)
                # a lazy value has more than its type
                self.is_usable &= type(returned) is Value
        # shapes and numbers: a copy takes the equal literals of its own builder, if
        # there are any
        self._literals = {key: v for key, v in t.literals() if v in self._depends}

    def _visit(self, value: Value) -> None:
        """Note in ``_depends`` whether ``value`` depends on the operands.

        If an operator on the operands was folded to ``value``, adds this operator: it
        is not in ``t.operators``. Sets ``is_usable`` to False if a copy could not make
        ``value`` again, such as elements read from a weight.
        """
        if value in self._depends:
            return
        constant = value.constant
        if isinstance(constant, Folded):
            folded = constant.operator
            for operand in folded.inputs:
                self._visit(operand)
            if any([self._depends[operand] for operand in folded.inputs]):
                # this marks its results, of which ``value`` is one
                self._add(folded)
        elif not isinstance(constant, Literal):
            # a shape with sizes of the operands can be made again
            self.is_usable &= isinstance(value.producer, Entries)
        self._depends.setdefault(value, False)

    def _add(self, operator: Operator) -> None:
        """Add ``operator``, with results that depend on operands, for copies to repeat.

        Sets ``is_usable`` to False for a branch or a loop, and for results of a type
        that is not in COPIED.
        """
        attributes = {
            k: v for k, v in operator.__dict__.items() if k in operator.attributes
        }
        self._operators.append((operator, repr(attributes)))
        if operator.has_graphs:
            self.is_usable = False
        for value in operator.outputs:
            self._depends[value] = True
            if value.dtype not in COPIED:
                self.is_usable = False

    def copy(self, t: Tosa, operands: Iterable[Value]) -> Result:
        """Return the result of the same call on other ``operands`` of equal types.

        Its operators are emitted by ``t``.
        """
        # value of the template -> value of the copy; a value that is missing is shared
        # by both
        new = dict(zip(self._operands, operands, strict=True))
        for key, value in self._literals.items():
            new[value] = t.intern(key, value)
        for old, attributes in self._operators:
            inputs = tuple([new.get(v, v) for v in old.inputs])
            outputs = t.copied(old, attributes, inputs)
            new.update(zip(old.outputs, outputs, strict=True))
        return self._result(new)

    def outline(self, operands: Iterable[Value]) -> Result:
        """Return the template's own result, or ``operands`` that the rule returned."""
        return self._result(dict(zip(self._operands, operands, strict=True)))

    def _result(self, new: Mapping[Value, Value]) -> Result:
        """Return the result, with ``new`` values in place of the template's.

        A result that is not lowered stays None.
        """
        if isinstance(self.result, tuple):
            return tuple([None if v is None else new.get(v, v) for v in self.result])
        if self.result is None:
            return None
        return new.get(self.result, self.result)


class Templates:
    """All templates for one target."""

    def __init__(self, spec: TosaSpec) -> None:
        """Create a collection without templates, for the target ``spec``."""
        self._spec = spec
        self._known: dict[Hashable, Template] = {}

    def apply(self, t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
        """Return the result of a call, copied from its template or made by its rule."""
        template, operands = self._template_for(rule, node, arguments)
        if template is None:
            return apply(t, rule, node, arguments)
        return template.copy(t, operands)

    def outline(self, t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
        """Return a result with the types of the result of ``apply``.

        The support check needs no more. If the call has a template, this is the
        template's own result, and no operators are copied. If the rule returns an
        operand, the result is the operand of this call.
        """
        template, operands = self._template_for(rule, node, arguments)
        if template is None:
            return apply(t, rule, node, arguments)
        return template.outline(operands)

    def _template_for(
        self, rule: Rule, node: Node, arguments: list[Any]
    ) -> tuple[Template | None, list[Value]]:
        """Return the template for a call, made if it is new, and the call's operands.

        The template is None if the call cannot have one.
        """
        # operand -> its number: 0, 1, ..; ``_key`` adds them
        numbers: dict[Value, int] = {}
        key = (rule.function, *[_key(a, numbers) for a in arguments])
        operands = list(numbers)
        if not all(_is_known_by_type(value) for value in operands):
            return None, operands
        template = self._known.get(key)
        if template is None:
            template = self._make(rule, node, arguments, operands)
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = template
        if not template.is_usable:
            return None, operands
        return template, operands

    def _make(
        self, rule: Rule, node: Node, arguments: list[Any], operands: Sequence[Value]
    ) -> Template:
        """Make a template by running the rule on new values of the operands' types.

        Constants are ABSENT.
        """
        stand_ins = {}
        for value in operands:
            constant = None if value.constant is None else ABSENT
            stand_ins[value] = Value(value.type, constant)
        t = Tosa(self._spec)
        replaced = [map_values(a, stand_ins.__getitem__) for a in arguments]
        result = apply(t, rule, node, replaced)
        return Template(stand_ins.values(), t, result)


@lru_cache(maxsize=8)
def templates_for(spec: TosaSpec) -> Templates:
    """Return the templates that all lowerings for ``spec`` share.

    If two threads make the same template, no harm is done.
    """
    return Templates(spec)


def _is_known_by_type(value: Value) -> bool:
    """Return whether a rule reads nothing of ``value`` but its type.

    It may read a lazy value's kind, or the range of floats (``saturation``).
    """
    has_range = value.dtype in FLOATS and value.range is not None
    return type(value) is Value and value.dtype in COPIED and not has_range


def _key(argument: Any, numbers: dict[Value, int]) -> Hashable:
    """Return an argument as part of a template's key.

    Operands are numbered in ``numbers``, so that ``x * x`` and ``x * y`` differ. A
    Python number has its type and text in the key: in Python 1, 1.0 and True are equal,
    and 0.0 and -0.0, but not for rules.
    """
    if isinstance(argument, Value):
        number = numbers.setdefault(argument, len(numbers))
        return argument.type, argument.constant is None, number
    if isinstance(argument, (list, tuple)):
        return tuple([_key(a, numbers) for a in argument])
    if isinstance(argument, float):
        return float, repr(argument)
    return type(argument), argument

"""Calls that are alike are lowered once: what a rule makes of their types is kept, and copied for each of them.

A rule sees types, other arguments, and which operands are constant; of floats and truth values no more is known. So it
makes the same operators of equal ones, and networks repeat few: of the 249 calls of ViT-B/16, 20 differ. The support
check and the lowering share them, and so do all lowerings of a process. A copy takes a fifth of the time of a rule with
its type inference and checks. Templates hold types only, no weight of any model.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from torch.fx import Node

from ...ir.graph import Array, Deferred, Entries, Folded, Literal, Operator, Value
from ...ir.types import FLOATS, DType
from ...spec import TosaSpec
from ..builder import Tosa
from ..registry import Result, Rule, apply
from ..torch_values.types import refused

COPIED = FLOATS | {DType.BOOL}
"""Of integers and shapes more is known than their types: ranges, entries."""
MOST = 4096
"""Templates that are kept; the sweeps of the tests meet more."""


def _nothing() -> Array:
    raise refused("a rule read the elements of a constant")


ABSENT = Deferred(_nothing)
"""Stands for a constant of which nothing is known but its type."""


class Template:
    """What a rule makes of ``operands``: the operators of ``t``, folded ones too, and the ``result``."""

    def __init__(self, operands: Iterable[Value], t: Tosa, result: Result) -> None:
        self._operands, self.result = list(operands), result
        self._made: dict[Value, bool] = dict.fromkeys(self._operands, True)
        self._operators: list[tuple[Operator, str]] = []
        """In order, each with its attributes as text, by which ``Tosa`` finds a folded one that it has."""
        self.is_usable = True
        """Whether what it makes are floats and truth values, too."""
        for operator in t.operators:
            for value in operator.inputs:
                self._is_made(value)
            self._add(operator)
        for found in result if isinstance(result, tuple) else (result,):
            if found is not None:
                self._is_made(found)
                self.is_usable &= type(found) is Value  # a lazy value knows more than its type
        self._literals = {key: v for key, v in t.literals() if v in self._made}

    def _is_made(self, value: Value) -> bool:
        """Whether ``value`` depends on the operands; the folded operators that make it so are added."""
        if value not in self._made:
            constant, depends = value.constant, False
            if isinstance(constant, Folded):
                depends = any([self._is_made(v) for v in constant.operator.inputs])
            elif not isinstance(constant, Literal) and not isinstance(value.producer, Entries):
                self.is_usable = False
            if depends and value not in self._made:
                self._add(constant.operator)  # type: ignore[union-attr]
            self._made.setdefault(value, False)
        return self._made[value]

    def _add(self, operator: Operator) -> None:
        given = {k: v for k, v in operator.__dict__.items() if k in operator.attributes}
        self._operators.append((operator, repr(given)))
        self._made.update(dict.fromkeys(operator.outputs, True))
        if operator.has_graphs or not all(v.dtype in COPIED for v in operator.outputs):
            self.is_usable = False

    def copy(self, t: Tosa, operands: Iterable[Value]) -> Result:
        """The same of other ``operands``, of equal types; operators are appended to those of ``t``."""
        new = dict(zip(self._operands, operands, strict=True))
        new.update([(value, t.intern(key, value)) for key, value in self._literals.items()])
        for old, attributes in self._operators:
            outputs = t.copied(old, attributes, tuple([new.get(v, v) for v in old.inputs]))
            new.update(zip(old.outputs, outputs, strict=True))
        if isinstance(self.result, tuple):
            return tuple([v and new.get(v, v) for v in self.result])
        return self.result and new.get(self.result, self.result)


class Templates:
    """The templates for a target."""

    def __init__(self, spec: TosaSpec) -> None:
        self._spec = spec
        self._known: dict[Hashable, Template] = {}

    def apply(self, t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
        """As ``registry.apply``."""
        operands: dict[Value, int] = {}
        template = self._find(rule, node, arguments, operands)
        return template.copy(t, operands) if template else apply(t, rule, node, arguments)

    def outline(self, t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
        """A result of which only the types and what is constant are those of ``apply``."""
        template = self._find(rule, node, arguments, {})
        return template.result if template else apply(t, rule, node, arguments)

    def _find(self, rule: Rule, node: Node, arguments: list[Any], operands: dict[Value, int]) -> Template | None:
        """The template for a call, and its ``operands``; None if there can be none."""
        key = (rule.function, *[_key(a, operands) for a in arguments])
        for value in operands:
            known = value.dtype in FLOATS and value.range is not None
            if known or value.type.dtype not in COPIED or type(value) is not Value:
                return None
        template = self._known.get(key)
        if template is None:
            template = self._make(rule, node, arguments, list(operands))
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = template
        return template if template.is_usable else None

    def _make(self, rule: Rule, node: Node, arguments: list[Any], operands: Sequence[Value]) -> Template:
        stand_ins = {v: Value(v.type, None if v.constant is None else ABSENT) for v in operands}
        t = Tosa(self._spec)
        result = apply(t, rule, node, [_replaced(a, stand_ins) for a in arguments])
        return Template(stand_ins.values(), t, result)


@lru_cache(maxsize=8)
def templates_for(spec: TosaSpec) -> Templates:
    """The templates that all lowerings for ``spec`` share; threads may make one twice, to the same effect."""
    return Templates(spec)


def _key(argument: Any, operands: dict[Value, int]) -> Hashable:
    """What a rule may see of an argument, and which operands are one value, as in ``x * x``.

    Python compares 1, 1.0 and True equal, and 0.0 and -0.0; rules do not.
    """
    if isinstance(argument, Value):
        return argument.type, argument.constant is None, operands.setdefault(argument, len(operands))
    if isinstance(argument, (list, tuple)):
        return tuple([_key(a, operands) for a in argument])
    return type(argument), repr(argument) if isinstance(argument, float) else argument


def _replaced(argument: Any, stand_ins: dict[Value, Value]) -> Any:
    if isinstance(argument, Value):
        return stand_ins[argument]
    if isinstance(argument, (list, tuple)) and not hasattr(argument, "_fields"):
        return [_replaced(a, stand_ins) for a in argument]
    return argument

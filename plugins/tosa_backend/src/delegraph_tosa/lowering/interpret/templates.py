"""Templates: calls that are alike are lowered once, and the operators are copied for each of them.

A rule sees the types of its operands, which of them are constant, and its other arguments; of floats and truth values
nothing more is known. So for equal arguments it makes the same operators, and networks repeat a few calls: of the 249
of ViT-B/16, 20 differ. The support check and the lowering share the templates, and so do all lowerings of a process. To
copy takes a fifth of the time of a rule with its type inference and checks. Templates hold types only, no weight of any
model.
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
"""Types of operands that have templates. Of integers and shapes rules know more than the type: ranges, entries."""
MOST = 4096
"""How many templates are kept for a target before all are dropped; the sweeps of the tests make more."""


def _refuse_reading() -> Array:
    """Stands in for the elements of a constant: raises Unsupported."""
    raise refused("a rule read the elements of a constant")


ABSENT = Deferred(_refuse_reading)
"""The constant of which only the type is known; a rule that reads its elements is refused."""


class Template:
    """The operators that a rule made of ``operands``, kept to be made again of others.

    ``t`` is the builder on which the rule ran, ``result`` what the rule returned.
    """

    def __init__(self, operands: Iterable[Value], t: Tosa, result: Result) -> None:
        """Collect the operators that depend on the operands.

        Everything else, such as a literal 0, is shared by all copies.
        """
        self._operands, self.result = list(operands), result
        self._depends: dict[Value, bool] = dict.fromkeys(self._operands, True)
        self._operators: list[tuple[Operator, str]] = []
        """In the order in which they compute, each with its attributes as text (which identify a folded one)."""
        self.is_usable = True
        """Whether copies are right: all that is made is of ``COPIED`` types, and neither lazy nor a branch or loop."""
        for operator in t.operators:
            for value in operator.inputs:
                self._depends_on_operands(value)
            self._add(operator)
        for found in result if isinstance(result, tuple) else (result,):
            if found is not None:
                self._depends_on_operands(found)
                # a lazy value knows more than its type
                self.is_usable &= type(found) is Value
        # shapes and numbers of the rule, which a copy takes from its own builder if that has them
        self._literals = {key: v for key, v in t.literals() if v in self._depends}

    def _depends_on_operands(self, value: Value) -> bool:
        """Whether ``value`` depends on the operands.

        Folded operators in between, which ``t.operators`` lacks, are added.
        """
        if value not in self._depends:
            constant, depends = value.constant, False
            if isinstance(constant, Folded):
                depends = any([self._depends_on_operands(v) for v in constant.operator.inputs])
            # neither an operand, folded, nor a number: a copy could not tell where it comes from
            elif not isinstance(constant, Literal) and not isinstance(value.producer, Entries):
                self.is_usable = False
            if depends and value not in self._depends:
                self._add(constant.operator)  # type: ignore[union-attr]
            self._depends.setdefault(value, False)
        return self._depends[value]

    def _add(self, operator: Operator) -> None:
        """Keep ``operator``, whose results depend on the operands."""
        given = {k: v for k, v in operator.__dict__.items() if k in operator.attributes}
        self._operators.append((operator, repr(given)))
        self._depends.update(dict.fromkeys(operator.outputs, True))
        if operator.has_graphs or not all(v.dtype in COPIED for v in operator.outputs):
            self.is_usable = False

    def copy(self, t: Tosa, operands: Iterable[Value]) -> Result:
        """The result of the same call on other ``operands`` of equal types; its operators are emitted by ``t``."""
        new = dict(zip(self._operands, operands, strict=True))
        new.update([(value, t.intern(key, value)) for key, value in self._literals.items()])
        for old, attributes in self._operators:
            outputs = t.copied(old, attributes, tuple([new.get(v, v) for v in old.inputs]))
            new.update(zip(old.outputs, outputs, strict=True))
        if isinstance(self.result, tuple):
            return tuple([v and new.get(v, v) for v in self.result])
        return self.result and new.get(self.result, self.result)


class Templates:
    """All templates for one target."""

    def __init__(self, spec: TosaSpec) -> None:
        self._spec = spec
        self._known: dict[Hashable, Template] = {}

    def apply(self, t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
        """The result of a call: copied from a template, or made by the rule where there can be none."""
        operands: dict[Value, int] = {}
        template = self._find(rule, node, arguments, operands)
        return template.copy(t, operands) if template else apply(t, rule, node, arguments)

    def outline(self, t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
        """A result of the same types as that of ``apply``, for a support check.

        No operators are made if there is a template.
        """
        template = self._find(rule, node, arguments, {})
        return template.result if template else apply(t, rule, node, arguments)

    def _find(self, rule: Rule, node: Node, arguments: list[Any], operands: dict[Value, int]) -> Template | None:
        """The template for a call, made if it is new; None if calls like it have none.

        ``operands`` gets the call's operands.
        """
        key = (rule.function, *[_key(a, operands) for a in arguments])
        for value in operands:
            # rules use what is known beyond the type: a range, or what a lazy value stands for
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
        """Run the rule on stand-ins for the operands, and keep what it makes."""
        stand_ins = {v: Value(v.type, None if v.constant is None else ABSENT) for v in operands}
        t = Tosa(self._spec)
        result = apply(t, rule, node, [_replaced(a, stand_ins) for a in arguments])
        return Template(stand_ins.values(), t, result)


@lru_cache(maxsize=8)
def templates_for(spec: TosaSpec) -> Templates:
    """The templates that all lowerings for ``spec`` share.

    Two threads may make the same one twice, which does no harm.
    """
    return Templates(spec)


def _key(argument: Any, operands: dict[Value, int]) -> Hashable:
    """What a rule may see of an argument, as a key; operands are numbered, so that ``x * x`` and ``x * y`` differ.

    Numbers have their type and text in it: Python takes 1, 1.0 and True for equal, and 0.0 and -0.0; rules do not.
    """
    if isinstance(argument, Value):
        return argument.type, argument.constant is None, operands.setdefault(argument, len(operands))
    if isinstance(argument, (list, tuple)):
        return tuple([_key(a, operands) for a in argument])
    return type(argument), repr(argument) if isinstance(argument, float) else argument


def _replaced(argument: Any, stand_ins: dict[Value, Value]) -> Any:
    """An argument with each value replaced by its stand-in."""
    if isinstance(argument, Value):
        return stand_ins[argument]
    if isinstance(argument, (list, tuple)) and not hasattr(argument, "_fields"):
        return [_replaced(a, stand_ins) for a in argument]
    return argument

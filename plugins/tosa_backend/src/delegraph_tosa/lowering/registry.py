"""The registry: ``@lowers(aten.relu.default)`` makes a function the rule of an operator.

A rule is the support check, the type rule and the lowering at once. Its parameters are ``t`` and then those of the ATen
schema, by name; tensors arrive as ``Value``, everything else as Python values with the schema's defaults. A tensor that
is annotated as ``Type`` arrives as its type: the rule does not read its elements, and they need not be there. It
returns a Value, or a tuple where the schema returns several (None for a result that is not lowered). It is pure: it
sees types and ranges, which operands are constant, the other arguments and the target ``t.spec``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from delegraph.errors import InternalError
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from ..ir.graph import Undecided, Value
from ..ir.types import DType, Type
from .builder import Tosa
from .ranges.indexes import Bound
from .ranges.ranges import Range
from .short_floats import apply_rounding_once
from .torch_values.hints import no_rule, undecided
from .torch_values.sizes import is_empty_tensor, shape_of_tensor
from .torch_values.types import refused, type_of

F = TypeVar("F", bound=Callable[..., Any])

Result = Value | tuple[Value | None, ...] | None
"""What a rule makes: a value, several, or nothing."""


class Rule(NamedTuple):
    """A rule with the names and defaults of the schema's arguments, read once.

    ``types``: positions of the tensors of which it sees the type only; ``values``: of those that it sees as a Value.
    """

    function: Callable[..., Any]
    parameters: tuple[tuple[str, Any], ...]
    types: frozenset[int] = frozenset()
    values: frozenset[int] = frozenset()
    indexes: Mapping[str, Bound] = MappingProxyType({})
    """Which indices eager takes, by the name of the argument that has them (``ranges.indexes``)."""
    by_memory: bool = False
    """Whether the operator is about places in memory: its first tensor must lie there in the order of its axes."""
    skips_empty: bool = False
    """Whether tensors without elements in a list add nothing to the result: they are left out of it."""
    lazy: bool = False
    """Whether it computes nothing, but gives a ``Lazy`` value."""


RULES: dict[tuple[OpOverload, type[Value]], Rule] = {}
"""Operator and kind of its operands -> rule. Operands that are computed are of the kind ``Value``.

The other kinds are values that are not computed yet: ``Lazy`` (quantized), ``Bytes`` (uint8), ``Complex``. A rule on
them gets the arguments that were bound for the one on ``Value``, so an operator has it only beside that one.
"""


def lowers(
    *overloads: OpOverload,
    on: type[Value] = Value,
    indexes: Mapping[str, Bound] = MappingProxyType({}),
    by_memory: bool = False,
    skips_empty: bool = False,
    lazy: bool = False,
) -> Callable[[F], F]:
    """Register the rule of these operators for operands of the kind ``on``; the rest is said in ``Rule``.

    On ``Value``, its parameter names must be the schema's. On another kind it gets the same arguments, some of which
    are of that kind. A rule on ``Lazy`` may return NotImplemented to say that the call is a function of one value, for
    which there are tables. What it refuses is computed in floats if the target has them; if not, the user reads the
    reason. Raises TypeError for names that the schema does not have, ValueError for a second rule.
    """

    def register(function: F) -> F:
        for overload in overloads:
            rule = _rule(function, overload) if on is Value else Rule(function, _parameters(overload), lazy=True)
            if (overload, on) in RULES:
                raise ValueError(f"{overload} has a rule on {on.__name__} already")
            RULES[overload, on] = rule._replace(
                indexes=_named(indexes, overload),
                by_memory=by_memory,
                skips_empty=skips_empty,
                lazy=lazy or rule.lazy,
            )
        return function

    return register


def _rule(function: Callable[..., Any], overload: OpOverload) -> Rule:
    """The rule that ``function`` is, whose annotations say what it sees of each tensor."""
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    parameters = _parameters(overload)
    if names != tuple([name for name, _ in parameters]):
        raise TypeError(f"rule {function.__name__}{names} does not match {overload._schema}")
    seen = [function.__annotations__.get(name) for name in names]
    types, values = (frozenset([k for k, kind in enumerate(seen) if kind == wanted]) for wanted in ("Type", "Value"))
    return Rule(function, parameters, types, values)


def _parameters(overload: OpOverload) -> tuple[tuple[str, Any], ...]:
    return tuple([(argument.name, argument.default_value) for argument in overload._schema.arguments])


def _named(indexes: Mapping[str, Bound], overload: OpOverload) -> Mapping[str, Bound]:
    """``indexes``, whose names are arguments of the operator."""
    unknown = indexes.keys() - {argument.name for argument in overload._schema.arguments}
    if unknown:
        raise TypeError(f"indexes of {overload._schema}: it has no argument {', '.join(sorted(unknown))}")
    return indexes


def has_rule(target: Any, on: type[Value] = Value) -> bool:
    """Whether an operator has a rule for operands of that kind."""
    return (target, on) in RULES


def lowering_of(overload: OpOverload, on: type[Value] = Value) -> Callable[..., Any]:
    """The function of an operator's rule, for other rules: it is called with a builder and all of the arguments."""
    return RULES[overload, on].function


CONTROL: dict[HigherOrderOperator, Callable[[Any, Node], tuple[Value, ...]]] = {}
"""What lowers calls of higher-order operators with their subgraphs, given the interpreter around the call."""


def lowers_control(op: HigherOrderOperator) -> Callable[[F], F]:
    """Register what lowers the calls of a higher-order operator."""

    def register(function: F) -> F:
        if op in CONTROL:
            raise ValueError(f"{op} is lowered by {CONTROL[op].__name__} already")
        CONTROL[op] = function
        return function

    return register


def apply_control(outer: Any, call: Node) -> tuple[Value, ...]:
    """The results of a higher-order call for the interpreter ``outer`` around it; Unsupported says why it has none."""
    try:
        return CONTROL[call.target](outer, call)  # type: ignore[index]
    except Undecided as why:
        raise refused(undecided(str(why))) from why


def rule_of(node: Node) -> Rule:
    """The rule for ``node``; Unsupported if there is none."""
    try:
        rule = RULES[node.target, Value]  # type: ignore[index]
    except (KeyError, TypeError):
        raise refused(no_rule(node.target)) from None
    if rule.by_memory:
        _expect_order(node.args[0].meta["val"])  # type: ignore[union-attr]
    return rule


def _expect_order(val: torch.Tensor) -> None:
    if not (val.is_contiguous() and val.storage_offset() == 0):
        order = f"strides {list(val.stride())} and offset {val.storage_offset()}"
        raise refused(f"it is about places in memory, and its input lies there with {order}; TOSA has no strides")


def bind(rule: Rule, node: Node, value_of: Callable[[Node], Any], type_of_operand: Callable[[Node], Type]) -> list[Any]:
    """The rule's arguments in the schema's order: nodes as values, what is not given as the schema's default."""
    arguments = [
        type_of_operand(a) if k in rule.types else _bound(a, rule, node, value_of)  # type: ignore[arg-type]
        for k, a in enumerate(node.args)
    ]
    for name, default in rule.parameters[len(arguments) :]:
        arguments.append(_bound(node.kwargs[name], rule, node, value_of) if name in node.kwargs else default)
    for k in rule.values:
        if isinstance(arguments[k], (int, float)):  # so torch writes out the numbers of a vmap
            raise refused(f"its operand {rule.parameters[k][0]} is the number {arguments[k]}, not a tensor")
    return arguments


def indexes_of(node: Node) -> list[tuple[Any, Range]]:
    """The arguments of a call that are indices, each with the range outside of which eager raises."""
    rule = RULES.get((node.target, Value))  # type: ignore[arg-type]
    if rule is None or not rule.indexes:
        return []
    positions = {name: k for k, (name, _) in enumerate(rule.parameters)}

    def argument(name: str) -> Any:
        position = positions[name]
        return node.args[position] if position < len(node.args) else node.kwargs.get(name, rule.parameters[position][1])

    found: list[tuple[Any, Range]] = []
    for name, bound in rule.indexes.items():
        indexes, range = argument(name), bound(argument)
        if isinstance(range, list):
            found += zip(indexes, range, strict=False)
        elif range is not None:
            found.append((indexes, range))
    return found


def _bound(argument: Any, rule: Rule, node: Node, value_of: Callable[[Node], Any]) -> Any:
    if isinstance(argument, Node):
        return value_of(argument)
    if isinstance(argument, (list, tuple)):
        listed = [a for a in argument if not _adds_nothing(a, node)] if rule.skips_empty else argument
        return [_bound(a, rule, node, value_of) for a in listed]
    return argument


def _adds_nothing(part: Any, whole: Node) -> bool:
    """Whether ``part`` has no elements, and not an element type that would change the result's."""
    return isinstance(part, Node) and is_empty(part) and part.meta["val"].dtype is whole.meta["val"].dtype


def is_empty(node: Node) -> bool:
    """Whether ``node`` is a tensor without elements, which TOSA does not have."""
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and is_empty_tensor(val)


def apply(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """The rule's result, whose types must be the node's."""
    return checked(rule, node, lambda: apply_rounding_once(t, rule.function, arguments, node.meta.get("val")))


def checked(rule: Rule, node: Node, call: Callable[[], Any]) -> Result:
    """What ``call`` makes of a node; Unsupported before it does if TOSA has no such types."""
    val: Any = node.meta.get("val")
    several = isinstance(val, (tuple, list))
    wanted = None if several or val is None else _result_type(rule, val)
    try:
        result = call()
    except Undecided as why:
        raise refused(undecided(str(why))) from why
    if not several:
        _check(rule, node, result, wanted)
        return result  # type: ignore[no-any-return]
    results = tuple(result)
    if len(results) != len(val):
        raise _defect(rule, node, f"{len(results)} results", f"{len(val)}")
    for value, fake in zip(results, val, strict=True):
        if value is not None:
            _check(rule, node, value, type_of(fake, "the result"))
    return results


def _result_type(rule: Rule, val: Any) -> Type:
    """The type of a result; of complex numbers and uint8, which only lazy values can be, that of what they are here."""
    if isinstance(val, torch.Tensor) and val.dtype is torch.uint8:
        return type_of(val, "the result", dtype=torch.int8)
    if rule.lazy and isinstance(val, torch.Tensor) and val.dtype is torch.complex64:
        return Type(shape_of_tensor(val.shape), DType.FP32)
    return type_of(val, "the result")


def _check(rule: Rule, node: Node, value: Any, wanted: Any) -> None:
    found = None if value is None else value.type
    if found != wanted:
        if found is not None and wanted is not None and found.reconciled(wanted):
            raise refused(f"nothing proves that the sizes of {found} and of torch's result, {wanted}, are equal")
        raise _defect(rule, node, str(found), str(wanted))


def _defect(rule: Rule, node: Node, found: str, wanted: str) -> InternalError:
    name = f"{rule.function.__module__}.{rule.function.__name__}"
    return InternalError("internal", f"rule {name} made {found} of {node.target}, which returns {wanted}", node)


def is_unpacking(node: Node) -> bool:
    """Whether ``node`` takes one of several results."""
    return node.target is operator.getitem

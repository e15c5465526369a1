"""The registry: ``@lowers(aten.relu.default)`` makes a function the rule of an operator.

A rule is the support check, the type rule and the lowering at once. Its parameters are ``t``, the builder, and then
those of the ATen schema, by name. Tensors arrive as ``Value``, everything else as Python values with the schema's
defaults. A tensor that is annotated as ``Type`` arrives as its type only: the rule does not read its elements, so they
need not exist in the delegate. A rule returns a Value, or a tuple where the schema returns several results (None for a
result that is not lowered). It is pure: what it makes depends on types, ranges, which operands are constant, the other
arguments, and the target ``t.spec``.
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
"""What a rule returns: a value, a tuple of them, or None where nothing is computed."""


class Rule(NamedTuple):
    """A rule, with the names and defaults of the schema's arguments, which are read once.

    ``types`` are the positions of tensors of which the rule sees the type only, ``values`` of those that it sees as
    Value.
    """

    function: Callable[..., Any]
    parameters: tuple[tuple[str, Any], ...]
    types: frozenset[int] = frozenset()
    values: frozenset[int] = frozenset()
    indexes: Mapping[str, Bound] = MappingProxyType({})
    """For arguments that hold indices, by name: which indices eager takes (``ranges.indexes``)."""
    by_memory: bool = False
    """Whether the operator speaks of places in memory (as_strided); its first tensor must lie there contiguously."""
    skips_empty: bool = False
    """Whether tensors without elements are taken out of lists before the rule sees them.

    They add nothing to the result.
    """
    lazy: bool = False
    """Whether the rule only describes its result, as a ``Lazy`` value, and emits no operator for it."""


RULES: dict[tuple[OpOverload, type[Value]], Rule] = {}
"""(operator, kind of its operands) -> rule. Ordinary tensors, whose elements are computed, are of the kind ``Value``.

The other kinds are tensors that are not computed yet: ``Lazy`` (quantized), ``Bytes`` (uint8), ``Complex``. Calls are
bound to arguments by the rule on ``Value``, so an operator can have a rule of another kind only beside that one.
"""


def lowers(
    *overloads: OpOverload,
    on: type[Value] = Value,
    indexes: Mapping[str, Bound] = MappingProxyType({}),
    by_memory: bool = False,
    skips_empty: bool = False,
    lazy: bool = False,
) -> Callable[[F], F]:
    """Make the decorated function the rule of these operators for operands of the kind ``on``.

    The other options are fields of ``Rule``. The parameter names of a rule on ``Value`` must be the schema's. A rule on
    another kind gets the same arguments, some of which are of that kind. A rule on ``Lazy`` may return NotImplemented
    for a call that is a function of one quantized value: such calls become lookup tables. What it refuses is computed
    in floats if the target has them; if not, the user reads the reason. Raises TypeError for names that the schema does
    not have, ValueError for a second rule.
    """

    def register(function: F) -> F:
        for overload in overloads:
            rule = _rule_from(function, overload) if on is Value else Rule(function, _parameters(overload), lazy=True)
            if (overload, on) in RULES:
                raise ValueError(f"{overload} has a rule on {on.__name__} already")
            RULES[overload, on] = rule._replace(
                indexes=_expect_arguments(indexes, overload),
                by_memory=by_memory,
                skips_empty=skips_empty,
                lazy=lazy or rule.lazy,
            )
        return function

    return register


def _rule_from(function: Callable[..., Any], overload: OpOverload) -> Rule:
    """``function`` as a Rule; its annotations say whether it sees a tensor as Value or as Type only."""
    names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
    parameters = _parameters(overload)
    if names != tuple([name for name, _ in parameters]):
        raise TypeError(f"rule {function.__name__}{names} does not match {overload._schema}")
    # annotations are compared as text: no module of this package evaluates them
    seen = [function.__annotations__.get(name) for name in names]
    types, values = (frozenset([k for k, kind in enumerate(seen) if kind == wanted]) for wanted in ("Type", "Value"))
    return Rule(function, parameters, types, values)


def _parameters(overload: OpOverload) -> tuple[tuple[str, Any], ...]:
    """Name and default of each argument of the operator's schema."""
    return tuple([(argument.name, argument.default_value) for argument in overload._schema.arguments])


def _expect_arguments(indexes: Mapping[str, Bound], overload: OpOverload) -> Mapping[str, Bound]:
    """``indexes`` as they are; TypeError if one of their keys is no argument of the operator."""
    unknown = indexes.keys() - {argument.name for argument in overload._schema.arguments}
    if unknown:
        raise TypeError(f"indexes of {overload._schema}: it has no argument {', '.join(sorted(unknown))}")
    return indexes


def has_rule(target: Any, on: type[Value] = Value) -> bool:
    """Whether an operator has a rule for operands of that kind."""
    return (target, on) in RULES


def lowering_of(overload: OpOverload, on: type[Value] = Value) -> Callable[..., Any]:
    """The function that lowers an operator, for rules that build on it. It takes a builder and all of the arguments."""
    return RULES[overload, on].function


CONTROL: dict[HigherOrderOperator, Callable[[Any, Node], tuple[Value, ...]]] = {}
"""Higher-order operator (cond, while_loop, ..) -> the function that lowers its calls and their subgraphs.

It gets the interpreter of the program around the call, and the call.
"""


def lowers_control(op: HigherOrderOperator) -> Callable[[F], F]:
    """Make the decorated function the one that lowers calls of the higher-order operator ``op``."""

    def register(function: F) -> F:
        if op in CONTROL:
            raise ValueError(f"{op} is lowered by {CONTROL[op].__name__} already")
        CONTROL[op] = function
        return function

    return register


def apply_control(outer: Any, call: Node) -> tuple[Value, ...]:
    """Lower a higher-order call for ``outer``, the interpreter of the program around it.

    Unsupported says why it cannot be lowered.
    """
    try:
        return CONTROL[call.target](outer, call)  # type: ignore[index]
    except Undecided as why:
        raise refused(undecided(str(why))) from why


def rule_of(node: Node) -> Rule:
    """The rule for the call ``node``; Unsupported if its operator has none."""
    try:
        rule = RULES[node.target, Value]  # type: ignore[index]
    except (KeyError, TypeError):
        raise refused(no_rule(node.target)) from None
    if rule.by_memory:
        _expect_contiguous(node.args[0].meta["val"])  # type: ignore[union-attr]
    return rule


def _expect_contiguous(val: torch.Tensor) -> None:
    """Raise Unsupported for a tensor that does not lie in memory from its beginning in the order of its axes."""
    if not (val.is_contiguous() and val.storage_offset() == 0):
        order = f"strides {list(val.stride())} and offset {val.storage_offset()}"
        raise refused(f"it is about places in memory, and its input lies there with {order}; TOSA has no strides")


def bind(rule: Rule, node: Node, value_of: Callable[[Node], Any], type_of_operand: Callable[[Node], Type]) -> list[Any]:
    """The arguments with which ``rule`` is called for ``node``, in the schema's order.

    Where the call gives none, it is the schema's default. ``value_of`` makes the value of an operand,
    ``type_of_operand`` the type of one that the rule annotates as ``Type``.
    """
    arguments = [
        type_of_operand(a) if k in rule.types else _bound(a, rule, node, value_of)  # type: ignore[arg-type]
        for k, a in enumerate(node.args)
    ]
    for name, default in rule.parameters[len(arguments) :]:
        arguments.append(_bound(node.kwargs[name], rule, node, value_of) if name in node.kwargs else default)
    for k in rule.values:
        # torch writes a vmap over numbers that way
        if isinstance(arguments[k], (int, float)):
            raise refused(f"its operand {rule.parameters[k][0]} is the number {arguments[k]}, not a tensor")
    return arguments


def indexes_of(node: Node) -> list[tuple[Any, Range]]:
    """The arguments of the call ``node`` that hold indices, each with the range outside of which eager raises."""
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
        # the argument is a list of index tensors, one an axis, with a range for each
        if isinstance(range, list):
            found += zip(indexes, range, strict=False)
        elif range is not None:
            found.append((indexes, range))
    return found


def _bound(argument: Any, rule: Rule, node: Node, value_of: Callable[[Node], Any]) -> Any:
    """One argument of ``node`` for ``rule``: nodes become values, also those in a list; the rest stays as it is."""
    if isinstance(argument, Node):
        return value_of(argument)
    if isinstance(argument, (list, tuple)):
        listed = [a for a in argument if not _can_be_skipped(a, node)] if rule.skips_empty else argument
        return [_bound(a, rule, node, value_of) for a in listed]
    return argument


def _can_be_skipped(part: Any, whole: Node) -> bool:
    """Whether the operand ``part`` of the call ``whole`` is empty and does not promote the result's type either."""
    return isinstance(part, Node) and is_empty(part) and part.meta["val"].dtype is whole.meta["val"].dtype


def is_empty(node: Node) -> bool:
    """Whether ``node`` is a tensor without elements, which TOSA does not have."""
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and is_empty_tensor(val)


def apply(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """Call the rule; what it makes must have the types that torch recorded for ``node``."""
    return checked(rule, node, lambda: apply_rounding_once(t, rule.function, arguments, node.meta.get("val")))


def checked(rule: Rule, node: Node, call: Callable[[], Any]) -> Result:
    """What ``call`` makes for ``node``. InternalError if its types are not those that torch recorded.

    Raises Unsupported before the call if TOSA cannot express the recorded type.
    """
    val: Any = node.meta.get("val")
    # types of several results are checked afterwards: a rule may leave some out, whatever their type
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
        raise _wrong_result(rule, node, f"{len(results)} results", f"{len(val)}")
    for value, fake in zip(results, val, strict=True):
        if value is not None:
            _check(rule, node, value, type_of(fake, "the result"))
    return results


def _result_type(rule: Rule, val: Any) -> Type:
    """The type that the rule's result must have.

    uint8 and complex64, which TOSA lacks, exist in a delegate as lazy values: the type is that of what stands for them.
    """
    if isinstance(val, torch.Tensor) and val.dtype is torch.uint8:
        return type_of(val, "the result", dtype=torch.int8)
    if rule.lazy and isinstance(val, torch.Tensor) and val.dtype is torch.complex64:
        return Type(shape_of_tensor(val.shape), DType.FP32)
    return type_of(val, "the result")


def _check(rule: Rule, node: Node, value: Any, wanted: Any) -> None:
    """Raise unless ``value`` has the type ``wanted`` (None: there is no result).

    Sizes that may be equal at run time, though nothing proves it, are refused; anything else is a defect of the rule.
    """
    found = None if value is None else value.type
    if found != wanted:
        if found is not None and wanted is not None and found.reconciled(wanted):
            raise refused(f"nothing proves that the sizes of {found} and of torch's result, {wanted}, are equal")
        raise _wrong_result(rule, node, str(found), str(wanted))


def _wrong_result(rule: Rule, node: Node, found: str, wanted: str) -> InternalError:
    """The error for a rule that made something else than torch recorded."""
    name = f"{rule.function.__module__}.{rule.function.__name__}"
    return InternalError("internal", f"rule {name} made {found} of {node.target}, which returns {wanted}", node)


def is_unpacking(node: Node) -> bool:
    """Whether ``node`` picks one of the several results of a call (``operator.getitem``)."""
    return node.target is operator.getitem

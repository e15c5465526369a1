"""The registry: ``@lowers(aten.relu.default)`` makes a function the rule of an operator.

A rule is the support check, the type rule and the lowering at once. Its parameters are ``t`` and then those of the ATen
schema, by name; tensors arrive as ``Value``, everything else as Python values with the schema's defaults. A tensor that
is annotated as ``Type`` arrives as its type: the rule does not read its elements, and they need not be there. It
returns a Value, or a tuple where the schema returns several (None for a result that is not lowered). It is pure: it
sees types and ranges, which operands are constant, the other arguments and the target ``t.spec``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from delegraph.errors import InternalError
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from ..ir.graph import Undecided, Value
from ..ir.types import DType, Type
from .builder import Tosa
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
    by_memory: bool = False
    """Whether the operator is about places in memory: its first tensor must lie there in the order of its axes."""
    skips_empty: bool = False
    """Whether tensors without elements in a list add nothing to the result: they are left out of it."""
    lazy: bool = False
    """Whether it computes nothing, but gives a ``Lazy`` value."""


RULES: dict[OpOverload, Rule] = {}

INTEGER_RULES: dict[OpOverload, Callable[..., Any]] = {}
"""What operators do to quantized values (``Lazy``); those that have no such rule compute in floats."""


def lowers_quantized(*overloads: OpOverload) -> Callable[[F], F]:
    """Register the integer rule of operators that have a rule already, whose parameters it has.

    Some of its tensors are ``Lazy``, any other one is a Value. NotImplemented says that the call is a function of one
    value, for which there are tables. What the rule refuses is computed in floats, if the target has them; if not, the
    user reads the reason.
    """

    def register(function: F) -> F:
        for overload in overloads:
            if overload in INTEGER_RULES:
                raise ValueError(f"{overload} has an integer rule already")
            if overload not in RULES:
                raise TypeError(f"{overload} has no rule for floats, beside which an integer rule stands")
            INTEGER_RULES[overload] = function
        return function

    return register


def lowers(
    *overloads: OpOverload, by_memory: bool = False, skips_empty: bool = False, lazy: bool = False
) -> Callable[[F], F]:
    """Register a rule; its parameter names must be the schema's, and an operator has one rule (see ``Rule``)."""

    def register(function: F) -> F:
        names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
        annotations = [function.__annotations__.get(name) for name in names]
        types = frozenset([k for k, annotation in enumerate(annotations) if annotation == "Type"])
        values = frozenset([k for k, annotation in enumerate(annotations) if annotation == "Value"])
        for overload in overloads:
            parameters = tuple([(a.name, a.default_value) for a in overload._schema.arguments])
            if names != tuple([name for name, _ in parameters]):
                raise TypeError(f"rule {function.__name__}{names} does not match {overload._schema}")
            if overload in RULES:
                raise ValueError(f"{overload} has the rule {RULES[overload].function.__name__} already")
            RULES[overload] = Rule(function, parameters, types, values, by_memory, skips_empty, lazy)
        return function

    return register


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
        rule = RULES[node.target]  # type: ignore[index]
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

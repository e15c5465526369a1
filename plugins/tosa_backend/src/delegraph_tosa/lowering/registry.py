"""Registry of rules: ``@lowers(aten.relu.default)`` makes a function a rule.

A rule is the support check, the type rule and the lowering at once. Its parameters are
``t``, the builder, and then those of the ATen schema, by name. A rule may leave out
those of ``WITHOUT_EFFECT``, and have others with a default, so that the overloads of an
operator have one rule. Tensors are passed as ``Value``, everything else as Python
values with the schema's defaults. For a parameter annotated as ``Type``, only the type
of a tensor is passed: the rule does not read its elements, so they need not exist in
the delegate. A rule returns a Value, or a tuple if the schema has several results (None
for a result that is not lowered). A rule is pure: its operators depend only on types,
ranges, which operands are constant, the other arguments, and the target ``t.spec``.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import torch
from delegraph.errors import InternalError
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from ..ir.graph import Undecided, Value
from ..ir.types import DType, Type
from .builder import Tosa
from .ranges.border_dtypes import AS_ITSELF, BORDER_DTYPE
from .ranges.bounds import argument_of_call
from .ranges.index_bounds import Bound
from .ranges.value_ranges import Range
from .short_floats import apply_rounding_once
from .torch_values.hints import no_rule, undecided
from .torch_values.symbolic_sizes import is_empty_tensor, shape_of_tensor
from .torch_values.tensor_types import DTYPES, refused, type_of

F = TypeVar("F", bound=Callable[..., Any])

Result = Value | tuple[Value | None, ...] | None
"""The result of a rule: a value, a tuple, or None if no result is lowered."""


WITHOUT_EFFECT = frozenset(
    "layout device pin_memory memory_format non_blocking copy sparse sparse_grad"
    " scale_grad_by_freq momentum cudnn_enable cudnn_enabled implicit stable sorted"
    " compute_mode generator".split()
)
"""Arguments of ATen that do not affect lowered results. Rules may omit them."""
_MISSING = object()


class Rule(NamedTuple):
    """A rule's function, which takes all arguments of the schema in order.

    ``parameters`` are the name and default of each argument, ``types`` the positions of
    parameters annotated as Type, ``values`` those of parameters annotated as Value.
    """

    function: Callable[..., Any]
    parameters: tuple[tuple[str, Any], ...]
    types: frozenset[int] = frozenset()
    values: frozenset[int] = frozenset()
    indexes: Mapping[str, Bound] = MappingProxyType({})
    """Maps an index argument to the indices that eager accepts (``index_bounds``)."""
    by_memory: bool = False
    """Whether the operator's arguments are positions in memory (as_strided).

    Its first tensor has to be contiguous.
    """
    skips_empty: bool = False
    """Whether empty tensors are removed from lists before the rule is called."""
    lazy: bool = False
    """Whether the rule returns a ``Lazy`` value, for which it emits no operators."""


RULES: dict[tuple[OpOverload, type[Value]], Rule] = {}
"""(operator, kind of its operands) -> rule.

The kind of ordinary, computed tensors is ``Value``. The other kinds are tensors that
are not computed yet: ``Lazy`` (quantized), ``Bytes`` (uint8), ``Complex``. The rule on
``Value`` binds the arguments of all calls, so every operator with a rule on another
kind has a rule on ``Value`` too.
"""


def lowers(
    *overloads: OpOverload,
    on: type[Value] = Value,
    indexes: Mapping[str, Bound] = MappingProxyType({}),
    by_memory: bool = False,
    skips_empty: bool = False,
    lazy: bool = False,
) -> Callable[[F], F]:
    """Make the decorated function the rule of these operators on kind ``on``.

    The other options are fields of ``Rule``. A rule on another kind gets the same
    arguments, some of which are of that kind. A rule on ``Lazy`` may return
    NotImplemented for a call that is a function of one quantized value: such a call
    becomes a lookup table. A call that it refuses is computed in floats if the target
    has them. Raises TypeError for names that the schema does not have, ValueError if an
    operator has a rule on this kind already.
    """

    def register(function: F) -> F:
        """Add ``function`` to RULES for each operator in ``overloads``. Return it."""
        for overload in overloads:
            rule = _rule_from(function, overload)
            if (overload, on) in RULES:
                raise ValueError(f"{overload} has a rule on {on.__name__} already")
            RULES[overload, on] = rule._replace(
                indexes=_expect_arguments(indexes, overload),
                by_memory=by_memory,
                skips_empty=skips_empty,
                lazy=lazy or on is not Value,
            )
        return function

    return register


def _rule_from(function: Callable[..., Any], overload: OpOverload) -> Rule:
    """Return ``function`` as a Rule of ``overload``.

    The Rule takes all arguments of the schema in order. It passes them on by name, or
    in order if ``function`` has ``*args``. Raises TypeError for parameters that do not
    match the schema.
    """
    # without the first parameter, the builder
    given = list(inspect.signature(function).parameters.values())[1:]
    parameters = tuple(
        [(entry.name, entry.default_value) for entry in overload._schema.arguments]
    )
    schema = [name for name, _ in parameters]
    # annotations are strings, because all modules of this package import them from
    # __future__
    annotations = {parameter.name: parameter.annotation for parameter in given}
    types = _positions_of_kind("Type", schema, annotations)
    values = _positions_of_kind("Value", schema, annotations)
    has_star = any(entry.kind is entry.VAR_POSITIONAL for entry in given)
    if has_star or list(annotations) == schema:
        return Rule(function, parameters, types, values)
    required = {entry.name for entry in given if entry.default is entry.empty}
    can_be_taken = annotations.keys() | WITHOUT_EFFECT
    if not required <= set(schema) or not set(schema) <= can_be_taken:
        raise TypeError(
            f"rule {function.__name__}{tuple(annotations)} does not match"
            f" {overload._schema}"
        )
    positions = {name: schema.index(name) for name in annotations if name in schema}

    @wraps(function)
    def taking_all(t: Tosa, *arguments: Any) -> Any:
        """Call ``function`` by name, without the arguments that it leaves out."""
        taken = {name: arguments[k] for name, k in positions.items()}
        return function(t, **taken)

    return Rule(taking_all, parameters, types, values)


def _positions_of_kind(
    kind: str, schema: Sequence[str], annotations: Mapping[str, str]
) -> frozenset[int]:
    """Return the positions in ``schema`` of the parameters annotated as ``kind``."""
    positions = [k for k, name in enumerate(schema) if annotations.get(name) == kind]
    return frozenset(positions)


def _expect_arguments(
    indexes: Mapping[str, Bound], overload: OpOverload
) -> Mapping[str, Bound]:
    """Return ``indexes`` as it is.

    Raises TypeError if one of its keys is no argument of the operator ``overload``.
    """
    known = {argument.name for argument in overload._schema.arguments}
    unknown = indexes.keys() - known
    if unknown:
        raise TypeError(
            f"indexes of {overload._schema}: it has no argument"
            f" {', '.join(sorted(unknown))}"
        )
    return indexes


def has_rule(target: Any, on: type[Value] = Value) -> bool:
    """Return whether ``target`` has a rule for operands of the kind ``on``."""
    return (target, on) in RULES


def lowering_of(overload: OpOverload, on: type[Value] = Value) -> Callable[..., Any]:
    """Return an operator's rule function on kind ``on``, for another rule to call.

    It takes a builder and all arguments of the schema, in order.
    """
    return RULES[overload, on].function


CONTROL: dict[HigherOrderOperator, Callable[[Any, Node], tuple[Value, ...]]] = {}
"""Maps cond, while_loop, .. to the function that lowers them and their subgraphs.

Its arguments are the interpreter of the program around the call, and the call's node.
"""


def lowers_control(op: HigherOrderOperator) -> Callable[[F], F]:
    """Make the decorated function lower calls of the higher-order operator ``op``.

    Raises ValueError if a function lowers ``op`` already.
    """

    def register(function: F) -> F:
        """Add ``function`` to CONTROL for ``op``, and return it."""
        if op in CONTROL:
            raise ValueError(f"{op} is lowered by {CONTROL[op].__name__} already")
        CONTROL[op] = function
        return function

    return register


def apply_control(outer: Any, call: Node) -> tuple[Value, ...]:
    """Return the results of a higher-order call.

    ``outer`` is the interpreter of the program around it. Raises Unsupported if the
    call or one of its subgraphs cannot be lowered.
    """
    try:
        return CONTROL[call.target](outer, call)  # type: ignore[index]
    # the lowering depends on a size that is known at run time only
    except Undecided as why:
        raise refused(undecided(str(why))) from why


def rule_of(node: Node) -> Rule:
    """Return the rule on ``Value`` for the call ``node``.

    Raises Unsupported if its operator has none. Also raises Unsupported if the
    operator's arguments are positions in memory and its input is not contiguous.
    """
    try:
        rule = RULES[node.target, Value]  # type: ignore[index]
    except (KeyError, TypeError):
        raise refused(no_rule(node.target)) from None
    if rule.by_memory:
        _expect_contiguous(node.args[0].meta["val"])  # type: ignore[union-attr]
    return rule


def _expect_contiguous(val: torch.Tensor) -> None:
    """Raise Unsupported unless ``val`` is contiguous and starts its storage."""
    if not (val.is_contiguous() and val.storage_offset() == 0):
        order = f"strides {list(val.stride())} and offset {val.storage_offset()}"
        raise refused(
            f"it is about places in memory, and its input lies there with {order}; TOSA"
            " has no strides"
        )


def bind(
    rule: Rule,
    node: Node,
    value_of: Callable[[Node], Any],
    type_of_operand: Callable[[Node], Type],
) -> list[Any]:
    """Bind the arguments of ``node`` to ``rule``, in the schema's order.

    ``value_of`` returns the value of an operand, ``type_of_operand`` the type of an
    operand that the rule annotates as ``Type``. Raises Unsupported for a Python number
    in place of a tensor.
    """
    arguments: list[Any] = []
    for position, (name, default) in enumerate(rule.parameters):
        given = argument_of_call(node, position, name, default=_MISSING)
        if given is _MISSING:
            arguments.append(default)
        elif position in rule.types:
            arguments.append(type_of_operand(given))
        else:
            arguments.append(_bound(given, rule, node, value_of))
    for k in rule.values:
        # torch.vmap over numbers records a number where the schema has a tensor
        if isinstance(arguments[k], (int, float)):
            raise refused(
                f"its operand {rule.parameters[k][0]} is the number {arguments[k]}, not"
                " a tensor"
            )
    return arguments


def indexes_of(node: Node) -> list[tuple[Any, Range]]:
    """Return the index arguments of a call, each with the range that eager accepts."""
    rule = RULES.get((node.target, Value))  # type: ignore[arg-type]
    if rule is None or not rule.indexes:
        return []
    positions = {name: k for k, (name, _) in enumerate(rule.parameters)}

    def argument_of(name: str) -> Any:
        """Return the argument ``name`` of the call, or its default in the schema."""
        position = positions[name]
        _, default = rule.parameters[position]
        return argument_of_call(node, position, name, default)

    result: list[tuple[Any, Range]] = []
    for name, bound in rule.indexes.items():
        indexes = argument_of(name)
        range = bound(argument_of)
        # a list of index tensors, one for each axis, has a list of ranges
        if isinstance(range, list):
            result += zip(indexes, range, strict=False)
        elif range is not None:
            result.append((indexes, range))
    return result


def _bound(
    argument: Any, rule: Rule, node: Node, value_of: Callable[[Node], Any]
) -> Any:
    """Return an argument of ``node`` with values in place of nodes, also in lists."""
    if isinstance(argument, Node):
        return value_of(argument)
    if not isinstance(argument, (list, tuple)):
        return argument
    bound: list[Any] = []
    for part in argument:
        if not (rule.skips_empty and _can_be_skipped(part, node)):
            bound.append(_bound(part, rule, node, value_of))
    return bound


def _can_be_skipped(part: Any, call: Node) -> bool:
    """Return whether ``part`` of a list is an empty tensor of the type of the result.

    An empty tensor of another type still affects the type of the result of cat.
    """
    if not isinstance(part, Node) or not is_empty(part):
        return False
    part_dtype = part.meta["val"].dtype
    return part_dtype is call.meta["val"].dtype


def is_empty(node: Node) -> bool:
    """Return whether ``node`` is a tensor that surely has no elements.

    TOSA has no such tensors.
    """
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and is_empty_tensor(val)


def apply(t: Tosa, rule: Rule, node: Node, arguments: list[Any]) -> Result:
    """Apply the rule of ``node``, with short floats rounded once; see ``checked``."""
    val = node.meta.get("val")
    return checked(
        rule, node, lambda: apply_rounding_once(t, rule.function, arguments, val)
    )


def checked(rule: Rule, node: Node, call: Callable[[], Any]) -> Result:
    """Return the result of ``call``, which applies ``rule``.

    Checks that it has the types that torch recorded, and raises InternalError for
    others. Raises Unsupported if the rule refuses the call, and before the call if TOSA
    has no tensors of the recorded type.
    """
    val: Any = node.meta.get("val")
    # several results are checked after the call: the rule may return None for one that
    # TOSA cannot express
    several = isinstance(val, (tuple, list))
    expected: Type | None = None
    if val is not None and not several:
        expected = _result_type(rule, val)
        carried = node.meta.get(BORDER_DTYPE)
        if carried is not None and carried in AS_ITSELF:
            expected = Type(expected.shape, DTYPES[getattr(torch, carried)])
    try:
        result = call()
    # the lowering depends on a size that is known at run time only
    except Undecided as why:
        raise refused(undecided(str(why))) from why
    if not several:
        _check(rule, node, result, expected)
        return result  # type: ignore[no-any-return]
    results = tuple(result)
    if len(results) != len(val):
        raise _wrong_result(rule, node, f"{len(results)} results", f"{len(val)}")
    for value, fake in zip(results, val, strict=True):
        if value is not None:
            _check(rule, node, value, type_of(fake, "the result"))
    return results


def _result_type(rule: Rule, val: Any) -> Type:
    """Return the type that the rule's result must have, from the fake tensor ``val``.

    uint8 and complex64 are lazy values in a delegate. The type of a uint8 value is
    int8; the type of a complex value is fp32, as for all other lazy values.
    """
    if isinstance(val, torch.Tensor) and val.dtype is torch.uint8:
        return type_of(val, "the result", dtype=torch.int8)
    if rule.lazy and isinstance(val, torch.Tensor) and val.dtype is torch.complex64:
        return Type(shape_of_tensor(val.shape), DType.FP32)
    return type_of(val, "the result")


def _check(rule: Rule, node: Node, value: Any, expected: Any) -> None:
    """Raise unless ``value`` has the type ``expected``.

    Both are None if there is no result. Raises Unsupported if only sizes known at run
    time differ: they may be equal at run time. Any other difference is a defect of the
    rule, and raises InternalError.
    """
    actual = None if value is None else value.type
    if actual == expected:
        return
    if actual is not None and expected is not None and actual.reconciled(expected):
        raise refused(
            f"nothing proves that the sizes of {actual} and of torch's result,"
            f" {expected}, are equal"
        )
    raise _wrong_result(rule, node, str(actual), str(expected))


def _wrong_result(rule: Rule, node: Node, actual: str, expected: str) -> InternalError:
    """Return the error for a rule's result that differs from torch's record."""
    name = f"{rule.function.__module__}.{rule.function.__name__}"
    return InternalError(
        "internal",
        f"rule {name} made {actual} of {node.target}, which returns {expected}",
        node,
    )


def is_unpacking(node: Node) -> bool:
    """Return whether ``node`` selects one of several results of a call."""
    return node.target is operator.getitem

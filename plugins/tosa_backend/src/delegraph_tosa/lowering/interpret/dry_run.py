"""The support check: applies rules to compile-time facts and discards operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from delegraph.errors import Unsupported
from delegraph_programs import (
    constant_placeholders,
    constant_tensor,
    placeholders,
    why_no_bytes,
)
from delegraph_programs.call_names import WITHIN
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node

from ...ir.graph import Literal, Value
from ...ir.types import INTEGERS, DType, Type
from ...spec import TosaSpec
from ..builder import Tosa
from ..lazy.lazy_values import Lazy, any_lazy
from ..lazy.unsigned import Bytes, is_bytes, type_of_bytes
from ..ranges.border_dtypes import AS_ITSELF, BORDER_DTYPE
from ..ranges.value_ranges import INT32, READ, Range, inside, range_of
from ..registry import (
    CONTROL,
    Result,
    Rule,
    apply,
    apply_control,
    is_empty,
    is_unpacking,
    rule_of,
)
from ..torch_values.hints import int64_value, within
from ..torch_values.symbolic_sizes import is_size
from ..torch_values.tensor_types import DTYPES, constant_of, refused, type_of
from .interpreter import Interpreter
from .lazy_calls import apply_lazy
from .templates import ABSENT


class Fact(NamedTuple):
    """All that a rule may read of a value at compile time.

    For operands with equal facts, a rule does the same. ``range`` of None: no range is
    known.
    """

    type: Type
    constant: bool
    range: Range | None
    number: float | None = None
    """The element of a constant of one float; None for other values."""

    @staticmethod
    def of(value: Value) -> Fact:
        """Return the fact of ``value``.

        Floats have a range only if ``saturation`` clamped them.
        """
        range = value.range
        if value.dtype is DType.BOOL:
            range = None
        elif value.dtype in INTEGERS:
            range = range_of(value)
        return Fact(value.type, value.constant is not None, range)

    def value(self) -> Value:
        """Return a value with this fact, as an operand of a rule.

        Of a constant only a single float (``number``) can be read; reading other
        elements raises Unsupported.
        """
        literal = (
            None
            if self.number is None
            else Literal(np.full(self.type.shape, self.number, np.float32))
        )
        value = Value(self.type, literal or (ABSENT if self.constant else None))
        value.range = self.range
        return value

    def why_not_result(self, spec: TosaSpec) -> str | None:
        """Return why a delegate for the target ``spec`` cannot return the value.

        None if it can. On a target without int64, a delegate returns an int64 as int32,
        which the core casts outside of the delegate.
        """
        if self.type.dtype is not DType.INT64 or self.range is None or spec.has_int64:
            return spec.why_not_tensor(self.type)
        return _why_not_32_bits(self.range) or spec.why_not_tensor(
            Type(self.type.shape, DType.INT32)
        )


def _why_not_32_bits(range: Range) -> str | None:
    """Return why an int64 with this range cannot be int32; None if it fits."""
    if inside(range, INT32):
        return None
    return f"an int64 that may be from {range[0]} to {range[1]}, which does not fit into 32 bits"


class Passed(NamedTuple):
    """The fact of a result that is one of the operands, with the operand's position."""

    fact: Fact
    operand: int


Constants = Callable[[Node], Fact | None]
"""The fact of a constant placeholder; None for other nodes."""


def facts_of_constants(program: ExportedProgram) -> Constants:
    """Return a cached function that maps a constant placeholder to its fact.

    The fact has the range of the elements for types in ``READ``.
    """
    constant = constant_placeholders(program)
    specs = dict(placeholders(program))
    facts: dict[Node, Fact] = {}

    def fact(node: Node) -> Fact | None:
        """Return the fact of ``node`` if it is a constant placeholder, else None."""
        if node not in constant:
            return None
        if node not in facts:
            val = node.meta["val"]
            what = f"the constant {node.name}"
            type = type_of_bytes(val, what) if is_bytes(val) else type_of(val, what)
            facts[node] = _fact_of(type, constant_tensor(program, specs[node]))
        return facts[node]

    return fact


def _fact_of(type: Type, tensor: torch.Tensor) -> Fact:
    """Return the fact of a constant.

    A single float is read, because it often is a limit, a factor or the fill value of a
    mask; other floats are not. Nothing is read of a tensor without elements in memory
    (exported without weights).
    """
    is_number = type.dtype is DType.FP32 and set(type.shape) <= {1}
    if (
        not (is_number or type.dtype in READ)
        or isinstance(tensor, FakeTensor)
        or why_no_bytes(tensor)
    ):
        return Fact(type, True, None)
    if is_number:
        return Fact(type, True, None, tensor.item())
    return Fact(type, True, range_of(constant_of("", tensor)))


class DryRun(Interpreter):
    """Applies rules to facts to find out which calls can be lowered. Emits nothing."""

    def __init__(
        self,
        t: Tosa,
        constant: Constants,
        nodes: Collection[Node],
        arriving: Callable[[Node], Range | None] | None,
        memo: dict[Hashable, Any],
    ) -> None:
        """A dry run of the calls ``nodes`` on the builder ``t``.

        ``constant`` returns the fact of a constant placeholder, and None for other
        nodes. ``arriving`` returns the range of an int64 input of the delegate, which
        is int32 there, or None if no range is known. If ``arriving`` is None, the range
        is the one that the uses of the input prove (``bounds``). ``memo`` caches the
        outcome of each call, by the facts of its operands and its other arguments; dry
        runs of several programs may share it.
        """
        super().__init__(t, lambda node: _constant(node, constant(node)), nodes)
        self.arriving = arriving or self.bounds.get
        self.memo = memo
        self._passed: dict[Value, Value] = {}
        """Maps a result of a call to the operand that it is.

        Lowering makes them one value.
        """

    def input(self, node: Node) -> Value:
        """Return the value of ``node`` as an input of the delegate.

        Raises Unsupported if it cannot be one. On a target without int64, an int64 has
        to be known to fit into 32 bits. It is an int32 input, and rules see an int64
        with the range of int32.
        """
        val = node.meta.get("val")
        if (
            not isinstance(val, torch.Tensor)
            or val.dtype is not torch.int64
            or self.t.has_int64
        ):
            return super().input(node)
        type = type_of(val, f"the input {node.name}", node)
        if BORDER_DTYPE in node.meta:
            return self._carried(node, type, node.meta[BORDER_DTYPE])
        within = node.meta.get(WITHIN)
        range = self.arriving(node) if within is None else (within[0], within[1])
        why = (
            "an int64 that is not known to fit into 32 bits"
            if range is None
            else _why_not_32_bits(range)
        )
        if why is not None:
            raise refused(int64_value(node, why))
        self.expect_tensor(node, Type(type.shape, DType.INT32))
        return Fact(type, False, INT32 if within is None else range).value()

    def _carried(self, node: Node, type: Type, kind: str) -> Value:
        """Return the value of an int64 input that crosses as ``kind``.

        ``type`` is its own.
        """
        crossing = Type(type.shape, DTYPES[getattr(torch, kind)])
        self.expect_tensor(node, crossing)
        return Fact(
            crossing if kind in AS_ITSELF else type,
            False,
            None if kind in AS_ITSELF else INT32,
        ).value()

    def run(self, node: Node) -> Result | float:
        """Apply the rule of ``node`` to facts, and return values of facts.

        None means a result without elements, and for a getitem. Raises Unsupported
        if the call cannot be lowered.
        """
        # a getitem, or a number computed from sizes: neither has a rule
        if is_unpacking(node) or is_size(node) or self.is_kept(node):
            return super().run(node)
        if node.target in CONTROL:
            return self._run_control(node)
        rule = rule_of(node)
        if is_empty(node):
            return None
        arguments = self.arguments(rule, node)
        if rule.lazy or any_lazy(arguments):
            return self._run_quantized(rule, node, arguments)
        key = (node.target, *map(_key, arguments))
        try:
            outcome = self.memo[key]
        except KeyError:
            outcome = self._attempt(node, arguments)
            # a lazy value knows its integers, which are not in the key
            if not isinstance(outcome, Lazy):
                self.memo[key] = outcome
        # ``_attempt`` returns a text if the call is refused
        if isinstance(outcome, str):
            raise refused(outcome)
        result: Result = self._results_of(outcome, arguments)
        self.values[node] = self.bounded(node, result)
        return result

    def same(self, value: Value) -> Iterator[Value]:
        """Return the value, and the operands that calls passed on to become it."""
        yield value
        while (passed := self._passed.get(value)) is not None:
            value = passed
            yield value

    def _run_control(self, node: Node) -> Result:
        """Lower a branch or a loop, with its subgraphs, and discard the operators.

        Its outcome is not cached in ``memo``, because it depends on all nodes of the
        subgraphs. The outcomes of the calls in the subgraphs are cached.
        """
        try:
            results = apply_control(self, node)
            facts = self.values[node] = tuple(
                [v if isinstance(v, Lazy) else Fact.of(v).value() for v in results]
            )
            return facts
        finally:
            self.t.operators.clear()

    def lower(self, node: Node) -> None:
        """Lower one call.

        If it is refused, raises Unsupported with a reason that begins with the
        operator's name.
        """
        try:
            self.run(node)
        except Unsupported as refusal:
            raise refused(within(str(node.target), refusal.message)) from refusal

    def _run_quantized(self, rule: Rule, node: Node, arguments: list[Any]) -> Result:
        """Apply a rule that takes or returns lazy values, and discard the operators.

        The result is not cached in ``memo``: a lazy value knows the integers that it
        represents, which a fact does not.
        """
        try:
            call = apply_lazy if any_lazy(arguments) else apply
            result = self.values[node] = call(self.t, rule, node, arguments)
        finally:
            self.t.operators.clear()
        return result

    def _attempt(self, node: Node, arguments: list[Any]) -> Any:
        """Return the facts of a call's results, or the refusal, for ``memo``."""
        try:
            return _facts_of(
                self.templates.outline(self.t, rule_of(node), node, arguments),
                _values_in(arguments),
            )
        except Unsupported as refusal:
            return refusal.message
        finally:
            self.t.operators.clear()

    def _results_of(self, facts: Any, arguments: list[Any]) -> Any:
        """Return the reverse of ``_facts_of``: values with these facts."""
        if isinstance(facts, list):
            return tuple([self._results_of(fact, arguments) for fact in facts])
        if isinstance(facts, Passed):
            value = facts.fact.value()
            self._passed[value] = _values_in(arguments)[facts.operand]
            return value
        return facts if facts is None or isinstance(facts, Lazy) else facts.value()

    def why_not(self, node: Node) -> str | None:
        """Return the reason why ``node`` cannot be lowered; None if it can."""
        try:
            self.run(node)
        except Unsupported as refusal:
            return refusal.message
        return None


def _constant(node: Node, fact: Fact | None) -> Value | None:
    """Return the value of the constant ``node`` with the fact ``fact``.

    None if ``node`` is no constant.
    """
    if fact is None:
        return None
    return Bytes(fact.value()) if is_bytes(node.meta["val"]) else fact.value()


def _key(argument: Any) -> Hashable:
    """Return an argument as part of a key of ``memo``, with facts for values."""
    if isinstance(argument, Value):
        return Fact.of(argument)
    if isinstance(argument, (list, tuple)):
        return tuple([_key(a) for a in argument])
    # in Python 1, 1.0 and True are equal, but rules treat them differently: the type is
    # part of the key
    return type(argument), argument


def _facts_of(result: Result, operands: list[Value]) -> Any:
    """Return the facts of a rule's results: a list for several results.

    None and lazy values stay as they are.
    """
    if isinstance(result, tuple):
        return [_facts_of(value, operands) for value in result]
    if result is None or isinstance(result, Lazy):
        return result
    # an operand that occurs twice proves nothing for a call on two values
    return (
        Passed(Fact.of(result), operands.index(result))
        if operands.count(result) == 1
        else Fact.of(result)
    )


def _values_in(argument: Any) -> list[Value]:
    """Return the values among arguments, in order."""
    if isinstance(argument, (list, tuple)):
        return [value for a in argument for value in _values_in(a)]
    return [argument] if isinstance(argument, Value) else []

"""The support check: applies rules to compile-time facts and discards operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
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

from ...ir.graph import Deferred, Literal, Value
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

    For operands with equal facts, a rule does the same. A ``range`` of None is not
    known.
    """

    type: Type
    is_constant: bool
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
        constant: Literal | Deferred | None = ABSENT if self.is_constant else None
        if self.number is not None:
            constant = Literal(np.full(self.type.shape, self.number, np.float32))
        value = Value(self.type, constant)
        value.range = self.range
        return value

    def why_not_result(self, spec: TosaSpec) -> str | None:
        """Return why a delegate for the target ``spec`` cannot return the value.

        None if it can. On a target without int64, a delegate returns an int64 as int32,
        which the core casts outside of the delegate.
        """
        if self.type.dtype is not DType.INT64 or self.range is None or spec.has_int64:
            return spec.why_not_tensor(self.type)
        narrow = Type(self.type.shape, DType.INT32)
        return _why_not_32_bits(self.range) or spec.why_not_tensor(narrow)


def _why_not_32_bits(range: Range) -> str | None:
    """Return why an int64 with this range cannot be int32; None if it fits."""
    if inside(range, INT32):
        return None
    low, high = range
    return f"an int64 that may be from {low} to {high}, which does not fit into 32 bits"


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
    unread = Fact(type, is_constant=True, range=None)
    if isinstance(tensor, FakeTensor) or why_no_bytes(tensor):
        return unread
    if type.dtype is DType.FP32 and set(type.shape) <= {1}:
        return unread._replace(number=tensor.item())
    if type.dtype in READ:
        return unread._replace(range=range_of(constant_of("", tensor)))
    return unread


class DryRun(Interpreter):
    """Applies rules to facts to find out which calls can be lowered. Emits nothing."""

    def __init__(
        self,
        t: Tosa,
        constant: Constants,
        nodes: Collection[Node],
        arriving: Callable[[Node], Range | None] | None,
    ) -> None:
        """Create a dry run of the calls ``nodes`` on the builder ``t``.

        ``constant`` returns the fact of a constant placeholder, and None for other
        nodes. ``arriving`` returns the range of an int64 input of the delegate, which
        is int32 there, or None if no range is known. If ``arriving`` is None, the range
        is the one that the uses of the input prove (``bounds``).
        """
        super().__init__(t, lambda node: _constant(node, constant(node)), nodes)
        self.arriving = arriving or self.bounds.get
        self._passed: dict[Value, Value] = {}
        """Maps a result to the operand that the call returned unchanged.

        Lowering makes them one value.
        """

    def input(self, node: Node) -> Value:
        """Return the value of ``node`` as an input of the delegate.

        Raises Unsupported if it cannot be one. On a target without int64, an int64 has
        to be known to fit into 32 bits. It is an int32 input, and rules see an int64
        with the range of int32.
        """
        val = node.meta.get("val")
        is_int64 = isinstance(val, torch.Tensor) and val.dtype is torch.int64
        if not is_int64 or self.t.has_int64:
            return super().input(node)
        type = type_of(val, f"the input {node.name}", node)
        if BORDER_DTYPE in node.meta:
            return self._carried(node, type, node.meta[BORDER_DTYPE])
        promised = node.meta.get(WITHIN)
        range = self.arriving(node) if promised is None else tuple(promised)
        if range is None:
            why: str | None = "an int64 that is not known to fit into 32 bits"
        else:
            why = _why_not_32_bits(range)
        if why is not None:
            raise refused(int64_value(node, why))
        self.expect_tensor(node, Type(type.shape, DType.INT32))
        if promised is None:
            range = INT32
        return Fact(type, is_constant=False, range=range).value()

    def _carried(self, node: Node, type: Type, kind: str) -> Value:
        """Return the value of an int64 input that crosses the border as ``kind``.

        ``type`` is its type in the program.
        """
        crossing = Type(type.shape, DTYPES[getattr(torch, kind)])
        self.expect_tensor(node, crossing)
        if kind in AS_ITSELF:
            return Fact(crossing, is_constant=False, range=None).value()
        return Fact(type, is_constant=False, range=INT32).value()

    def run(self, node: Node) -> Result | float:
        """Apply the rule of ``node`` to facts, and return values of facts.

        Returns None for a result without elements, and for a getitem. Raises
        Unsupported if the call cannot be lowered.
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
        try:
            returned = self.templates.outline(self.t, rule, node, arguments)
            result: Result = self._as_facts(returned, _values_in(arguments))
        finally:
            self.t.operators.clear()
        self.values[node] = self.bounded(node, result)
        return result

    def same(self, value: Value) -> Iterator[Value]:
        """Yield ``value`` and all values that lowering makes one value with it.

        If a call returned its operand, the operand follows its result.
        """
        yield value
        while (passed := self._passed.get(value)) is not None:
            value = passed
            yield value

    def _run_control(self, node: Node) -> Result:
        """Lower a branch or a loop, with its subgraphs, and discard the operators."""
        try:
            result: Result = self._as_facts(apply_control(self, node), operands=[])
        finally:
            self.t.operators.clear()
        self.values[node] = result
        return result

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
        """Apply a rule that takes or returns lazy values, and discard the operators."""
        call = apply_lazy if any_lazy(arguments) else apply
        try:
            result = call(self.t, rule, node, arguments)
        finally:
            self.t.operators.clear()
        self.values[node] = result
        return result

    def _as_facts(self, result: Any, operands: list[Value]) -> Any:
        """Return a rule's result with a value of its fact in place of each value.

        The new values have neither operators nor elements. Records which of them are
        one of the ``operands``. None and lazy values stay as they are.
        """
        if isinstance(result, tuple):
            return tuple([self._as_facts(value, operands) for value in result])
        if result is None or isinstance(result, Lazy):
            return result
        value = Fact.of(result).value()
        if result in operands:
            self._passed[value] = result
        return value

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
    value = fact.value()
    return Bytes(value) if is_bytes(node.meta["val"]) else value


def _values_in(argument: Any) -> list[Value]:
    """Return the values among arguments, in order."""
    if isinstance(argument, Value):
        return [argument]
    values: list[Value] = []
    if isinstance(argument, (list, tuple)):
        for one in argument:
            values += _values_in(one)
    return values

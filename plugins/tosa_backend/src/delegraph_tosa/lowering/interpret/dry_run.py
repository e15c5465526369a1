"""The support check: the same rules, applied to facts (what is known before the program runs) in place of values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any, NamedTuple

import numpy as np
import torch
from delegraph.errors import Unsupported
from delegraph.exported_program import constant_placeholders, constant_tensor, placeholders
from delegraph.io.weights import why_no_bytes
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node

from ...ir.graph import Literal, Value
from ...ir.types import INTEGERS, DType, Type
from ...spec import TosaSpec
from ..builder import Tosa
from ..lazy.unsigned import Bytes, is_bytes, type_of_bytes
from ..lazy.values import Lazy, any_lazy
from ..ranges.ranges import INT32, READ, Range, inside, range_of
from ..registry import CONTROL, Result, Rule, apply, apply_control, is_empty, is_unpacking, rule_of
from ..torch_values.hints import int64_value, within
from ..torch_values.sizes import is_size
from ..torch_values.types import constant_of, refused, type_of
from .interpreter import Interpreter
from .lazy_calls import apply_lazy
from .templates import ABSENT


class Fact(NamedTuple):
    """All that a rule may know of a value before the program runs; with equal facts a rule does the same."""

    type: Type
    constant: bool
    range: Range | None
    number: float | None = None
    """The element of a constant that is a single float."""

    @staticmethod
    def of(value: Value) -> Fact:
        """What is known of ``value``. Floats have a range only if something limited them (``saturation``)."""
        range = None if value.dtype is DType.BOOL else range_of(value) if value.dtype in INTEGERS else value.range
        return Fact(value.type, value.constant is not None, range)

    def value(self) -> Value:
        """A value of which exactly this is known, to call a rule with."""
        known = None if self.number is None else Literal(np.full(self.type.shape, self.number, np.float32))
        made = Value(self.type, known or (ABSENT if self.constant else None))
        made.range = self.range
        return made

    def why_not_result(self, spec: TosaSpec) -> str | None:
        """Why a delegate cannot return the value; None if it can.

        Where the target has no int64, the delegate returns int32, and the core casts it outside.
        """
        if self.type.dtype is not DType.INT64 or self.range is None or spec.has_int64:
            return spec.why_not_tensor(self.type)
        return _why_not_32_bits(self.range) or spec.why_not_tensor(Type(self.type.shape, DType.INT32))


def _why_not_32_bits(range: Range) -> str | None:
    """The reason against an int64 that may be out of int32's range; None if it fits."""
    if inside(range, INT32):
        return None
    return f"an int64 that may be from {range[0]} to {range[1]}, which 32 bits do not hold"


Constants = Callable[[Node], Fact | None]
"""The fact of a constant placeholder; None for other nodes."""


def facts_of_constants(program: ExportedProgram) -> Constants:
    """A function from a constant placeholder to its fact; each is made once, and reads elements of ``READ`` types."""
    constant, specs = constant_placeholders(program), dict(placeholders(program))
    facts: dict[Node, Fact] = {}

    def fact(node: Node) -> Fact | None:
        if node not in constant:
            return None
        if node not in facts:
            val, what = node.meta["val"], f"the constant {node.name}"
            type = type_of_bytes(val, what) if is_bytes(val) else type_of(val, what)
            facts[node] = _fact_of(type, constant_tensor(program, specs[node]))
        return facts[node]

    return fact


def _fact_of(type: Type, tensor: torch.Tensor) -> Fact:
    """What is known of a constant.

    A single float is read, because it often is a limit, a factor or the fill value of a mask. Other floats are not.
    """
    is_number = type.dtype is DType.FP32 and set(type.shape) <= {1}
    if not (is_number or type.dtype in READ) or isinstance(tensor, FakeTensor) or why_no_bytes(tensor):
        return Fact(type, True, None)
    if is_number:
        return Fact(type, True, None, tensor.item())
    return Fact(type, True, range_of(constant_of("", tensor)))


class DryRun(Interpreter):
    """Applies rules to facts.

    What a rule did is kept in ``memo``: with the same facts and arguments it is not asked again. ``arriving`` gives the
    range of an int64 that is computed outside and crosses the border as int32; if it is None, the range is what the
    uses of the value prove. ``nodes`` are those to lower.
    """

    def __init__(
        self,
        t: Tosa,
        constant: Constants,
        nodes: Collection[Node],
        arriving: Callable[[Node], Range | None] | None,
        memo: dict[Hashable, Any],
    ) -> None:
        super().__init__(t, lambda node: _constant(node, constant(node)), nodes)
        self.arriving, self.memo = arriving or self.bounds.get, memo

    def input(self, node: Node) -> Value:
        """As in a lowering. An int64 that is known to fit into 32 bits arrives as int32, and may be any of these."""
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor) or val.dtype is not torch.int64 or self.t.has_int64:
            return super().input(node)
        arrives, range = type_of(val, f"the input {node.name}", node), self.arriving(node)
        why = "an int64 that nothing proves to fit into 32 bits" if range is None else _why_not_32_bits(range)
        if why is not None:
            raise refused(int64_value(node, why))
        self.expect_tensor(node, Type(arrives.shape, DType.INT32))
        return Fact(arrives, False, INT32).value()

    def run(self, node: Node) -> Result | float:
        """Apply the rule of ``node`` to the facts of its operands; Unsupported says why it cannot be lowered."""
        if is_unpacking(node) or is_size(node):
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
            kept = self.memo[key]
        except KeyError:
            kept = self._attempt(node, arguments)
            if not isinstance(kept, Lazy):
                self.memo[key] = kept
        # a refusal is kept as its text
        if isinstance(kept, str):
            raise refused(kept)
        result: Result = _results_of(kept)
        self.values[node] = self.bounded(node, result)
        return result

    def _run_control(self, node: Node) -> Result:
        """Lower a branch or a loop.

        It is not kept in ``memo`` as a whole: it depends on all nodes of its subgraphs, whose calls are kept one by
        one.
        """
        try:
            made = apply_control(self, node)
            result = self.values[node] = tuple([v if isinstance(v, Lazy) else Fact.of(v).value() for v in made])
            return result
        finally:
            self.t.operators.clear()

    def lower(self, node: Node) -> None:
        try:
            self.run(node)
        except Unsupported as refusal:
            raise refused(within(str(node.target), refusal.message)) from refusal

    def _run_quantized(self, rule: Rule, node: Node, arguments: list[Any]) -> Result:
        """Apply a rule to lazy operands.

        It is not kept in ``memo``: a lazy value knows the integers that it comes from, which facts do not say.
        """
        try:
            call = apply_lazy if any_lazy(arguments) else apply
            result = self.values[node] = call(self.t, rule, node, arguments)
        finally:
            self.t.operators.clear()
        return result

    def _attempt(self, node: Node, arguments: list[Any]) -> Any:
        """What to keep of a call: the reason of its refusal, or the facts of its results."""
        try:
            return _facts_of(self.templates.outline(self.t, rule_of(node), node, arguments))
        except Unsupported as refusal:
            return refusal.message
        finally:
            self.t.operators.clear()

    def why_not(self, node: Node) -> str | None:
        """The reason why ``node`` cannot be lowered; None if it can."""
        try:
            self.run(node)
        except Unsupported as refusal:
            return refusal.message
        return None


def _constant(node: Node, fact: Fact | None) -> Value | None:
    """A constant of which only ``fact`` is known."""
    if fact is None:
        return None
    return Bytes(fact.value()) if is_bytes(node.meta["val"]) else fact.value()


def _key(argument: Any) -> Hashable:
    """What a rule may see of an argument, as a key of ``memo``.

    Python takes 1, 1.0 and True for equal, rules do not.
    """
    if isinstance(argument, Value):
        return Fact.of(argument)
    if isinstance(argument, (list, tuple)):
        return tuple([_key(a) for a in argument])
    return type(argument), argument


def _facts_of(result: Result) -> Any:
    """The facts of a rule's results, in the same structure; a tuple becomes a list."""
    if isinstance(result, tuple):
        return [_facts_of(value) for value in result]
    return result if result is None or isinstance(result, Lazy) else Fact.of(result)


def _results_of(kept: Any) -> Any:
    """The reverse of ``_facts_of``: results of which only the facts are known."""
    if isinstance(kept, list):
        return tuple([_results_of(one) for one in kept])
    if isinstance(kept, Lazy):
        return kept
    return None if kept is None else kept.value()

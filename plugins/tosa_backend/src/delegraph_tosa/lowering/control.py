"""Control flow: a higher-order call is lowered with its subgraphs, or not at all.

``cond`` and ``while_loop`` become COND_IF and WHILE_LOOP; for ``map`` and ``scan`` see ``repeated``. The calls in a
subgraph are lowered by the rules that they have elsewhere, in a dry run too. If one of them is refused, so is the whole
call, and the core lowers the subgraph as a program of its own.

What a call passes and is constant, such as a weight, is a constant of the graph that uses it. Everything else arrives
as an input, because graphs of TOSA do not see the values around them. What is quantized crosses as its integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from delegraph.errors import Unsupported
from torch.fx import GraphModule, Node

from ..ir import operators as tosa
from ..ir.graph import Graph, Operator, Value
from ..ir.types import INTEGERS, DType, Type
from ..ir.witnesses import why_not_told
from .builder import Tosa
from .conditions import assumed
from .hints import across_graphs, within
from .lazy import Scaled, real
from .ranges import INT32, Range, inside, range_of, range_of_type, union
from .torch_types import DTYPES, refused, type_of

if TYPE_CHECKING:
    from .interpreter import Interpreter

Given = Callable[[int], Value]
"""What a call passes to a subgraph as the input of that position; Unsupported if that is no value."""
Wanted = Callable[[Node], bool]
"""Whether a result of a subgraph is wanted."""
Ranges = list[Range | None]
"""Of what a loop carries; None for what is no integer."""


class Subgraph:
    """A subgraph that is lowered to operators of its own.

    ``results`` are values as rules see them, int64 too. ``inputs``: position -> the input of the graph, for what it
    uses of what it is given and is not constant.
    """

    def __init__(self, outer: Interpreter, owner: Node, given: Given, only: Wanted | None = None) -> None:
        """Without the calls that results for which ``only`` is false need alone; those results are left out."""
        self.t, self.given = outer.t, given
        self.operators: list[Operator] = []
        self.inputs: dict[int, Value] = {}
        self.outputs: list[Value] = []
        self.name, self.nodes = str(owner.target), list(module_of(owner).graph.nodes)
        self.position = {n: k for k, n in enumerate(n for n in self.nodes if n.op == "placeholder")}
        self.inner = outer.enter(self.nodes, self._operand)
        returned = [v for v in results_of(self.nodes) if only is None or not isinstance(v, Node) or only(v)]
        with self.t.inside(self.operators):
            lower_calls(self.inner, self.nodes if only is None else _needed_for(returned), self.name)
            self.results = [value_in(self.inner, v, "a subgraph returns") for v in returned]

    def _operand(self, node: Node) -> Value:
        value = self.given(self.position[node])
        if value.constant is not None:
            return own(value)
        return _seen(self.t, self.input(self.position[node]), value, value.range)

    def input(self, position: int) -> Value:
        """The input of the graph at that position of the call, used or not."""
        if position not in self.inputs:
            arrives = self.t.held_type(_held(self.given(position)).type)
            expect_static(self.t, arrives, f"an input of {self.name}")
            why = self.t.spec.why_not_tensor(arrives)
            self.t.require(why is None, f"an input of {self.name}: {why}")
            self.inputs[position] = Value(arrives, name=f"{self.name}_{position}")
        return self.inputs[position]

    def compute(self, position: int) -> None:
        """Let a result be computed, which is quantized."""
        with self.t.inside(self.operators):
            self.results[position] = real(self.t, self.results[position])

    def graph(self, positions: Sequence[int], passed: Sequence[int] = ()) -> Graph:
        """The graph with inputs for ``positions``; it returns its results, and those of ``passed`` as they came."""
        inputs = [self.input(k) for k in positions]
        nodes = [n for n in self.nodes if n.op == "output"] * len(self.results)
        with self.t.inside(self.operators):
            returned = [(n, self.t.held(_held(v))) for n, v in zip(nodes, self.results, strict=True)]
            for _, value in returned:
                expect_static(self.t, value.type, f"a result of {self.name}")
            outputs = self.inner.kept_apart(returned, inputs)
            outputs += [self.t.identity(self.inputs[k]) for k in passed]
        why = why_not_told(inputs, self.operators)
        self.t.require(why is None, f"{self.name}: {why}")
        return Graph(inputs, outputs, self.operators, self.name)


def expect_static(t: Tosa, type: Type, what: str) -> None:
    """Unsupported for what graphs of control flow cannot pass: each graph of a file has sizes of its own."""
    if type.is_dynamic:
        text = f"{what} has a size that is known at run time only, {type}: graphs cannot share it"
        raise refused(across_graphs(text))


def module_of(owner: Node) -> GraphModule:
    """The subgraph that a ``get_attr`` node fetches."""
    module: Any = getattr(owner.graph.owning_module, str(owner.target))
    return module  # type: ignore[no-any-return]


def lower_calls(inner: Interpreter, nodes: Sequence[Node], name: str) -> None:
    """Lower the calls of the subgraph ``name``; Unsupported names it before the reason."""
    for node in nodes:
        try:
            if node.op == "call_function":
                inner.lower(node)
        except Unsupported as refusal:
            raise Unsupported(refusal.code, within(name, refusal.message), refusal.node, refusal.source) from refusal


def results_of(nodes: Sequence[Node]) -> Sequence[Any]:
    """What a subgraph of these nodes returns; it may be one value that is in no tuple."""
    returned: Any = nodes[-1].args[0]
    return returned if isinstance(returned, (tuple, list)) else (returned,)


def _needed_for(values: Iterable[Any]) -> list[Node]:
    """The nodes that compute ``values``, in graph order."""
    needed: set[Node] = set()
    waiting = [v for v in values if isinstance(v, Node)]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return [n for n in next(iter(needed)).graph.nodes if n in needed] if needed else []


def value_in(interpreter: Interpreter, argument: Any, what: str) -> Value:
    """The value of an argument; Unsupported for what is no tensor, which ``what`` introduces."""
    if not isinstance(argument, Node):
        raise refused(f"{what} the Python value {argument!r}, not a tensor")
    value = interpreter.value_of(argument)
    if not isinstance(value, Value):
        raise refused(f"{what} the size {value}, not a tensor")
    return value if _is_quantized(value) else real(interpreter.t, value)


def _is_quantized(value: Value) -> TypeGuard[Scaled]:
    """Whether it is quantized as activations are, so that its integers say all."""
    return isinstance(value, Scaled) and value.is_small and value.constant is None


def _held(value: Value) -> Value:
    """What the graph has for a value, but for int64: the integers of what is quantized."""
    return value.q if _is_quantized(value) else value


def _seen(t: Tosa, held: Value, like: Value, range: Range | None) -> Value:
    """The way back, of a value that is as ``like`` is and whose integers are in ``range``."""
    if _is_quantized(like):
        return Scaled(held, like.scale, like.zero_point)
    return t.seen(held, like.type, range)


def _is_alike(first: Value, second: Value) -> bool:
    """Whether two values cross in the same form: both computed, or in the same quantization."""
    if not (_is_quantized(first) and _is_quantized(second)):
        return _is_quantized(first) == _is_quantized(second)
    return (first.scale, first.zero_point, first.q.dtype) == (second.scale, second.zero_point, second.q.dtype)


def operands_of(outer: Interpreter, listed: Any) -> Given:
    """What has to be computed for them belongs to the graph around the call, wherever they are asked for."""
    operators = outer.t.operators
    known: dict[int, Value] = {}

    def given(position: int) -> Value:
        if position not in known:
            with outer.t.appending_to(operators):
                known[position] = value_in(outer, listed[position], "a subgraph is given")
        return known[position]

    return given


def own(constant: Value) -> Value:
    """A constant as another value, for what a subgraph proves of integers holds only if it runs."""
    return Value(constant.type, constant.constant, constant.name) if constant.dtype in INTEGERS else constant


def expect_taken(t: Tosa, cls: type[Operator], *operands: Value) -> None:
    """Unsupported if the target has no such operator, before anything is said of its subgraphs."""
    empty = Graph((), (), ())
    attributes = dict.fromkeys((name for name, kind in cls.attributes.items() if kind == "Graph"), empty)
    why = t.spec.why_not(cls(operands, **attributes))
    t.require(why is None, f"{why}")


def _results(t: Tosa, call: Node, found: Sequence[Value], like: Sequence[Value], ranges: Ranges) -> tuple[Value, ...]:
    """Results of an operator as rules see them: as ``like`` are, in these ranges."""
    results = [_seen(t, v, as_this, range) for v, as_this, range in zip(found, like, ranges, strict=True)]
    for k, (value, val) in enumerate(zip(results, call.meta["val"], strict=True)):
        wanted = type_of(val, f"result {k}")
        t.require(value.type == wanted, f"result {k} is {value.type}, and torch expects {wanted}")
    return tuple(results)


def _range(value: Value) -> Range | None:
    return range_of(value) if value.dtype in INTEGERS else None


def cond(outer: Interpreter, call: Node) -> tuple[Value, ...]:
    """COND_IF, which needs the extension `controlflow`; its predicate is one truth value."""
    t = outer.t
    predicate, true, false, listed = call.args
    condition, given = value_in(outer, predicate, "the predicate is"), operands_of(outer, listed)
    expect_taken(t, tosa.COND_IF, condition)
    branches = [Subgraph(outer, owner, given) for owner in (true, false)]  # type: ignore[arg-type]
    for k, pair in enumerate(zip(*(branch.results for branch in branches), strict=True)):
        if not _is_alike(*pair):
            for branch in branches:
                branch.compute(k)
    used = sorted(branches[0].inputs.keys() | branches[1].inputs.keys())
    then, other = (branch.graph(used) for branch in branches)
    inputs = [condition, *(t.held(_held(given(k))) for k in used)]
    found = t.control(tosa.COND_IF, inputs, then_graph=then, else_graph=other)
    pairs = zip(*([_range(v) for v in branch.results] for branch in branches), strict=True)
    ranges = [union(a, b) if a and b else None for a, b in pairs]
    return _results(t, call, found, branches[0].results, ranges)


def while_loop(outer: Interpreter, call: Node) -> tuple[Value, ...]:
    """WHILE_LOOP, which needs the extension `controlflow`; an int64 that it carries is bounded by the condition.

    TOSA's loop carries everything that its graphs use: the body returns additional inputs as they came.
    """
    t = outer.t
    expect_taken(t, tosa.WHILE_LOOP)
    loop = _Loop(outer, call)
    loop.settle()
    ranges = loop.invariant()
    for k, range in enumerate(ranges):
        if loop.start[k].dtype is DType.INT64 and range is not None and not t.has_int64:
            what = f"the loop carries an int64, value {k}, that may be from {range[0]} to {range[1]}"
            t.require(inside(range, INT32), f"{what}, more than 32 bits hold; its condition should bound it")
    condition, body = loop.subgraphs(ranges)
    passed = sorted(k for k in condition.inputs.keys() | body.inputs.keys() if k >= len(ranges))
    carried = [*(k for k, _ in enumerate(ranges)), *passed]
    graphs = {"cond_graph": condition.graph(carried), "body_graph": body.graph(carried, passed)}
    inputs = [t.held(_held(v)) for v in (*loop.start, *map(loop.given, passed))]
    found = t.control(tosa.WHILE_LOOP, inputs, **graphs)[: len(ranges)]
    return _results(t, call, found, loop.start, ranges)


class _Loop:
    """A ``while_loop``, and in which ranges the integers lie that it carries."""

    def __init__(self, outer: Interpreter, call: Node) -> None:
        self.outer = outer
        self.owners: Any = call.args[:2]
        carried: Any = call.args[2]
        additional: Any = call.args[3]
        self.start = [value_in(outer, v, "the loop carries") for v in carried]
        self.given = operands_of(outer, [*carried, *additional])

    def subgraphs(self, ranges: Ranges, only: Wanted | None = None) -> tuple[Subgraph, Subgraph]:
        """Condition and body when what the loop carries is in ``ranges``, and in the body what the condition says.

        ``only``: which results of the body are wanted.
        """
        condition = Subgraph(self.outer, self.owners[0], self._at(ranges))
        known = assumed(condition.nodes, condition.inner.value_of)
        inside = list(ranges)
        for node, bound in known.items():
            k = condition.position[node]
            given = inside[k] if k < len(inside) else None
            if given is not None and max(given[0], bound[0]) <= min(given[1], bound[1]):
                inside[k] = max(given[0], bound[0]), min(given[1], bound[1])
        return condition, Subgraph(self.outer, self.owners[1], self._at(inside), only)

    def _at(self, ranges: Ranges) -> Given:
        """What subgraphs are given when what the loop carries, which is never constant, is in ``ranges``."""

        def given(position: int) -> Value:
            if position >= len(ranges):
                return self.given(position)
            like = self.start[position]
            return _seen(self.outer.t, Value(_held(like).type), like, ranges[position])

        return given

    def settle(self) -> None:
        """Let what the loop carries be computed, unless the body returns it in the quantization in which it starts."""
        quantized = {k for k, v in enumerate(self.start) if _is_quantized(v)}
        while quantized:
            body = self.subgraphs([None if k in quantized else _range(v) for k, v in enumerate(self.start)])[1]
            others = {k for k in quantized if not _is_alike(self.start[k], body.results[k])}
            if not others:
                return
            for k in others:
                self.start[k] = real(self.outer.t, self.start[k])
            quantized -= others

    def invariant(self) -> Ranges:
        """Ranges that hold before the first step and, if they hold before a step, after it.

        Steps are tried on ranges. Where a step leaves them, they are widened to the next of some lengths of numbers;
        once a step stays inside, they are narrowed to what was found, as long as that holds.
        """
        start = [_range(v) for v in self.start]
        ranges, proven = start, None
        for _ in WIDTHS * 2:
            if all(r is None for r in ranges):
                return ranges
            try:
                found = iter(self.subgraphs(ranges, _is_integer)[1].results)
                after = [r and range_of(next(found)) for r in ranges]
            except Unsupported:
                if proven is None:
                    raise
                return proven
            grown = [union(a, b) if a and b else None for a, b in zip(start, after, strict=True)]
            if grown == ranges:
                return ranges
            if all(g is None or r is None or inside(g, r) for g, r in zip(grown, ranges, strict=True)):
                proven, ranges = ranges, grown
            elif proven is not None:
                return proven
            else:
                ranges = [g and r and _wider(r, union(g, r)) for g, r in zip(grown, ranges, strict=True)]
        return proven or [r and range_of_type(v.dtype) for r, v in zip(start, self.start, strict=True)]


def _is_integer(node: Node) -> bool:
    val = node.meta.get("val")
    return isinstance(val, torch.Tensor) and DTYPES.get(val.dtype) in INTEGERS


WIDTHS = (0, 7, 15, 30, 31, 63)
"""Bits to which the integers of a loop are widened, one after the other."""


def _wider(before: Range, after: Range) -> Range:
    """``after``, with each end that moved at the next width that holds it."""
    low = after[0] if after[0] == before[0] else max(-(1 << w) for w in WIDTHS if -(1 << w) <= after[0])
    high = after[1] if after[1] == before[1] else min((1 << w) - 1 for w in WIDTHS if after[1] < 1 << w)
    return low, high

"""Subgraphs of higher-order calls, lowered to graphs of their own: what ``branches`` and ``repeated`` share.

What a call passes and is constant, such as a weight, is a constant of the graph that uses it. Everything else arrives
as an input, because graphs of TOSA do not see the values around them. What is quantized crosses as its integers.

No shape crosses either: a graph reads sizes that are known at run time only off its inputs. For a size that none of
them has, it gets one more input: a tensor that is as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from delegraph.errors import Unsupported
from torch.fx import GraphModule, Node

from ...ir.graph import Graph, Operator, Value
from ...ir.sizes import Symbol, atom
from ...ir.types import INTEGERS, DType
from ...ir.witnesses import sizes_of, untold
from ..builder import Tosa
from ..lazy.values import Scaled, real
from ..ranges.ranges import Range
from ..torch_values.hints import number_crosses, other_target, within
from ..torch_values.types import refused

if TYPE_CHECKING:
    from ..interpret.interpreter import Interpreter

Key = int | Symbol
"""What a graph may take: an operand of the call by its position, or a tensor that is as long as a symbol says."""
Given = Callable[[Key], Value | int]
"""What a call passes to a subgraph, a size as it is; Unsupported if that is neither a tensor nor a size."""
Wanted = Callable[[Node], bool]
"""Whether a result of a subgraph is wanted."""


class Subgraph:
    """A subgraph that is lowered to operators of its own.

    ``results`` are values as rules see them, int64 too. ``inputs``: key -> the input of the graph, for what it
    uses of what it is given and is not constant.
    """

    def __init__(self, outer: Interpreter, owner: Node, given: Given, only: Wanted | None = None) -> None:
        """Without the calls that results for which ``only`` is false need alone; those results are left out."""
        self.t, self.given = outer.t, given
        self.operators: list[Operator] = []
        self.inputs: dict[Key, Value] = {}
        self.name, self.nodes = str(owner.target), list(module_of(owner).graph.nodes)
        self.position = {n: k for k, n in enumerate(n for n in self.nodes if n.op == "placeholder")}
        self.inner = outer.enter(self.nodes, self._operand)
        returned = [v for v in results_of(self.nodes) if only is None or not isinstance(v, Node) or only(v)]
        with self.t.inside(self.operators):
            lower_calls(self.inner, self.nodes if only is None else _needed_for(returned), self.name)
            self.results = [value_in(self.inner, v, "a subgraph returns") for v in returned]

    def _operand(self, node: Node) -> Value | int:
        value = self.given(self.position[node])
        if not isinstance(value, Value):
            return value
        if value.constant is not None:
            return own(value)
        return seen(self.t, self.input(self.position[node]), value, value.range)

    def input(self, key: Key) -> Value:
        """The input of the graph for that operand of the call, used or not, or for that size."""
        if key not in self.inputs:
            given = self.given(key)
            assert isinstance(given, Value)
            arrives = self.t.held_type(held(given).type)
            why = self.t.spec.why_not_tensor(arrives)
            self.t.require(why is None, f"an input of {self.name}: {why}")
            self.inputs[key] = Value(arrives, name=f"{self.name}_{key}")
        return self.inputs[key]

    def compute(self, position: int) -> None:
        """Let a result be computed, which is quantized."""
        with self.t.inside(self.operators):
            self.results[position] = real(self.t, self.results[position])

    def untold(self, keys: Iterable[Key]) -> set[Symbol]:
        """The symbols that it computes with and cannot read off its inputs for ``keys``."""
        return untold([self.input(key) for key in keys], sizes_of(self.operators))

    def graph(self, keys: Sequence[Key], passed: Sequence[Key] = ()) -> Graph:
        """The graph with inputs for ``keys``; it returns its results, and those of ``passed`` as they came."""
        inputs = [self.input(key) for key in keys]
        nodes = [n for n in self.nodes if n.op == "output"] * len(self.results)
        with self.t.inside(self.operators):
            returned = [(n, self.t.held(held(v))) for n, v in zip(nodes, self.results, strict=True)]
            outputs = self.inner.kept_apart(returned, inputs)
            outputs += [self.t.identity(self.inputs[key]) for key in passed]
        return Graph(inputs, outputs, self.operators, self.name)


def keys_of(graphs: Sequence[Subgraph], carried: Iterable[Key] = ()) -> list[Key]:
    """What graphs of one operator take: ``carried``, what else one of them uses, and sizes that none of those has."""
    keys = list(carried)
    keys += sorted({key for graph in graphs for key in graph.inputs}.difference(keys))
    return keys + sorted({size for graph in graphs for size in graph.untold(keys)})


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
    value = argument_in(interpreter, argument, what)
    if not isinstance(value, Value):
        kind = "size" if isinstance(argument, Node) else "Python value"
        raise refused(number_crosses(f"{what} the {kind} {value}, not a tensor"))
    return value


def argument_in(interpreter: Interpreter, argument: Any, what: str) -> Value | int:
    """As ``value_in``; a size, or an int of Python, stays what it is."""
    if type(argument) is int:
        return argument
    if not isinstance(argument, Node):
        raise refused(f"{what} the Python value {argument!r}, not a tensor")
    value = interpreter.value_of(argument)
    if not isinstance(value, Value):
        return value
    return value if is_quantized(value) else real(interpreter.t, value)


def is_quantized(value: Value) -> TypeGuard[Scaled]:
    """Whether it is quantized as activations are, so that its integers say all."""
    return isinstance(value, Scaled) and value.is_small and value.constant is None


def held(value: Value) -> Value:
    """What the graph has for a value, but for int64: the integers of what is quantized."""
    return value.q if is_quantized(value) else value


def crossing(t: Tosa, given: Value | int) -> Value:
    """The value of the graph around it that a graph is given."""
    assert isinstance(given, Value)
    return t.held(held(given))


def seen(t: Tosa, crossed: Value, like: Value, range: Range | None) -> Value:
    """The way back, of a value that is as ``like`` is and whose integers are in ``range``."""
    if is_quantized(like):
        return Scaled(crossed, like.scale, like.zero_point)
    return t.seen(crossed, like.type, range)


def is_alike(first: Value, second: Value) -> bool:
    """Whether two values cross in the same form: both computed, or in the same quantization."""
    if not (is_quantized(first) and is_quantized(second)):
        return is_quantized(first) == is_quantized(second)
    return (first.scale, first.zero_point, first.q.dtype) == (second.scale, second.zero_point, second.q.dtype)


def operands_of(outer: Interpreter, listed: Any) -> Given:
    """What has to be computed for them belongs to the graph around the call, wherever they are asked for."""
    operators = outer.t.operators
    known: dict[Key, Value | int] = {}

    def given(key: Key) -> Value | int:
        if key not in known:
            with outer.t.appending_to(operators):
                if isinstance(key, Symbol):
                    known[key] = as_long_as(outer.t, key)
                else:
                    known[key] = argument_in(outer, listed[key], "a subgraph is given")
        return known[key]

    return given


def as_long_as(t: Tosa, size: Symbol) -> Value:
    """A tensor [size], of an element type whose sizes every target reads."""
    return t.tile(t.constant(0, DType.BOOL), (atom(size),))


def own(constant: Value) -> Value:
    """A constant as another value, for what a subgraph proves of integers holds only if it runs."""
    return Value(constant.type, constant.constant, constant.name) if constant.dtype in INTEGERS else constant


def expect_taken(t: Tosa, cls: type[Operator], *operands: Value) -> None:
    """Unsupported if the target has no such operator, before anything is said of its subgraphs."""
    empty = Graph((), (), ())
    attributes = dict.fromkeys((name for name, kind in cls.attributes.items() if kind == "Graph"), empty)
    why = t.spec.why_not(cls(operands, **attributes))
    if why is not None:
        raise refused(other_target(t.spec, why, [frozenset({"EXT-CONTROLFLOW"})]))

"""Subgraphs of higher-order calls, lowered to graphs of their own: what ``branches`` and ``repeated`` share.

Graphs of TOSA do not see the values around them. So an operand of the call that is constant, such as a weight, becomes
a constant of the graph that uses it, and every other one an input of it. A quantized operand crosses as its integers.

A graph has to read sizes that are known at run time only off the shapes of its inputs. For a size that none of them
has, it gets one more input: a tensor that is as long.
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
"""What a graph takes as an input: an operand of the call, by position, or a tensor that is as long as a symbol says."""
Given = Callable[[Key], Value | int]
"""The value that the call passes for a key; an operand that is a size stays one. Unsupported for anything else."""
Wanted = Callable[[Node], bool]
"""Whether a result of a subgraph is wanted."""


class Subgraph:
    """A subgraph that is lowered to operators of its own.

    ``results`` are values as rules see them (int64 is int64). ``inputs`` maps a key to the input of the graph; there is
    one for each operand that the subgraph uses and that is not constant.
    """

    def __init__(self, outer: Interpreter, owner: Node, given: Given, only: Wanted | None = None) -> None:
        """Lower the subgraph that the node ``owner`` fetches. ``given`` gives the operands of the call.

        With ``only``, results for which it is false are left out, and so are the calls that only those need.
        """
        self.t, self.given = outer.t, given
        self.operators: list[Operator] = []
        self.inputs: dict[Key, Value] = {}
        self.name, self.nodes = str(owner.target), list(module_of(owner).graph.nodes)
        self.position = {n: k for k, n in enumerate(n for n in self.nodes if n.op == "placeholder")}
        self.inner = outer.enter(self.nodes, self._operand)
        returned = [v for v in results_of(self.nodes) if only is None or not isinstance(v, Node) or only(v)]
        with self.t.inside(self.operators):
            lower_calls(self.inner, self.nodes if only is None else _nodes_that_compute(returned), self.name)
            self.results = [value_in(self.inner, v, "a subgraph returns") for v in returned]

    def _operand(self, node: Node) -> Value | int:
        """The value of the placeholder ``node``: a size, a constant, or an input of the graph, as rules see it."""
        value = self.given(self.position[node])
        if not isinstance(value, Value):
            return value
        if value.constant is not None:
            return own(value)
        return seen(self.t, self.input(self.position[node]), value, value.range)

    def input(self, key: Key) -> Value:
        """The input of the graph for ``key``, made when it is first asked for."""
        if key not in self.inputs:
            given = self.given(key)
            assert isinstance(given, Value)
            arrives = self.t.held_type(held(given).type)
            why = self.t.spec.why_not_tensor(arrives)
            self.t.require(why is None, f"an input of {self.name}: {why}")
            self.inputs[key] = Value(arrives, name=f"{self.name}_{key}")
        return self.inputs[key]

    def compute(self, position: int) -> None:
        """Replace a quantized result by its real numbers."""
        with self.t.inside(self.operators):
            self.results[position] = real(self.t, self.results[position])

    def untold(self, keys: Iterable[Key]) -> set[Symbol]:
        """The symbols that the subgraph computes with and that no shape of its inputs for ``keys`` tells."""
        return untold([self.input(key) for key in keys], sizes_of(self.operators))

    def graph(self, keys: Sequence[Key], passed: Sequence[Key] = ()) -> Graph:
        """The graph, with inputs for ``keys``. It returns its results, and the inputs for ``passed`` as they came."""
        inputs = [self.input(key) for key in keys]
        # each result is attributed to the output node
        nodes = [n for n in self.nodes if n.op == "output"] * len(self.results)
        with self.t.inside(self.operators):
            returned = [(n, self.t.held(held(v))) for n, v in zip(nodes, self.results, strict=True)]
            outputs = self.inner.kept_apart(returned, inputs)
            outputs += [self.t.identity(self.inputs[key]) for key in passed]
        return Graph(inputs, outputs, self.operators, self.name)


def keys_of(graphs: Sequence[Subgraph], carried: Iterable[Key] = ()) -> list[Key]:
    """The keys that all graphs of one operator take, which must be the same: ``carried``, then what any of them uses.

    Sizes that none of these inputs tells come last.
    """
    keys = list(carried)
    keys += sorted({key for graph in graphs for key in graph.inputs}.difference(keys))
    return keys + sorted({size for graph in graphs for size in graph.untold(keys)})


def module_of(owner: Node) -> GraphModule:
    """The module of the subgraph that the ``get_attr`` node ``owner`` fetches."""
    module: Any = getattr(owner.graph.owning_module, str(owner.target))
    return module  # type: ignore[no-any-return]


def lower_calls(inner: Interpreter, nodes: Sequence[Node], name: str) -> None:
    """Lower the calls of a subgraph. Unsupported has ``name``, the subgraph's, before the reason."""
    for node in nodes:
        try:
            if node.op == "call_function":
                inner.lower(node)
        except Unsupported as refusal:
            raise Unsupported(refusal.code, within(name, refusal.message), refusal.node, refusal.source) from refusal


def results_of(nodes: Sequence[Node]) -> Sequence[Any]:
    """What a subgraph of these nodes returns. A single result may stand outside of a tuple."""
    returned: Any = nodes[-1].args[0]
    return returned if isinstance(returned, (tuple, list)) else (returned,)


def _nodes_that_compute(values: Iterable[Any]) -> list[Node]:
    """The nodes that ``values`` depend on, in graph order."""
    needed: set[Node] = set()
    waiting = [v for v in values if isinstance(v, Node)]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return [n for n in next(iter(needed)).graph.nodes if n in needed] if needed else []


def value_in(interpreter: Interpreter, argument: Any, what: str) -> Value:
    """The value of ``argument``, an operand or result of a subgraph. Unsupported if it is no tensor.

    ``what`` begins the reason.
    """
    value = argument_in(interpreter, argument, what)
    if not isinstance(value, Value):
        kind = "size" if isinstance(argument, Node) else "Python value"
        raise refused(number_crosses(f"{what} the {kind} {value}, not a tensor"))
    return value


def argument_in(interpreter: Interpreter, argument: Any, what: str) -> Value | int:
    """As ``value_in``, but a size or an int of Python stays one.

    Quantized values stay quantized; other lazy ones are computed.
    """
    if type(argument) is int:
        return argument
    if not isinstance(argument, Node):
        raise refused(f"{what} the Python value {argument!r}, not a tensor")
    value = interpreter.value_of(argument)
    if not isinstance(value, Value):
        return value
    return value if is_quantized(value) else real(interpreter.t, value)


def is_quantized(value: Value) -> TypeGuard[Scaled]:
    """Whether a value is quantized as activations are, so that its integers are all of it that has to cross."""
    return isinstance(value, Scaled) and value.is_small and value.constant is None


def held(value: Value) -> Value:
    """What crosses for a value: the integers of a quantized one, any other as it is.

    (int64 becomes int32 afterwards.)
    """
    return value.q if is_quantized(value) else value


def crossing(t: Tosa, given: Value | int) -> Value:
    """What the graph around the call passes for ``given``, as that graph holds it."""
    assert isinstance(given, Value)
    return t.held(held(given))


def seen(t: Tosa, crossed: Value, like: Value, range: Range | None) -> Value:
    """The reverse of ``crossing``: what rules see of ``crossed``.

    ``like`` is a value of the same form: quantized or not, int64 or not. ``range`` is where its integers lie.
    """
    if is_quantized(like):
        return Scaled(crossed, like.scale, like.zero_point)
    return t.seen(crossed, like.type, range)


def is_alike(first: Value, second: Value) -> bool:
    """Whether two values cross in the same form: both computed, or both in the same quantization."""
    if not (is_quantized(first) and is_quantized(second)):
        return is_quantized(first) == is_quantized(second)
    return (first.scale, first.zero_point, first.q.dtype) == (second.scale, second.zero_point, second.q.dtype)


def operands_of(outer: Interpreter, listed: Any) -> Given:
    """A function that gives the operands ``listed`` of a call by key.

    Operators that an operand needs, such as those that compute a lazy value, go into the graph around the call,
    wherever the operand is asked for.
    """
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
    """A tensor [size] to pass a size in its shape. It is BOOL, a type that every target has."""
    return t.tile(t.constant(0, DType.BOOL), (atom(size),))


def own(constant: Value) -> Value:
    """A copy of a constant for one subgraph: ranges proven in there hold only if the subgraph runs."""
    return Value(constant.type, constant.constant, constant.name) if constant.dtype in INTEGERS else constant


def expect_taken(t: Tosa, cls: type[Operator], *operands: Value) -> None:
    """Raise Unsupported if the target lacks the operator ``cls``, before any of its subgraphs is lowered."""
    empty = Graph((), (), ())
    attributes = dict.fromkeys((name for name, kind in cls.attributes.items() if kind == "Graph"), empty)
    why = t.spec.why_not(cls(operands, **attributes))
    if why is not None:
        raise refused(other_target(t.spec, why, [frozenset({"EXT-CONTROLFLOW"})]))

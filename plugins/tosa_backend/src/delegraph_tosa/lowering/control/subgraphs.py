"""Lowers subgraphs of higher-order calls to graphs of their own.

A graph of TOSA cannot use values of the graph around it. So an operand of the call that
is constant, such as a weight, becomes a constant of each graph that uses it, and every
other operand becomes an input. A quantized operand is passed as its integers.

A graph reads sizes that are known at run time only off the shapes of its inputs. For a
size that no input has, it gets one more input: a tensor of this length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from delegraph.errors import Unsupported
from torch.fx import GraphModule, Node

from ...ir.dynamic_sizes import Symbol, size_of_atom
from ...ir.graph import Graph, Operator, Value
from ...ir.size_sources import sizes_of, unknown_symbols
from ...ir.types import INTEGERS, DType
from ..builder import Tosa
from ..lazy.lazy_values import Scaled, real
from ..ranges.value_ranges import Range
from ..torch_values.hints import number_crosses, other_target, within
from ..torch_values.tensor_types import refused

if TYPE_CHECKING:
    from ..interpret.interpreter import Interpreter

Key = int | Symbol
"""An input of a graph: an operand of the call by position, or a symbol.

A symbol is passed as the shape of a tensor [size].
"""
OperandOf = Callable[[Key], Value | int]
"""Returns the operand of the call for a key: a value, or a size.

Raises Unsupported for other Python values.
"""
Wanted = Callable[[Node], bool]
"""Selects results of a subgraph."""


class Subgraph:
    """A subgraph, lowered to its own list of operators.

    ``results`` are values as rules see them (int64 is int64). ``inputs`` maps a key to
    the input of the graph; there is one for each operand that the subgraph uses and
    that is not constant.
    """

    def __init__(
        self,
        outer: Interpreter,
        owner: Node,
        operand_of: OperandOf,
        only: Wanted | None = None,
    ) -> None:
        """Lower the subgraph that the get_attr node ``owner`` fetches.

        ``outer`` interprets the surrounding program. ``operand_of`` returns operands of
        the higher-order call by key. ``only`` selects results by their nodes: other
        results are not lowered, nor the calls on which only these depend; None selects
        all. Raises Unsupported if a call of the subgraph is refused.
        """
        self.t = outer.t
        self.operand_of = operand_of
        self.operators: list[Operator] = []
        self.inputs: dict[Key, Value] = {}
        self.name = str(owner.target)
        self.nodes = list(module_of(owner).graph.nodes)
        self.position = placeholder_positions(self.nodes)
        self.inner = outer.enter(self.nodes, self._operand)
        returned = list(results_of(self.nodes))
        calls = self.nodes
        if only is not None:
            returned = [v for v in returned if not isinstance(v, Node) or only(v)]
            calls = _nodes_that_compute(returned)
        with self.t.inside(self.operators):
            lower_calls(self.inner, calls, self.name)
            self.results = [
                value_in(self.inner, v, "a subgraph returns") for v in returned
            ]

    def _operand(self, node: Node) -> Value | int:
        """Return the value of a placeholder: a size, a constant or an input.

        Called when a call of the subgraph first uses ``node``; an operand that is
        neither size nor constant gets an input.
        """
        position = self.position[node]
        value = self.operand_of(position)
        if not isinstance(value, Value):  # a size
            return value
        if value.constant is not None:
            return copy_of_integers(value)
        return seen(self.t, self.input(position), value, value.range)

    def input(self, key: Key) -> Value:
        """Return the input of the graph for ``key``, made on first use.

        Raises Unsupported if the target has no tensors of its type.
        """
        if key not in self.inputs:
            operand = self.operand_of(key)
            assert isinstance(operand, Value)
            # the integers of a quantized operand, and int32 for int64
            input_type = self.t.held_type(held(operand).type)
            why = self.t.spec.why_not_tensor(input_type)
            self.t.refuse_unless(why is None, f"an input of {self.name}: {why}")
            self.inputs[key] = Value(input_type, name=f"{self.name}_{key}")
        return self.inputs[key]

    def compute(self, position: int) -> None:
        """Compute the quantized result at ``position`` in floats instead."""
        with self.t.inside(self.operators):
            self.results[position] = real(self.t, self.results[position])

    def unknown_symbols(self, keys: Iterable[Key]) -> set[Symbol]:
        """Return the symbols that the subgraph needs, without those of its inputs."""
        inputs = [self.input(key) for key in keys]
        return unknown_symbols(inputs, sizes_of(self.operators))

    def graph(self, keys: Sequence[Key], passed: Sequence[Key] = ()) -> Graph:
        """Return the graph, with inputs for ``keys``.

        It returns its results, and the inputs for ``passed`` unchanged.
        """
        inputs = [self.input(key) for key in keys]
        # each result is attributed to the output node
        output_node = self.nodes[-1]
        with self.t.inside(self.operators):
            # the integers of a quantized result, and int32 for int64
            returned = [(output_node, self.t.held(held(v))) for v in self.results]
            outputs = self.inner.kept_apart(returned, inputs)
            outputs += [self.t.identity(self.inputs[key]) for key in passed]
        return Graph(inputs, outputs, self.operators, self.name)


def keys_of(graphs: Sequence[Subgraph], carried: Iterable[Key] = ()) -> list[Key]:
    """Return the keys of the inputs that all ``graphs`` of one operator get, in order.

    ``carried`` come first, then the operands that any of the graphs uses. Then comes
    the symbol of each size that a graph computes with, if no shape of the inputs before
    has it.
    """
    keys = list(carried)
    used: set[Key] = set()
    for graph in graphs:
        used.update(graph.inputs)
    keys += sorted(used.difference(keys))
    sizes: set[Symbol] = set()
    for graph in graphs:
        sizes |= graph.unknown_symbols(keys)
    return keys + sorted(sizes)


def placeholder_positions(nodes: Iterable[Node]) -> dict[Node, int]:
    """Map the placeholders of a subgraph to their positions: 0, 1, .."""
    found = [node for node in nodes if node.op == "placeholder"]
    return {node: position for position, node in enumerate(found)}


def module_of(owner: Node) -> GraphModule:
    """Return the module of the subgraph that the node ``owner`` fetches."""
    module: Any = getattr(owner.graph.owning_module, str(owner.target))
    return module  # type: ignore[no-any-return]


def lower_calls(inner: Interpreter, nodes: Sequence[Node], name: str) -> None:
    """Lower the calls of the subgraph ``name``.

    If one is refused, raises Unsupported that begins with ``name``.
    """
    for node in nodes:
        try:
            if node.op == "call_function":
                inner.lower(node)
        except Unsupported as refusal:
            raise Unsupported(
                refusal.code,
                within(name, refusal.message),
                refusal.node,
                refusal.source,
            ) from refusal


def results_of(nodes: Sequence[Node]) -> Sequence[Any]:
    """Return the results of a subgraph with these ``nodes``, as a sequence.

    The last node is its output.
    """
    returned: Any = nodes[-1].args[0]
    return returned if isinstance(returned, (tuple, list)) else (returned,)


def _nodes_that_compute(values: Iterable[Any]) -> list[Node]:
    """Return the nodes on which ``values`` depend, these included, in graph order."""
    needed: set[Node] = set()
    waiting = [v for v in values if isinstance(v, Node)]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    if not needed:
        return []
    # the graph of any needed node has all nodes in order
    any_node = next(iter(needed))
    return [node for node in any_node.graph.nodes if node in needed]


def value_in(interpreter: Interpreter, argument: Any, what: str) -> Value:
    """Return the value of ``argument``, an operand or result of a subgraph.

    Raises Unsupported if it is no tensor; the reason begins with ``what``, as in "the
    loop carries".
    """
    value = argument_in(interpreter, argument, what)
    if not isinstance(value, Value):
        kind = "size" if isinstance(argument, Node) else "Python value"
        raise refused(number_crosses(f"{what} the {kind} {value}, not a tensor"))
    return value


def argument_in(interpreter: Interpreter, argument: Any, what: str) -> Value | int:
    """As ``value_in``, but returns a size or a Python int as it is.

    Quantized values stay quantized; other lazy values are computed in floats.
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
    """Return whether ``value`` is passed to a graph as its integers.

    Quantized activations are, constants are not.
    """
    return isinstance(value, Scaled) and value.is_small and value.constant is None


def held(value: Value) -> Value:
    """Return the tensor for ``value`` in a graph: the integers if it is quantized.

    An int64 is not narrowed here: callers pass the result to ``Tosa.held``, which
    returns its int32.
    """
    return value.q if is_quantized(value) else value


def crossing(t: Tosa, operand: Value | int) -> Value:
    """Return the tensor that the surrounding graph passes for ``operand``.

    For a quantized value these are its integers, for an int64 its int32, else the value
    itself.
    """
    assert isinstance(operand, Value)
    return t.held(held(operand))


def seen(t: Tosa, crossed: Value, like: Value, range: Range | None) -> Value:
    """Return the value that rules see for a tensor that crossed into a graph.

    This is the reverse of ``crossing``. If ``like`` is quantized, the result is
    ``crossed`` in the same quantization, and ``range`` is not used. Otherwise the
    result has the type of ``like`` and ``range``; a range of None is that of the type.
    """
    if is_quantized(like):
        return like.with_integers(crossed)
    return t.seen(crossed, like.type, range)


def have_one_quantization(first: Value, second: Value) -> bool:
    """Return whether both values have the same quantization, or neither has any."""
    if not is_quantized(first) or not is_quantized(second):
        return is_quantized(first) == is_quantized(second)
    return first.has_quantization_of(second)


def operands_of(outer: Interpreter, arguments: Any) -> OperandOf:
    """Return a function that computes the operands of a call by key, each once.

    Operators that compute an operand, such as those of a lazy value, are appended to
    the graph around the call, even if the function is called while a subgraph is
    lowered.
    """
    # the list of the graph around the call: later, ``outer.t.operators`` may be the
    # list of a subgraph
    operators = outer.t.operators
    operands: dict[Key, Value | int] = {}

    def operand_of(key: Key) -> Value | int:
        """Return the operand: a tensor of this length for a size, else the argument."""
        if key in operands:
            return operands[key]
        with outer.t.appending_to(operators):
            if isinstance(key, Symbol):
                operand: Value | int = as_long_as(outer.t, key)
            else:
                operand = argument_in(outer, arguments[key], "a subgraph is given")
        operands[key] = operand
        return operand

    return operand_of


def as_long_as(t: Tosa, size: Symbol) -> Value:
    """Return a tensor [size], which passes ``size`` to a graph by its shape.

    It is BOOL, a type that every target has.
    """
    return t.tile(t.constant(0, DType.BOOL), (size_of_atom(size),))


def copy_of_integers(constant: Value) -> Value:
    """Return a copy of an integer constant for use in one subgraph.

    Rules may narrow the range of the copy, which holds only if the subgraph runs. So
    the original must not change. Other constants have no range, and are returned as
    they are.
    """
    if constant.dtype not in INTEGERS:
        return constant
    return Value(constant.type, constant.constant, constant.name)


def require_control_flow(t: Tosa, cls: type[Operator], *operands: Value) -> None:
    """Raise Unsupported if the target lacks the control flow operator ``cls``.

    This is checked with empty graphs, before the subgraphs are lowered.
    """
    empty = Graph((), (), ())
    graphs = [name for name, kind in cls.attributes.items() if kind == "Graph"]
    why = t.spec.why_not(cls(operands, **dict.fromkeys(graphs, empty)))
    if why is not None:
        raise refused(other_target(t.spec, why, [frozenset({"EXT-CONTROLFLOW"})]))

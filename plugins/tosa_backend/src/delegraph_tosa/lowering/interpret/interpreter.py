"""Lowers a whole program: placeholders become inputs or constants, calls use rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, TypeVar

import torch
from delegraph.errors import Unsupported
from delegraph_programs import (
    Source,
    constant_placeholders,
    constant_tensor,
    line_of,
    output_values,
    placeholders,
    user_inputs,
    why_no_bytes,
    written_values,
)
from delegraph_programs.call_names import WITHIN
from delegraph_programs.exported_program import STATE_WRITES
from torch.export import ExportedProgram
from torch.fx import Node

from ...ir.graph import Graph, Value
from ...ir.types import Type
from ...spec.target import value_alternatives
from ..aten import import_late
from ..builder import Tosa
from ..lazy.lazy_values import any_lazy, real
from ..lazy.unsigned import Bytes, constant_bytes, is_bytes, type_of_bytes
from ..ranges.border_dtypes import AS_ITSELF, BORDER_DTYPE
from ..ranges.bounds import bounds_of, overloads
from ..ranges.value_ranges import Range, meet, range_of
from ..registry import (
    CONTROL,
    Result,
    Rule,
    apply_control,
    bind,
    indexes_of,
    is_empty,
    is_unpacking,
    rule_of,
)
from ..torch_values.hints import dynamic, no_rule, other_target
from ..torch_values.symbolic_numbers import UNKNOWN, number_of
from ..torch_values.symbolic_sizes import depends_on_data, is_size, size_of
from ..torch_values.tensor_types import (
    constant_of,
    memory_of,
    no_tensor,
    refused,
    type_of,
)
from .lazy_calls import apply_lazy
from .saturation import saturated, saturating_casts
from .templates import templates_for

_TYPE_CASTS = {*overloads("to"), *overloads("_to_copy"), *overloads("type_as")}
R = TypeVar("R", bound=Result | int)


class Origin:
    """The origin of an operator: node, debug handle, module and the user's line.

    Operator, module and line are looked up on demand: a program has thousands
    of origins.
    """

    __slots__ = ("_target", "handle", "meta", "node")

    def __init__(self, node: Node) -> None:
        self.node = node.name
        self._target = node.target
        self.meta = node.meta
        self.handle: int | None = self.meta.get("debug_handle")

    @property
    def operator(self) -> str:
        return str(self._target)

    @property
    def module(self) -> str:
        """Path in the user's model, as in ``named_modules``; empty in the model itself.

        It is the innermost module that contains the node's call.
        """
        modules = self.meta.get("nn_module_stack")
        path: str = next(reversed(modules.values()))[0] if modules else ""
        return path

    @property
    def source(self) -> Source | None:
        """The user's line; None if it is not known."""
        return line_of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin) and self.node == other.node

    def __hash__(self) -> int:
        return hash(self.node)

    def __str__(self) -> str:
        """Return text like ``relu_1 = aten.relu.default in layers.0 at model.py:7``."""
        text = f"{self.node} = {self.operator}"
        if self.module:
            text += f" in {self.module}"
        if self.source:
            text += f" at {self.source}"
        return text


class Interpreter:
    """Maps the nodes of a program to values, and lowers its calls one by one.

    An operand that is not lowered here is an input of the graph, with the type that
    torch recorded.
    """

    def __init__(
        self,
        t: Tosa,
        constant: Callable[[Node], Value | int | None],
        nodes: Collection[Node] = (),
        bounds: Mapping[Node, Range] | None = None,
    ) -> None:
        """Create an interpreter that lowers calls of ``nodes`` on the builder ``t``.

        ``constant`` returns the value of a constant placeholder, or the size that a
        placeholder of a subgraph represents, and None for other nodes. ``bounds`` maps
        nodes to the ranges of integers that their uses prove (``bounds_of``); None
        finds them from ``nodes``.
        """
        import_late()
        self.t = t
        self.constant = constant
        self.bounds = bounds_of(nodes, indexes_of) if bounds is None else bounds
        self.casts = saturating_casts(nodes, self.bounds)
        """Maps casts of floats to int64 to the range of a clamp (``saturation``)."""
        self.values: dict[Node, Result | float] = {}
        """Node -> its lowered value or values.

        A number if the node computes with sizes.
        """
        self.templates = templates_for(t.spec)

    def value_of(self, node: Node) -> Value:
        """Return the value of ``node`` as an operand.

        Raises Unsupported if the node is not lowered and cannot be an input.
        """
        value = self.values.get(node)
        if value is None:
            value = self._first_use(node)
            self.values[node] = value
        if value is UNKNOWN:
            raise refused(no_tensor(node.meta["val"], f"the operand {node.name}"))
        return value  # type: ignore[return-value]

    def _first_use(self, node: Node) -> Value | int:
        """Return the value of a node that has none yet.

        It is one of several results of a call, a constant or an input. Raises
        Unsupported if the rule of the call does not lower this result, or if the node
        cannot be an input.
        """
        if self._is_result_of_lowered_call(node):
            call: Any = node.args[0]
            index: Any = node.args[1]
            results: Any = self.values[call]
            result: Value | None = results[index]
            if result is None:
                raise refused(f"result {index} of {call.target} is not lowered")
            return self.bounded(node, result)
        constant = self.constant(node)
        if constant is None:
            constant = self.input(node)
        return self.bounded(node, constant)

    def _is_result_of_lowered_call(self, node: Node) -> bool:
        """Return whether ``node`` selects one of several results of a lowered call."""
        return is_unpacking(node) and node.args[0] in self.values

    def bounded(self, node: Node, result: R) -> R:
        """Narrow the range of ``result`` to the bounds that the uses of ``node`` prove.

        A constant keeps the range of its elements: equal calls, and other programs, may
        share it.
        """
        if not isinstance(result, Value) or result.constant is not None:
            return result
        if node in self.bounds:
            result.range = meet(range_of(result), self.bounds[node])
        return result

    def type_of_operand(self, node: Node) -> Type:
        """Return the type of an operand, for rules that read only types.

        An operand that is not lowered here is an input of the delegate, even if no
        operator reads it. So this raises Unsupported if the target has no tensors of
        its type.
        """
        type = type_of(node.meta.get("val"), f"the input {node.name}", node)
        if node not in self.values:
            self.expect_tensor(node, self.t.held_type(type))
        return type

    def input(self, node: Node) -> Value:
        """Return the value of a node that is an input of the graph.

        Raises Unsupported if the target has no such tensor.
        """
        val = node.meta.get("val")
        what = f"the input {node.name}"
        type = type_of_bytes(val, what) if is_bytes(val) else type_of(val, what, node)
        self.expect_tensor(node, type)
        value = Value(type, name=node.name)
        if WITHIN in node.meta:
            value.range = tuple(node.meta[WITHIN])
        if is_bytes(val):
            return Bytes.arriving(self.t, value)
        return value

    def expect_tensor(self, node: Node, type: Type) -> None:
        """Raise Unsupported unless the target has inputs of ``type``, for ``node``."""
        if type.is_dynamic and not self.t.spec.takes_dynamic:
            raise refused(dynamic(node.meta["val"], f"the input {node.name}", node))
        why = self.t.spec.why_not_tensor(type)
        if why is not None:
            why = f"the input {node.name}: {why}"
            ways = value_alternatives(type.dtype, self.t.spec.version)
            raise refused(other_target(self.t.spec, why, ways))

    def is_kept(self, node: Node) -> bool:
        """Return whether ``node`` is a cast that takes no operator.

        Its operand entered the delegate in the type that the cast returns
        (``border_dtypes``).
        """
        if node.target not in _TYPE_CASTS or not node.args:
            return False
        operand = node.args[0]
        carried = operand.meta.get(BORDER_DTYPE) if isinstance(operand, Node) else None
        return carried in AS_ITSELF and node.meta.get(BORDER_DTYPE) == carried

    def run(self, node: Node) -> Result | float:
        """Lower one call and return its result.

        Raises Unsupported if it cannot be lowered. Returns None for a result without
        elements, and for a getitem.
        """
        if is_unpacking(node):
            # ``value_of`` picks the result when it is used: unused results may not be
            # lowered
            return None
        if is_size(node):
            return self.size(node)
        if self.is_kept(node):
            kept = self.value_of(node.args[0])  # type: ignore[arg-type]
            self.values[node] = kept
            return kept
        if node.target in CONTROL:
            results = apply_control(self, node)
            self.values[node] = results
            return results
        rule = rule_of(node)
        if is_empty(node):
            return None
        arguments = self.arguments(rule, node)
        if any_lazy(arguments):
            result = apply_lazy(self.t, rule, node, arguments)
        else:
            result = self.templates.apply(self.t, rule, node, arguments)
        self.values[node] = self.bounded(node, result)
        return result

    def arguments(self, rule: Rule, node: Node) -> list[Any]:
        """Return the arguments for the rule of ``node``, in the schema's order."""
        arguments = bind(rule, node, self.value_of, self.type_of_operand)
        # a cast of floats to int64; its operand may be clamped first (``saturation``)
        if node in self.casts:
            arguments[0] = saturated(self.t, arguments[0], self.casts[node])
        return arguments

    def lower(self, node: Node) -> None:
        """Lower one call.

        If it is refused, Unsupported has the node and the user's line. For a branch or
        loop, these are the node and line of the refused call inside.
        """
        origin = Origin(node)
        self.t.source = origin
        try:
            self.run(node)
        except Unsupported as error:
            if error.node is not None:
                raise
            raise Unsupported(
                error.code, f"{node.target}: {error.message}", node, origin.source
            ) from error

    def enter(
        self, nodes: Collection[Node], operand_of: Callable[[Node], Value | int]
    ) -> Interpreter:
        """Return an interpreter for the ``nodes`` of a subgraph, on the same builder.

        ``operand_of`` returns the value, or the size, for a placeholder of the
        subgraph.
        """
        # a copy, so that it is of the same class: a dry run lowers subgraphs by dry
        # runs
        inner = copy(self)
        inner.values = {}
        inner.bounds = bounds_of(nodes, indexes_of)
        inner.casts = saturating_casts(nodes, inner.bounds)

        def constant(node: Node) -> Value | int | None:
            """Return the operand for a placeholder, or the tensor of a get_attr."""
            if node.op == "placeholder":
                return operand_of(node)
            return _tensor_of(node)

        inner.constant = constant
        return inner

    def read_variable(self, buffer: Node, name: str, initial: torch.Tensor) -> None:
        """Declare and read the variable ``name`` for the mutated buffer ``buffer``.

        The value of ``buffer`` is then the content of the variable when a call begins:
        ``initial`` before the first call.
        """
        # the operators belong to the first call that uses the buffer
        calls = [user for user in buffer.users if user.op == "call_function"]
        self.t.source = Origin(calls[0] if calls else buffer)
        self.values[buffer] = self.t.variable(name, constant_of(name, initial))

    def write_variable(self, value: Node, name: str) -> None:
        """Let the variable hold ``value`` when the next call starts."""
        self.t.source = Origin(value)
        self.t.variable_write(name, self.value_of(value))

    def size(self, node: Node) -> float:
        """Return the number that a call on sizes computes.

        Raises Unsupported if it depends on data. No operator is emitted: torch recorded
        the number as an expression of symbols, which the graph reads off the shapes of
        its inputs.
        """
        val = node.meta["val"]
        if depends_on_data([val]):
            raise refused(no_rule(node.target))
        for operand in node.all_input_nodes:
            self._expect_inside(operand)
        number = size_of(val) if isinstance(val, torch.SymInt) else number_of(val)
        self.values[node] = number
        return number

    def _expect_inside(self, node: Node) -> None:
        """Raise Unsupported if the delegate cannot read ``node``, an operand on sizes.

        The delegate reads only the shape of a tensor. But the tensor has to be computed
        in the delegate, or be an input.
        """
        val = node.meta.get("val")
        if not isinstance(val, torch.Tensor):
            # a number computed from sizes
            self.value_of(node)
        # uint8, which TOSA lacks, can be an input all the same (``Bytes``)
        elif not self._is_result_of_lowered_call(node) and not is_bytes(val):
            self.type_of_operand(node)

    def returned(self, nodes: Sequence[Node], inputs: Iterable[Value]) -> list[Value]:
        """Return the results of a graph with ``inputs`` that returns ``nodes``.

        See ``kept_apart``.
        """
        return self.kept_apart([(node, self.value_of(node)) for node in nodes], inputs)

    def kept_apart(
        self, returned: Iterable[tuple[Node, Value]], inputs: Iterable[Value]
    ) -> list[Value]:
        """Return the results of a graph that returns ``returned``, as separate tensors.

        ``returned`` has pairs of a node and its value. Lazy values are computed. If a
        value is an input, a constant or an earlier result, an IDENTITY copies it,
        because each result has to be a tensor of its own. Raises Unsupported if the
        target has no tensors of a result's type.
        """
        taken = set(inputs)
        results = []
        for position, (node, value) in enumerate(returned):
            self.t.source = Origin(node)
            if isinstance(value, Bytes):
                tensor = value.leaving(self.t)
            else:
                tensor = real(self.t, value)
            why = self.t.spec.why_not_tensor(tensor.type)
            self.t.refuse_unless(why is None, f"output {position}: {why}")
            if tensor in taken or tensor.constant is not None:
                tensor = self.t.identity(tensor)
            taken.add(tensor)
            results.append(tensor)
        return results


def lower_program(program: ExportedProgram, t: Tosa) -> Graph:
    """Return the TOSA graph of a functional program, before the passes.

    ``t`` is a new builder for the target. Its inputs are the user inputs, in order,
    with the names of their placeholders; results have the names of the returned nodes.
    Parameters, buffers and constants are kept by reference and read when the graph is
    written. Buffers that the program writes are variables: the graph reads them first
    and writes them last. Raises Unsupported with the node and the user's line.
    """
    nodes = list(program.graph.nodes)
    interpreter = Interpreter(t, _constants(program), nodes)
    inputs = [_graph_input(interpreter.value_of(node)) for node in user_inputs(program)]
    # placeholder of a written buffer -> the node of its new value
    new_values = written_values(program)
    buffers = [
        (node, spec) for node, spec in placeholders(program) if node in new_values
    ]
    for buffer, spec in buffers:
        initial = constant_tensor(program, spec)
        interpreter.read_variable(buffer, str(spec.target), initial)
    for node in nodes:
        if node.op == "call_function":
            interpreter.lower(node)
    for buffer, spec in buffers:
        interpreter.write_variable(new_values[buffer], str(spec.target))
    returned = _returned_nodes(program)
    results = interpreter.returned(returned, inputs)
    _name_results(results, returned, {value.name for value in inputs})
    return Graph(inputs, results, t.operators)


def _graph_input(value: Value) -> Value:
    """Return the graph's input for a user input: int8 for a uint8 value."""
    if isinstance(value, Bytes) and value.held is not None:
        return value.held
    return value


def _name_results(
    results: Iterable[Value], nodes: Iterable[Node], taken: set[str]
) -> None:
    """Name results after their nodes, so that users find them in the file.

    A ``_`` is appended to names that are ``taken``.
    """
    for value, node in zip(results, nodes, strict=True):
        value.name = node.name
        while value.name in taken:
            value.name += "_"
        taken.add(value.name)


def _constants(program: ExportedProgram) -> Callable[[Node], Value | None]:
    """Return a function from a constant placeholder to its value, else None.

    The value refers to its tensor; tied weights share one value. The function raises
    Unsupported for a tensor with unreadable elements.
    """
    constant = constant_placeholders(program)
    specs = dict(placeholders(program))
    values: dict[Any, Value] = {}
    known: dict[Node, Value] = {}

    def value(node: Node) -> Value | None:
        """Return the value of ``node`` if it is a constant placeholder, else None.

        Equal tensors share one value.
        """
        if node not in constant or node in known:
            return known.get(node)
        tensor = constant_tensor(program, specs[node])
        why = why_no_bytes(tensor)
        if why is not None:
            raise refused(f"the constant {specs[node].target}: {why}")
        make = constant_bytes if is_bytes(tensor) else constant_of
        made = make(str(specs[node].target), tensor)
        known[node] = values.setdefault(memory_of(tensor), made)
        return known[node]

    return value


def _tensor_of(node: Node) -> Value | None:
    """Return the constant tensor of a get_attr node of a subgraph.

    None for other nodes.
    """
    if node.op != "get_attr":
        return None
    return constant_of(node.name, getattr(node.graph.owning_module, str(node.target)))


def _returned_nodes(program: ExportedProgram) -> list[Node]:
    """Return the nodes that the program returns, without updates of buffers.

    Raises Unsupported if the program returns a Python value.
    """
    specs = program.graph_signature.output_specs
    returned: list[Node] = []
    for spec, item in zip(specs, output_values(program), strict=True):
        if spec.kind in STATE_WRITES:
            continue
        if not isinstance(item, Node):
            raise refused(
                f"output {len(returned)} is the Python value {item!r}, not a tensor"
            )
        returned.append(item)
    return returned

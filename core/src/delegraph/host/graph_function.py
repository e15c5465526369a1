"""Makes a Python function from the graph of a program.

The function executes the calls of the graph one by one, as torch.fx.Interpreter does.
Constants and layouts are looked up only once, when the function is made. Calls of the
function share no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from delegraph_programs import source_of
from delegraph_programs.call_names import INDEXED
from delegraph_programs.exported_program import CALL_DELEGATE
from delegraph_programs.program_arguments import outside
from delegraph_programs.required_strides import Layout, arrange, subgraph_layouts
from delegraph_programs.sizes_below_two import check_rank, squeeze_breaks_rank
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from ..delegates.lowered_module import LoweredBackendModule
from ..errors import DelegraphError, InputError
from ..runtime import Observer

RESHAPE = torch.ops.aten.reshape.default
VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
"""Views that run as ``reshape``: torch recorded the views for certain strides, and
values at run time may have other strides.
"""
OBSERVABLE = frozenset({"cond", "while_loop", "map_impl", "scan"})
"""Operators that call their subgraphs with plain tensors, so that an observer can see
the values inside. Other operators vectorize their subgraphs.
"""
Function = Callable[..., Any]


class BoundDelegate(NamedTuple):
    """A delegate as a function.

    ``run``: takes the inputs and returns the outputs. ``arrange``: returns an input in
    the layout that the backend saw, or unchanged if the runtime takes any strides.
    """

    run: Function
    arrange: Callable[[Any, Layout | None], Any] = arrange


BindDelegate = Callable[[LoweredBackendModule], BoundDelegate]


def eager_target(node: Node) -> Any:
    """Return the function that computes ``node`` for values with any strides.

    It is the node's own operator, except for a view. In place of a view, it is
    ``reshape``, which copies if the strides allow no view.
    """
    return RESHAPE if node.target in VIEWS else node.target


def is_observable(owner: Node) -> bool:
    """Return whether an ``Observer`` can see the values in a subgraph.

    It can if all calls that get the subgraph are in OBSERVABLE. ``owner``: the
    ``get_attr`` node that fetches the subgraph.
    """
    return all(
        getattr(user.target, "__name__", "") in OBSERVABLE for user in owner.users
    )


class _Step(NamedTuple):
    """One call of a graph.

    ``args`` and ``kwargs`` contain nodes in place of values. ``layout``: the layout
    that the result gets; None: the result stays as it is. ``unused``: the nodes with
    values that are deleted after this step.
    """

    node: Node
    function: Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layout: Layout | None
    unused: list[Node]


class Graph(NamedTuple):
    """A graph that several functions may execute.

    ``parameters``: the placeholders for the arguments of a call, in order.
    ``constants``: placeholder -> value, for all other placeholders. ``layouts``: node
    -> the layout that its value gets as soon as the value is computed. ``is_subgraph``:
    it is a branch or loop body.
    """

    module: GraphModule
    parameters: Sequence[Node]
    constants: Mapping[Node, Any]
    layouts: Mapping[Node, Layout]
    is_subgraph: bool = False


class GraphFunction:
    """A function of a graph's parameters that returns its outputs.

    Several threads may call the function at the same time. ``bind`` returns the
    function that runs a delegate. ``observer`` gets the value of each node that is a
    call.
    """

    def __init__(
        self, graph: Graph, bind: BindDelegate, observer: Observer | None = None
    ) -> None:
        """Prepare the calls of the graph and of its subgraphs."""
        self._graph = graph
        self._bind = bind
        self._observer = observer
        self._constants = dict(graph.constants)
        self._steps: list[_Step] = []
        unused_after = _last_uses(graph.module.graph)
        for node in graph.module.graph.nodes:
            if node.op == "get_attr":
                self._constants[node] = self._fetch(node)
            elif node.op == "call_function":
                function, args = self._function_of(node)
                step = _Step(
                    node,
                    function,
                    self._with_constants(args),
                    self._with_constants(dict(node.kwargs)),
                    graph.layouts.get(node),
                    unused_after[node],
                )
                self._steps.append(step)
            elif node.op == "output":
                self._output = self._with_constants(node.args[0])

    def __call__(self, *inputs: Any) -> Any:
        """Execute the calls in order. Values are deleted after their last use, so that
        a call holds no more memory than eager.
        """
        values = dict(zip(self._graph.parameters, inputs, strict=True))
        observer = self._observer
        # in a subgraph, ``_observed`` calls ``enter`` and ``leave`` instead of ``begin``
        # and ``end``
        is_whole = not self._graph.is_subgraph
        if observer is not None and is_whole:
            observer.begin(dict(values))
        for node, function, args, kwargs, layout, unused in self._steps:
            try:
                value = function(
                    *map_arg(args, values.__getitem__),
                    # most calls have no kwargs, and ``map_arg`` takes time
                    **(map_arg(kwargs, values.__getitem__) if kwargs else {}),
                )
                if layout is not None:
                    value = arrange(value, layout)
            except Exception as error:
                if not isinstance(error, DelegraphError):
                    source = source_of(node)
                    error.add_note(f"in {node.target} at {source or 'an unknown line'}")
                raise
            values[node] = value
            if observer is not None:
                observer.see(node, value)
            del value  # ``values`` has the only reference, which may be deleted below
            for other in unused:
                values.pop(other, None)
        if observer is not None and is_whole:
            observer.end()
        return map_arg(self._output, values.__getitem__)

    def _fetch(self, node: Node) -> Any:
        """Return the object that a ``get_attr`` node fetches.

        For a subgraph, return the function that runs it; for a delegate, return a
        ``BoundDelegate``.
        """
        value: Any = self._graph.module
        # the target is a path of attributes, such as ``body.lowered_0``
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, LoweredBackendModule):
            return self._bind(value)
        if not isinstance(value, GraphModule):
            return value
        inputs = [n for n in value.graph.nodes if n.op == "placeholder"]
        layouts = subgraph_layouts(node, value, self._graph.layouts)
        observer = self._observer if is_observable(node) else None
        subgraph = Graph(value, inputs, {}, layouts, is_subgraph=True)
        run = GraphFunction(subgraph, self._bind, observer)
        if observer is None:
            return run
        return _observed(run, observer, node, value)

    def _with_constants(self, value: Any) -> Any:
        """Return the arguments ``value`` with constants in place of their nodes."""
        return map_arg(value, lambda node: self._constants.get(node, node))

    def _function_of(self, node: Node) -> tuple[Function, tuple[Any, ...]]:
        """Return the function that computes ``node``, and its arguments.

        A cast of indices for a delegate also checks that they are in range. A squeeze
        also checks the rank of its result, if another rank would break later calls.
        """
        if node.target is CALL_DELEGATE:
            delegate, *inputs = node.args
            assert isinstance(delegate, Node)
            return _arranging(self._constants[delegate], inputs), tuple(inputs)
        target = eager_target(node)
        if _casts_indices(node):
            return _checking_indices(target, node), node.args
        if squeeze_breaks_rank(node, self._graph.is_subgraph):
            return (lambda *a, **k: check_rank(target(*a, **k), node)), node.args
        return target, node.args


def _last_uses(graph: torch.fx.Graph) -> dict[Node, list[Node]]:
    """Return node -> the values that can be deleted after it has been computed.

    These are its operands and its own value, if no later node uses them.
    """
    used_later: set[Node] = set()
    uses: dict[Node, list[Node]] = {}
    for node in reversed(graph.nodes):
        values = {node, *node.all_input_nodes}
        uses[node] = list(values - used_later)
        used_later |= values
    return uses


def _arranging(delegate: BoundDelegate, inputs: Sequence[Any]) -> Function:
    """Return a function that runs ``delegate`` with values in the layouts that its
    backend saw. ``inputs``: the arguments of the call in the graph.
    """
    layouts = [
        Layout.of(node.meta.get("val")) if isinstance(node, Node) else None
        for node in inputs
    ]

    def call(*values: Any) -> Any:
        """Call the delegate."""
        pairs = zip(values, layouts, strict=True)
        arranged = (delegate.arrange(value, layout) for value, layout in pairs)
        return delegate.run(*arranged)

    return call


def _observed(
    run: Function, observer: Observer, owner: Node, module: GraphModule
) -> Function:
    """Return ``run``, the function of the subgraph ``module``, with calls of ``enter``
    and ``leave`` of ``observer`` around it.

    ``owner``: the node that fetches the subgraph.
    """

    def call(*inputs: Any) -> Any:
        """Call the subgraph. ``leave`` is called even if the subgraph raises an error."""
        observer.enter(owner, module, inputs)
        try:
            return run(*inputs)
        finally:
            observer.leave()

    return call


def _casts_indices(node: Node) -> bool:
    """Return whether ``node`` casts int64 indices of the host to int32 for a delegate.

    Without a check, an index that is out of range could become a valid one.
    """
    if "boundary" not in node.meta or node.meta["val"].dtype is not torch.int32:
        return False
    operand = node.all_input_nodes[0]
    return INDEXED in operand.meta and operand.meta["val"].dtype is torch.int64


def _checking_indices(target: Function, node: Node) -> Function:
    """Return ``target``, the function of the cast ``node``, with a check of its operand.

    The function raises InputError if an index is out of range.
    """
    operand = node.all_input_nodes[0]
    low, high = operand.meta[INDEXED]

    def call(value: Any, *args: Any, **kwargs: Any) -> Any:
        """Check the indices ``value``, and cast them."""
        found = outside(value, low, high)
        if found is not None:
            raise InputError(
                "input-invalid",
                f"an index is out of range: {operand.name} has an element {found};"
                f" {low} to {high} are in range",
                operand,
                source_of(operand),
            )
        return target(value, *args, **kwargs)

    return call

"""The graph of a program as one Python function. It is faster than an interpreter, and
calls share no state.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from delegraph_programs import operator_name, source_of
from delegraph_programs.call_arguments import outside
from delegraph_programs.call_names import INDEXED
from delegraph_programs.exported_program import CALL_DELEGATE
from delegraph_programs.required_strides import Layout, arrange, subgraph_layouts
from delegraph_programs.traced_sizes import check_rank, squeeze_breaks_rank
from torch.fx import GraphModule, Node

from ..delegates.lowered_module import LoweredBackendModule
from ..errors import InputError

RESHAPE = torch.ops.aten.reshape.default
VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
"""Run as ``reshape``: torch recorded them for certain strides, and values at run time
may have others.
"""


def eager_target(node: Node) -> Any:
    """The function that computes what eager PyTorch did for ``node``, for values with
    any strides.

    That is the node's own operator; only a view becomes a ``reshape``, which copies
    where the strides allow no view.
    """
    return RESHAPE if node.target in VIEWS else node.target


_serial = itertools.count()
Function = Callable[..., Any]
BindDelegate = Callable[[LoweredBackendModule], Function]
OBSERVABLE = frozenset({"cond", "while_loop", "map_impl", "scan"})
"""Operators that call their subgraphs with plain tensors, so that values inside can be
seen; others vectorize them.
"""


class Watch(Protocol):
    """Gets the value of each call as soon as it is computed, also in branches and loop
    bodies.

    ``enter`` begins a call of the subgraph ``module``, which the node ``owner``
    fetches, ``leave`` ends it; values seen in between are that subgraph's.
    """

    def see(self, node: Node, value: Any) -> None: ...

    def enter(
        self, owner: Node, module: GraphModule, inputs: Sequence[Any]
    ) -> None: ...

    def leave(self) -> None: ...


class GraphCode:
    """The Python code of a graph and of its subgraphs; ``function`` binds it to
    delegates.

    ``parameters``: the placeholders that a call passes, in order. ``constants``:
    placeholder -> value, for all others. ``layouts``: node -> the layout that its value
    gets as soon as it is computed. ``watched``: the code passes its values to a
    ``Watch``. ``inside``: the graph is a subgraph.
    """

    def __init__(
        self,
        module: GraphModule,
        parameters: Sequence[Node],
        constants: Mapping[Node, Any],
        layouts: Mapping[Node, Layout],
        watched: bool = False,
        inside: bool = False,
    ) -> None:
        """Generate and compile the code; the class says what the parameters are."""
        self._module = module
        self._layouts = layouts
        self._watched = watched
        self._inside = inside
        # node -> the name of its value in the code
        self._names = {node: f"v{k}" for k, node in enumerate(module.graph.nodes)}
        # the globals of the code: objects, subgraphs and delegates by name
        self._bound: dict[str, Any] = {
            "arrange": arrange,
            "check_rank": check_rank,
            "expect_narrow": _expect_narrow,
        }
        self._bound |= {self._names[n]: v for n, v in constants.items()}
        # by their names in the code; ``function`` makes functions of them
        # with the node that fetches the subgraph
        self._subgraphs: dict[str, tuple[Node, GraphCode]] = {}
        self._delegates: dict[str, LoweredBackendModule] = {}
        self._lines = [f"def run({', '.join(self._names[n] for n in parameters)}):"]
        self._origins: list[Node | None] = [None]  # the node of each line
        self._write(set(parameters))
        self._file = f"lowered graph {next(_serial)}"
        self._code = compile("\n".join(self._lines), self._file, "exec")

    def function(self, bind: BindDelegate, watch: Watch | None = None) -> Function:
        """The graph as a function of its parameters that returns its outputs. It is
        thread-safe.

        ``bind`` returns the function that runs a delegate. ``watch`` gets the values,
        if the code is ``watched``.
        """
        # tracebacks find `get_source` by `__name__` and `__loader__`, so the text is
        # made only when one is printed the globals of the code
        names = {**self._bound, "__name__": self._file, "__loader__": self}
        names["see"] = None if watch is None else watch.see
        for name, module in self._delegates.items():
            names[name] = run = bind(module)
            names[f"{name}_arrange"] = getattr(run, "arrange", arrange)
        for name, (owner, subgraph) in self._subgraphs.items():
            run = subgraph.function(bind, watch)
            if watch is not None and subgraph._watched:
                run = _watched(run, watch, owner, subgraph._module)
            names[name] = run
        exec(self._code, names)  # defines ``run``
        function: Function = names["run"]
        return function

    def get_source(self, name: str) -> str:
        """The source that tracebacks show (PEP 302), with each line's operator and the
        user's line as a comment.
        """
        lines = []
        for line, node in zip(self._lines, self._origins, strict=True):
            if node is not None:
                source = source_of(node)
                line += f"  # {node.target}" + (f" at {source}" if source else "")
            lines.append(line)
        return "\n".join(lines)

    def _write(self, alive: set[Node]) -> None:
        """Write a line for each call, and delete values after their last use, to hold
        no more memory than eager.

        ``alive``: nodes whose values are local variables of the function so far, and so
        may be deleted.
        """
        # later users overwrite earlier ones, so each node keeps its last
        last_user = {
            used: user
            for user in self._module.graph.nodes
            for used in user.all_input_nodes
        }
        # user -> the nodes that it is the last to use
        dying: dict[Node, list[Node]] = {}
        for used, user in last_user.items():
            dying.setdefault(user, []).append(used)
        for node in self._module.graph.nodes:
            if node.op == "output":
                self._line(f"return {self._text(node.args[0])}", node)
            elif node.op == "get_attr":
                self._fetch(node)
            elif node.op == "call_function":
                alive.add(node)
                self._line(f"{self._names[node]} = {self._call(node)}", node)
                if self._watched:
                    self._line(f"see({self._bind(node)}, {self._names[node]})", node)
                # an unused result is deleted at once; constants are no locals, and stay
                # for the next call
                deleted = [
                    n
                    for n in (
                        *dying.get(node, ()),
                        *([] if node in last_user else [node]),
                    )
                    if n in alive
                ]
                if deleted:
                    self._line(
                        f"del {', '.join(self._names[n] for n in deleted)}", node
                    )

    def _line(self, text: str, node: Node) -> None:
        """Add a line of code that comes from ``node``."""
        self._lines.append(f"    {text}")
        self._origins.append(node)

    def _fetch(self, node: Node) -> None:
        """Give the object that a ``get_attr`` node fetches a name in the code. No line
        is written for the node.

        A delegate or a subgraph becomes a function under that name, when ``function``
        binds the code.
        """
        value: Any = self._module
        # the target is a path of attributes, such as ``body.lowered_0``
        for part in str(node.target).split("."):
            value = getattr(value, part)
        name = self._names[node]
        if isinstance(value, LoweredBackendModule):
            self._delegates[name] = value
        elif isinstance(value, GraphModule):
            inputs = [n for n in value.graph.nodes if n.op == "placeholder"]
            layouts = subgraph_layouts(node, value, self._layouts)
            watched = self._watched and is_observable(node)
            self._subgraphs[name] = (
                node,
                GraphCode(value, inputs, {}, layouts, watched, inside=True),
            )
        else:
            self._bound[name] = value

    def _call(self, node: Node) -> str:
        """The Python expression for a call.

        Its result is given the layout that ``_layouts`` has for the node. A squeeze
        whose rank matters is checked, and so are indices that the host computes for a
        delegate.
        """
        if node.target is CALL_DELEGATE:
            module, *inputs = node.args
            # a runtime gets its inputs with the strides that the backend saw, unless it
            # takes any
            layouts = (
                Layout.of(a.meta.get("val")) if isinstance(a, Node) else None
                for a in inputs
            )
            arrange = f"{self._text(module)}_arrange"
            pairs = zip(inputs, layouts, strict=True)
            arguments = [
                self._arranged(self._text(a), layout, arrange) for a, layout in pairs
            ]
            text = f"{self._text(module)}({', '.join(arguments)})"
        else:
            arguments = [self._text(a) for a in node.args]
            if _narrows(node):
                arguments[0] = f"expect_narrow({arguments[0]}, {self._bind(node)})"
            # in a dictionary, because names such as ``from`` are keywords of Python
            arguments += [
                f"**{{{k!r}: {self._text(v)}}}" for k, v in node.kwargs.items()
            ]
            text = f"{self._bind(RESHAPE if node.target in VIEWS else node.target)}({', '.join(arguments)})"
            text = (
                f"check_rank({text}, {self._bind(node)})"
                if squeeze_breaks_rank(node, self._inside)
                else text
            )
        return self._arranged(text, self._layouts.get(node))

    def _arranged(
        self, text: str, layout: Layout | None, arrange: str = "arrange"
    ) -> str:
        """The expression ``text``, wrapped so that its value gets ``layout``; unchanged
        if that is None.
        """
        return text if layout is None else f"{arrange}({text}, {self._bind(layout)})"

    def _text(self, value: Any) -> str:
        """An argument as a Python expression. An object without values of the graph
        becomes a name in the code.
        """
        if isinstance(value, Node):
            return self._names[value]
        if isinstance(value, slice):
            return (
                f"slice({self._text(value.start)}, {self._text(value.stop)},"
                f" {self._text(value.step)})"
            )
        if isinstance(value, (list, tuple)):
            items = "".join(f"{self._text(v)}, " for v in value)
            return f"[{items}]" if isinstance(value, list) else f"({items})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self._bind(k)}: {self._text(v)}' for k, v in value.items())}}}"
        # floats, for example, are bound: "nan" and "inf" are no expressions of Python
        return (
            repr(value)
            if value is None or type(value) in (bool, int)
            else self._bind(value)
        )

    def _bind(self, value: Any) -> str:
        """Add an object to the code's globals; returns its name."""
        name = f"c{len(self._bound)}"
        self._bound[name] = value
        return name


def is_observable(owner: Node) -> bool:
    """Whether a ``Watch`` can see the values in the subgraph that ``owner`` fetches."""
    return all(
        getattr(user.target, "__name__", "") in OBSERVABLE for user in owner.users
    )


def _watched(run: Function, watch: Watch, owner: Node, module: GraphModule) -> Function:
    """``run``, the function of the subgraph ``module``, which also tells ``watch`` when
    a call of it begins and ends.

    ``owner``: the node that fetches the subgraph.
    """

    def call(*inputs: Any) -> Any:
        """Call the subgraph. ``leave`` is called even if that fails."""
        watch.enter(owner, module, inputs)
        try:
            return run(*inputs)
        finally:
            watch.leave()

    return call


def _narrows(node: Node) -> bool:
    """Whether ``node`` is a cast at a border of indices in int64 that the host
    computed.

    ``call_spec`` checks those that are inputs of the program.
    """
    if "boundary" not in node.meta or node.meta["val"].dtype is not torch.int32:
        return False
    operand = node.all_input_nodes[0]
    if operand.op != "call_function" or INDEXED not in operand.meta:
        return False
    return operand.meta["val"].dtype is torch.int64


def _expect_narrow(value: Any, node: Node) -> Any:
    """Return ``value``, the operand of the cast ``node``. Raises InputError if an index
    is out of range.
    """
    operand = node.all_input_nodes[0]
    low, high = operand.meta[INDEXED]
    found = outside(value, low, high)
    if found is None:
        return value
    text = (
        f"an index is out of range: {operand.name}, a result of"
        f" {operator_name(operand)}, has an element {found}; "
    )
    text += f"{low} to {high} are in range"
    raise InputError("input-invalid", text, operand, source_of(operand))

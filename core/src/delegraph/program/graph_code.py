"""A graph as one Python function, written once: no interpreter, and nothing that two calls could share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ..exported_program import CALL_DELEGATE
from ..source import source_of
from .layouts import Layout, arrange, body_layouts
from .lowered_module import LoweredBackendModule

_RESHAPE = torch.ops.aten.reshape.default
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
"""They were chosen by recorded strides; inputs, and results of delegates or of kernels, may have others."""
_serial = itertools.count()
Function = Callable[..., Any]
BindDelegate = Callable[[LoweredBackendModule], Function]


class GraphCode:
    """The code of a graph and of the bodies in it; ``function`` binds it to delegates.

    ``parameters`` are the placeholders that a call passes, in order; ``constants`` gives the others their values.
    ``layouts``: values that are brought into a layout as soon as they are computed.
    """

    def __init__(
        self,
        module: GraphModule,
        parameters: Sequence[Node],
        constants: Mapping[Node, Any],
        layouts: Mapping[Node, Layout],
    ) -> None:
        self._module, self._layouts = module, layouts
        self._names = {node: f"v{k}" for k, node in enumerate(module.graph.nodes)}
        self._bound: dict[str, Any] = {"arrange": arrange, **{self._names[n]: v for n, v in constants.items()}}
        self._bodies: dict[str, GraphCode] = {}
        self._delegates: dict[str, LoweredBackendModule] = {}
        self._lines = [f"def run({', '.join(self._names[n] for n in parameters)}):"]
        self._origins: list[Node | None] = [None]
        self._write(set(parameters))
        self._file = f"lowered graph {next(_serial)}"
        self._code = compile("\n".join(self._lines), self._file, "exec")

    def function(self, bind: BindDelegate) -> Function:
        """The graph as a function of its parameters that returns its outputs; any number of threads may call it."""
        names = {"__name__": self._file, "__loader__": self, **self._bound}
        names |= {name: bind(module) for name, module in self._delegates.items()}
        names |= {name: body.function(bind) for name, body in self._bodies.items()}
        exec(self._code, names)
        function: Function = names["run"]
        return function

    def get_source(self, name: str) -> str:
        """What tracebacks show (PEP 302): each line with the operator, and the user's line that it comes from."""
        return "\n".join(line + _comment(node) for line, node in zip(self._lines, self._origins, strict=True))

    def _write(self, alive: set[Node]) -> None:
        """One line a call. A value is dropped after its last use, so that no more memory is held than in eager."""
        last = {used: user for user in self._module.graph.nodes for used in user.all_input_nodes}
        dying: dict[Node, list[Node]] = {}
        for used, user in last.items():
            dying.setdefault(user, []).append(used)
        for node in self._module.graph.nodes:
            if node.op == "output":
                self._line(f"return {self._text(node.args[0])}", node)
            elif node.op == "get_attr":
                self._fetch(node)
            elif node.op == "call_function":
                alive.add(node)
                self._line(f"{self._names[node]} = {self._call(node)}", node)
                done = [n for n in (*dying.get(node, ()), *([] if node in last else [node])) if n in alive]
                if done:
                    self._line(f"del {', '.join(self._names[n] for n in done)}", node)

    def _line(self, text: str, node: Node) -> None:
        self._lines.append(f"    {text}")
        self._origins.append(node)

    def _fetch(self, node: Node) -> None:
        """What a graph holds is bound by name: delegates and bodies as what they are called through."""
        value: Any = self._module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        name = self._names[node]
        if isinstance(value, LoweredBackendModule):
            self._delegates[name] = value
        elif isinstance(value, GraphModule):
            inputs = [n for n in value.graph.nodes if n.op == "placeholder"]
            self._bodies[name] = GraphCode(value, inputs, {}, body_layouts(node, value, self._layouts))
        else:
            self._bound[name] = value

    def _call(self, node: Node) -> str:
        text = self._delegate_call(node) if node.target is CALL_DELEGATE else self._plain_call(node)
        layout = self._layouts.get(node)
        return text if layout is None else f"arrange({text}, {self._bind(layout)})"

    def _plain_call(self, node: Node) -> str:
        given = [self._text(a) for a in node.args]
        given += [f"**{{{k!r}: {self._text(v)}}}" for k, v in node.kwargs.items()]
        return f"{self._bind(_RESHAPE if node.target in _VIEWS else node.target)}({', '.join(given)})"

    def _delegate_call(self, node: Node) -> str:
        """A runtime gets its inputs with the strides that the backend saw."""
        module, *given = node.args
        return f"{self._text(module)}({', '.join(self._arranged(a) for a in given)})"

    def _arranged(self, value: Any) -> str:
        layout = Layout.of(value.meta.get("val")) if isinstance(value, Node) else None
        text = self._text(value)
        return text if layout is None else f"arrange({text}, {self._bind(layout)})"

    def _text(self, value: Any) -> str:
        """An argument as an expression; what contains no value of the graph is bound as it is."""
        if isinstance(value, Node):
            return self._names[value]
        if isinstance(value, slice):
            return f"slice({self._text(value.start)}, {self._text(value.stop)}, {self._text(value.step)})"
        if isinstance(value, (list, tuple)):
            items = "".join(f"{self._text(v)}, " for v in value)
            return f"[{items}]" if isinstance(value, list) else f"({items})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self._bind(k)}: {self._text(v)}' for k, v in value.items())}}}"
        return repr(value) if value is None or type(value) in (bool, int) else self._bind(value)

    def _bind(self, value: Any) -> str:
        name = f"c{len(self._bound)}"
        self._bound[name] = value
        return name


def _comment(node: Node | None) -> str:
    if node is None:
        return ""
    source = source_of(node)
    return f"  # {node.target}" + (f" at {source}" if source else "")

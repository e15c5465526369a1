"""The function that ``torch.compile`` calls with each graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from delegraph import Choices
from delegraph.errors import DelegraphError, InputError, OptionError
from delegraph_programs import source_of
from torch.fx import GraphModule, Node

from .constants import constant_inputs
from .graph import CompiledGraph
from .outputs import results_of

_ADDITIONAL = ("graphs", "freezing")
"""Options of this backend that ``delegraph.lower`` does not have."""


def compile_graph(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Callable[..., Any]:
    """Return a function that runs ``graph``.

    This is the backend ``delegraph`` of ``torch.compile``. ``options``: arguments of ``delegraph.lower`` by name, such as ``{"backends":
    ["tosa"], "require_full": True}``. ``"graphs"``: a list, to which each graph is
    appended as a ``CompiledGraph``. ``"freezing"``: True if the model's weights are
    never written, so that calls need not check them. Graphs are lowered when first
    called.

    It is for inference only: if a result of the graph requires gradients, its first
    call raises InputError. It raises OptionError for unknown options. The same holds
    for a ``mode`` of ``torch.compile``, which only torch's own backend has.
    """
    try:
        graphs, freezing, choices = _read(options or {}, others)
        _expect_inference(graph)
    # raised at the first call: torch would wrap an error that is raised here
    except DelegraphError as error:
        return _raising(error)
    constants = constant_inputs(graph, example_inputs)
    compiled = CompiledGraph(
        graph, len(graphs), constants, results_of(graph), choices, freezing
    )
    graphs.append(compiled)
    return compiled


class _Options(NamedTuple):
    """The options of ``compile_graph``; ``choices`` are arguments of ``lower``."""

    graphs: list[CompiledGraph]
    freezing: bool
    choices: dict[str, Any]


def _read(options: Mapping[str, Any], others: Mapping[str, Any]) -> _Options:
    """Return the checked options. ``others``: arguments that the backend does not have."""
    if others:
        text = f"the backend 'delegraph' has no {next(iter(others))!r}"
        raise OptionError(
            "option-invalid",
            text,
            hint='its settings are options={"backends": [...], ...}',
        )
    known = {*Choices.__annotations__, *_ADDITIONAL}
    unknown = sorted(map(str, options.keys() - known))
    if unknown:
        text = f"torch.compile: the backend 'delegraph' has no option {unknown[0]!r}"
        raise OptionError(
            "option-invalid", text, hint=f"it has {', '.join(sorted(known))}"
        )
    graphs = options.get("graphs", [])
    freezing = options.get("freezing", False)
    if not isinstance(graphs, list):
        text = (
            "the option 'graphs' must be a list, to which graphs are appended, not"
            f" {type(graphs).__name__}"
        )
        raise OptionError("option-invalid", text)
    if not isinstance(freezing, bool):
        raise OptionError(
            "option-invalid",
            f"the option 'freezing' must be True or False; got {freezing!r}",
        )
    choices = {
        name: value for name, value in options.items() if name not in _ADDITIONAL
    }
    return _Options(graphs, freezing, choices)


def _expect_inference(graph: GraphModule) -> None:
    """Raise InputError if a result of ``graph`` requires gradients."""
    if not torch.is_grad_enabled():
        return
    outputs: Any = graph.graph.output_node().args[0]
    for node in outputs:
        value = node.meta.get("example_value") if isinstance(node, Node) else None
        if isinstance(value, torch.Tensor) and value.requires_grad:
            text = (
                "the backend 'delegraph' computes no gradients, and a result of this"
                " graph requires them"
            )
            hint = (
                "call the model inside torch.no_grad() or torch.inference_mode(), or"
                " model.requires_grad_(False)"
            )
            raise InputError("input-invalid", text, node, source_of(node), hint)


def _raising(error: DelegraphError) -> Callable[..., NoReturn]:
    """Return a function that raises ``error``."""

    def run(*args: Any) -> NoReturn:
        raise error.with_traceback(None)

    return run

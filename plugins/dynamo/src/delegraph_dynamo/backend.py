"""The function that ``torch.compile`` calls with each graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from delegraph import Choices, DelegraphError, InputError, OptionError
from delegraph_programs import source_of
from torch.fx import GraphModule, Node

from .constants import constant_inputs
from .graph import CompiledGraph
from .outputs import results_of

_OWN = ("graphs", "freezing")
"""Options beside those of ``delegraph.lower``."""


def compile_graph(
    graph: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Callable[..., Any]:
    """The backend ``delegraph`` of ``torch.compile``: returns the function that runs
    ``graph``.

    ``options``: arguments of ``delegraph.lower`` by name, such as ``{"backends":
    ["tosa"], "require_full": True}``; ``"graphs"``: a list, to which each graph is
    appended as a ``CompiledGraph``; ``"freezing"``: True if nobody writes the model's
    weights, so that no call has to look at them. Graphs are lowered when first called.

    Inference only: if a result of the graph requires gradients, its first call raises
    InputError. It raises OptionError for unknown options and for a ``mode`` of
    ``torch.compile``, which only torch's own backend has.
    """
    try:
        graphs, freezing, choices = _read(options or {}, others)
        _expect_inference(graph)
    # raised at the call, as it is: of what is raised here, torch makes an error of its
    # own
    except DelegraphError as error:
        return _raising(error)
    constants = constant_inputs(graph, example_inputs)
    compiled = CompiledGraph(
        graph, len(graphs), constants, results_of(graph), choices, freezing
    )
    graphs.append(compiled)
    return compiled


def _read(
    options: Mapping[str, Any], others: Mapping[str, Any]
) -> tuple[list[CompiledGraph], bool, dict[str, Any]]:
    """The list for graphs, whether weights are frozen, and the arguments of
    ``delegraph.lower``.
    """
    if others:
        text = f"the backend 'delegraph' has no {next(iter(others))!r}"
        raise OptionError(
            "option-invalid",
            text,
            hint='its settings are options={"backends": [...], ...}',
        )
    known = {*Choices.__annotations__, *_OWN}
    if unknown := sorted(map(str, options.keys() - known)):
        text = f"torch.compile: the backend 'delegraph' has no option {unknown[0]!r}"
        raise OptionError(
            "option-invalid", text, hint=f"it has {', '.join(sorted(known))}"
        )
    graphs = options.get("graphs", [])
    freezing = options.get("freezing", False)
    if not isinstance(graphs, list):
        text = (
            "the option 'graphs' is a list, to which graphs are appended, not"
            f" {type(graphs).__name__}"
        )
        raise OptionError("option-invalid", text)
    if not isinstance(freezing, bool):
        raise OptionError(
            "option-invalid",
            f"the option 'freezing' is True or False, not {freezing!r}",
        )
    return (
        graphs,
        freezing,
        {name: value for name, value in options.items() if name not in _OWN},
    )


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
    """A function that raises ``error``."""

    def run(*args: Any) -> NoReturn:
        raise error.with_traceback(None)

    return run

"""``delegraph.quantize``: export, prepare, calibrate, convert, export again; torchao's PT2E flow in one call."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule

from ..discovery.loading import missing
from ..discovery.registry import Registry, default_registry
from ..engine.decompose.tables import RECURRENT, to_core
from ..engine.export import Source, export_method
from ..engine.tracing import TRACING
from ..errors import PluginUnavailable
from ..program.types import Program
from .calibration import Progress, calibrate, checked

LAYER = "delegraph.layer"
"""Key in the ``custom`` metadata of a node of a quantized program: its name in the program before."""


def quantize(
    program: Program,
    calibration_batches: Iterable[Any],
    *,
    backend: str | None = None,
    quantizer: Any = None,
    dynamic_shapes: Any = None,
    progress: Progress | None = None,
    registry: Registry | None = None,
) -> ExportedProgram:
    """Quantize a model after training, as the integer units of a backend want it; what returns is for ``lower``.

    ``program``: an nn.Module in eval mode, or an ExportedProgram. ``calibration_batches``: tuples of its arguments (or
    tensors, if it takes one) as it will see them; the scales follow from them. ``quantizer``: one of torchao's, with
    settings of its own (``delegraph_tosa.quantizer.TOSAQuantizer``); without it that of ``backend``,
    as it is made; without either that of the only installed backend that has one.
    ``progress(done, total)`` is called after each batch; the total is None for a generator. The model is not changed.

    Raises InputError for batches that do not fit, have NaN or show nothing; PluginUnavailable without torchao; what
    the registry raises for a backend that has no quantizer.
    """
    expect_torchao()
    if quantizer is None:
        registry = registry or default_registry()
        if backend is None:
            (backend,), _ = registry.default_backends(suits=lambda info: info.has_quantizer)
        quantizer = registry.get_quantizer(backend)()
    batches, total = checked(calibration_batches, dynamic_shapes is not None)
    first = next(batches)
    exported = export_whole(program, first, dynamic_shapes)
    with TRACING:
        prepared = _prepared(exported, quantizer)
        calibrate(prepared, chain([first], batches), total, progress)
        converted = _converted(prepared)
        with torch.no_grad():
            return torch.export.export(converted, first, dynamic_shapes=dynamic_shapes)


def _prepared(exported: ExportedProgram, quantizer: Any) -> GraphModule:
    """The program with observers. Each call has its name in its metadata; torch keeps that through all that follows."""
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    module: Any = exported.module(check_guards=False)
    _unshare_weights(module)
    with _quiet():
        prepared: GraphModule = prepare_pt2e(module, quantizer)
    for node in prepared.graph.nodes:
        if node.op == "call_function":
            node.meta["custom"] = {**node.meta.get("custom", {}), LAYER: node.name}
    return prepared


def _unshare_weights(module: GraphModule) -> None:
    """Give each convolution that shares a weight, and has a batch norm behind it, a weight of its own.

    torchao folds the batch norm into the weight in place: the other convolutions would compute with it as well.
    """
    for node in module.graph.find_nodes(op="get_attr"):
        for user in list(node.users) if len(node.users) > 1 else ():
            if any("batch_norm" in str(following.target) for following in user.users):
                name = f"{node.target}_of_{user.name}".replace(".", "_")
                tensor = attrgetter(str(node.target))(module)
                module.register_parameter(name, torch.nn.Parameter(tensor.detach(), requires_grad=False))
                with module.graph.inserting_before(user):
                    own = module.graph.get_attr(name)
                own.meta = dict(node.meta)
                user.replace_input_with(node, own)


def _converted(prepared: GraphModule) -> GraphModule:
    """The program with Q/DQ in the place of observers, and without the weights in floats, which torchao leaves."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    with _quiet():
        converted: GraphModule = convert_pt2e(prepared)
    used = {str(node.target) for node in converted.graph.nodes if node.op == "get_attr"}
    for name, _ in [*converted.named_parameters(), *converted.named_buffers()]:
        if name not in used:
            owner, _, attribute = name.rpartition(".")
            delattr(converted.get_submodule(owner), attribute)
    return converted


def export_whole(program: Program, inputs: tuple[Any, ...], dynamic_shapes: Any = None) -> ExportedProgram:
    """The program whose calls are quantized: recurrent layers are written out, step by step.

    A layer of them is one call for torch, inside of which a quantizer could say nothing.
    """
    exported = export_method("forward", Source(program, inputs, None, dynamic_shapes))
    targets = {node.target for node in exported.graph.nodes if isinstance(node.target, OpOverload)}
    table: Any = {op: to_core(op) for op in targets if op._schema.name in RECURRENT}
    if not table:
        return exported
    with TRACING:
        unrolled: ExportedProgram = exported.run_decompositions(table)
    return unrolled


def expect_torchao() -> None:
    """Raise PluginUnavailable unless torchao can be imported; what it logs about its kernels is no matter here."""
    if missing(["torchao"]):
        text = "quantizing needs torchao, which is not installed"
        raise PluginUnavailable("plugin-unavailable", text, hint="pip install torchao==0.18.0")
    with _quiet():
        import torchao.quantization.pt2e  # noqa: F401


@contextmanager
def _quiet() -> Iterator[None]:
    """torchao says while it is imported which of its kernels for GPUs do not load, and warns of its own calls."""
    loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

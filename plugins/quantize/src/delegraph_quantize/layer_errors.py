"""What quantizing costs, layer by layer: signal-to-noise of the lowered program against
floats.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from delegraph import Registry, default_registry, lower
from delegraph.command import provided
from delegraph.errors import InputError, OptionError
from delegraph.io.escape import table
from delegraph_programs import (
    TRACING,
    build_program,
    copy_node,
    flat_call,
    output_node,
    source_of,
)
from delegraph_programs.type_aliases import Program
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph, Interpreter, Node
from torch.utils import _pytree as pytree

from .batch_norms import follows_layer, is_folded
from .calibration import Batch, checked
from .flow import LAYER, export_whole, module_of, quantize, quantizer_of

RED_TO_GREEN = ("#d73027", "#fee08b", "#1a9850")


@dataclass(frozen=True)
class LayerError:
    """A layer of a quantized program beside the same layer in floats, over all batches.

    ``snr`` is the signal-to-noise ratio in dB: 10 log10(sum of squares in floats / sum
    of squared differences), of all that was lost up to this layer; infinite if nothing
    was. ``node`` is its name in the quantized program, ``module`` that of the module
    that calls it, as ``set_module_name`` of a quantizer takes it; "" outside of
    submodules. ``joined`` has other modules of which it computes layers: that of the
    convolution for a limit behind it, which no integers lie between.
    """

    layer: str
    node: str
    operator: str
    source: str
    snr: float
    max_abs_error: float
    max_abs_value: float
    module: str = ""
    joined: tuple[str, ...] = ()


@dataclass(frozen=True)
class QuantizationErrors:
    """The errors of all quantized layers, in the order of the program; the outputs come
    last.
    """

    layers: tuple[LayerError, ...]

    def worst(self, count: int = 5) -> list[LayerError]:
        """The layers with the lowest signal-to-noise ratio, lowest first."""
        return sorted(self.layers, key=lambda row: row.snr)[:count]

    def worst_modules(self, count: int = 5) -> list[str]:
        """The modules of the worst layers, each once, the one with the lowest ratio
        first.

        ``count`` layers in modules are taken; each brings those along that it is
        computed with.
        """
        worst = {
            row.module: row.joined
            for row in reversed(self.worst(len(self.layers)))
            if row.module
        }
        taken = list(reversed(worst.items()))[:count]
        return list(
            dict.fromkeys(
                name for module, joined in taken for name in (module, *joined)
            )
        )

    def to_text(self) -> str:
        """A table; the worst layers are named below it."""
        heads = (
            "module",
            "layer",
            "operator",
            "SNR dB",
            "max error",
            "max value",
            "source",
        )
        named = (
            (f"{row.layer} in {row.module}" if row.module else row.layer, row)
            for row in self.worst(3)
        )
        worst = ", ".join(f"{name} ({_decibels(row.snr)} dB)" for name, row in named)
        return "\n".join([table([heads, *map(_cells, self.layers)]), f"worst: {worst}"])

    def to_json(self) -> dict[str, Any]:
        """As a dictionary; an infinite ratio becomes None."""
        rows = [
            {**asdict(row), "snr": row.snr if math.isfinite(row.snr) else None}
            for row in self.layers
        ]
        return {
            "schema": "delegraph.quantization-errors/1",
            "layers": [{**row, "joined": [*row["joined"]]} for row in rows],
        }

    def to_model_explorer(self, graph: str = "graph") -> str:
        """Node data for Model Explorer, JSON: the ratio of each node of the quantized
        program, from red to green.

        Load the program's ``.pt2`` file and this one beside it. ``graph`` is the id of
        the graph there.
        """
        values = {
            row.node: row.snr
            for row in self.layers
            if row.node and math.isfinite(row.snr)
        }
        column = provided("delegraph_analysis:NodeData", "node data")
        return json.dumps(
            column("signal to noise, dB", {graph: values}, RED_TO_GREEN).to_json(),
            indent=2,
        )

    def __str__(self) -> str:
        return self.to_text()


def _cells(row: LayerError) -> tuple[str, ...]:
    figures = _decibels(row.snr), f"{row.max_abs_error:.3g}", f"{row.max_abs_value:.3g}"
    return row.module, row.layer, row.operator, *figures, row.source


def _decibels(snr: float) -> str:
    return f"{snr:.1f}"


def quantization_errors(
    program: Program,
    quantized: ExportedProgram,
    batches: Iterable[Any],
    *,
    backends: Sequence[str] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    dynamic_shapes: Any = None,
    registry: Registry | None = None,
) -> QuantizationErrors:
    """Compare each quantized layer, as the lowered program computes it, with the same
    layer of ``program`` in floats.

    ``quantized`` is what ``quantize(program, ...)`` returned, with the same
    ``dynamic_shapes``. It is lowered once more, with the layers as outputs; without
    ``backends`` for the one whose quantizer ``quantize`` takes. Raises InputError if
    the two do not belong together, and what ``lower`` raises.
    """
    _expect_exported(quantized)
    if backends is None:
        chosen = registry or default_registry()
        backends, _ = chosen.default_backends(
            options or (), lambda info: info.has_quantizer
        )
    given, _ = checked(program, batches, dynamic_shapes is not None)
    first = next(given)
    exported = export_whole(program, first, dynamic_shapes)
    with TRACING:
        floats = module_of(exported)
    tapped, taps = _tapped(
        quantized,
        {
            node.name: (str(node.target), _module_of(node))
            for node in floats.graph.nodes
        },
    )
    with TRACING:
        wanted = _Recorder(floats, [tap.layer for tap in taps])
    lowered = lower(tapped, backends=backends, options=options, registry=registry)
    sums: list[_Sums] = []
    for batch in (first, *given):
        pairs = _pairs(
            lowered(*batch.args, **batch.kwargs), *wanted.values(batch), taps
        )
        sums = sums or [_Sums() for _ in pairs]
        for total, (got, value) in zip(sums, pairs, strict=True):
            total.add(got, value)
    count = len(sums) - len(taps)
    rows = [total.row(tap) for tap, total in zip(taps, sums[count:], strict=True)]
    rows += [
        total.row(_Tap(f"output {k}", "", "", "", 1.0, 0, "", ()))
        for k, total in enumerate(sums[:count])
    ]
    return QuantizationErrors(tuple(rows))


def raise_precision(
    program: Program,
    calibration_batches: Iterable[Any],
    errors: QuantizationErrors,
    count: int = 5,
    setting: Any = None,
    *,
    quantizer: Any = None,
    backend: str | None = None,
    dynamic_shapes: Any = None,
    registry: Registry | None = None,
) -> ExportedProgram:
    """Quantize ``program`` anew, with the ``count`` modules that lose most in
    ``errors`` in another precision.

    ``setting`` is what the quantizer's ``set_module_name`` takes: None leaves them in
    floats, and ``delegraph_tosa.quantizer.Precision(activations=torch.int16)`` has 16
    bits in TOSA's. ``quantizer`` gets the settings; without it that of ``backend`` is
    made. The rest is as for ``quantize``, which says what is raised; OptionError for a
    quantizer without ``set_module_name``, InputError if no layer of ``errors`` is in a
    module.
    """
    registry = registry or default_registry()
    quantizer = quantizer_of(backend, registry) if quantizer is None else quantizer
    set_module_name = getattr(quantizer, "set_module_name", None)
    if set_module_name is None:
        text = (
            f"{type(quantizer).__name__} has no set_module_name, by which modules get a"
            " precision of their own"
        )
        raise OptionError(
            "option-invalid",
            text,
            hint="give quantizer= that has it, and settings by other means",
        )
    modules = errors.worst_modules(count)
    if not modules:
        text = (
            "no layer of the errors is in a module with a name, which the precision"
            " could be set for"
        )
        raise InputError(
            "input-invalid",
            text,
            hint="put the layers into submodules, or set operators of the quantizer",
        )
    for module in modules:
        set_module_name(module, setting)
    settled = {
        "quantizer": quantizer,
        "dynamic_shapes": dynamic_shapes,
        "registry": registry,
    }
    return quantize(program, calibration_batches, **settled)


def _pairs(
    outputs: Sequence[torch.Tensor],
    floats: Any,
    values: Mapping[str, torch.Tensor],
    taps: Sequence[_Tap],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of one batch: what the lowered program gives beside what floats give, outputs
    first, then layers.
    """
    ends = outputs[: -len(taps)]
    integers = outputs[-len(taps) :]
    pairs = list(zip(ends, pytree.tree_leaves(floats), strict=True))
    return pairs + [
        (_real(q, tap), values[tap.layer])
        for q, tap in zip(integers, taps, strict=True)
    ]


def _expect_exported(quantized: object) -> None:
    if not isinstance(quantized, ExportedProgram):
        text = (
            "the quantized program is to be an ExportedProgram, not"
            f" {type(quantized).__name__}"
        )
        hint = "quantization_errors(module, delegraph.quantize(module, ...), ...)"
        raise InputError("input-invalid", text, hint=hint)


class _Tap(NamedTuple):
    """A layer whose integers become an output."""

    layer: str
    node: str
    operator: str
    source: str
    scale: float
    zero_point: int
    module: str
    joined: tuple[str, ...]


def _module_of(node: Node) -> str:
    """The name of the innermost module that calls ``node``: ``features.0`` of
    ``L['self'].features.0``.
    """
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return str(paths[-1]).replace("L['self'].", "", 1) if paths else ""


def _tapped(
    quantized: ExportedProgram, operators: Mapping[str, tuple[str, str]]
) -> tuple[ExportedProgram, list[_Tap]]:
    """The program that returns a flat tuple: its own outputs and then the integers of
    its layers.

    ``operators``: those of the layers in floats, and the modules that call them.
    """
    graph = Graph()
    copies = dict[Node, Node]()
    for node in quantized.graph.nodes:
        copies[node] = copy_node(graph, node, copies.__getitem__)
    found = {n: tap for n in graph.nodes if (tap := _tap(n, operators)) is not None}
    if not found:
        text = "there is no quantized layer in the program"
        raise InputError(
            "input-invalid", text, hint="it is to be what delegraph.quantize returned"
        )
    output = output_node(graph)
    signature = quantized.graph_signature
    output.args = ((*output.args[0], *found),)  # type: ignore[misc]
    added = [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=node.name), None)
        for node in found
    ]
    outputs = [*signature.output_specs, *added]
    (call,) = flat_call(0, sum(spec.kind is OutputKind.USER_OUTPUT for spec in outputs))
    assert call.signature is not None
    call.signature.in_spec = quantized.call_spec.in_spec
    root = quantized.graph_module
    program = build_program(
        root, graph, signature.input_specs, outputs, quantized, [call], check=False
    )
    return program, list(found.values())


def _tap(node: Node, operators: Mapping[str, tuple[str, str]]) -> _Tap | None:
    """What a quantize says of the layer before it, which may be the last part of an
    operator that was written out.
    """
    if node.target is not torch.ops.quantized_decomposed.quantize_per_tensor.default:
        return None
    made = node.args[0]
    assert isinstance(made, Node)
    layer = made.meta.get("custom", {}).get(LAYER)
    if layer is None or made.target is operator.getitem:
        return None
    whole, module = operators.get(layer, (str(made.target), ""))
    if whole == str(made.target) and _only_moves(made, node):
        return None
    scale, zero_point = node.args[1:3]
    source = source_of(made)
    place = "" if source is None else source.place
    numbers = float(scale), int(zero_point)  # type: ignore[arg-type]
    return _Tap(
        layer,
        made.name,
        whole,
        place,
        *numbers,
        module,
        _joined(made, module, operators),
    )


def _joined(
    made: Node, module: str, operators: Mapping[str, tuple[str, str]]
) -> tuple[str, ...]:
    """The other modules of layers between the integers that ``made`` is computed from
    and its result.
    """
    pending = [*made.all_input_nodes]
    found = dict[str, None]()
    while pending:
        node = pending.pop(0)
        if node.op == "call_function" and "quantize_per_" not in str(node.target):
            found[
                operators.get(node.meta.get("custom", {}).get(LAYER, ""), ("", ""))[1]
            ] = None
            pending += node.all_input_nodes
    return tuple(name for name in found if name not in ("", module))


def _only_moves(made: Node, quantize: Node) -> bool:
    """Whether a layer gives integers that it was given: a view, a transpose, a maximum.
    It adds no error.
    """
    given = made.all_input_nodes
    return (
        len(given) == 1
        and given[0].target
        is torch.ops.quantized_decomposed.dequantize_per_tensor.default
        and given[0].args[1:] == quantize.args[1:]
    )


def _real(integers: torch.Tensor, tap: _Tap) -> torch.Tensor:
    return (integers.double() - tap.zero_point) * tap.scale


class _Recorder(Interpreter):
    """Runs a program in floats and keeps the values of some calls, by name."""

    def __init__(self, module: Any, names: Sequence[str]) -> None:
        super().__init__(module)
        by_name = {node.name: node for node in module.graph.nodes}
        for name in names:
            if name not in by_name:
                text = (
                    f"the quantized program has a layer {name}, which the program in"
                    " floats does not have"
                )
                raise InputError(
                    "input-invalid", text, hint="give the module that was quantized"
                )
        self._names = {_normalized(by_name[name]): name for name in names}
        self._kept: dict[str, torch.Tensor] = {}

    def values(self, batch: Batch) -> tuple[Any, dict[str, torch.Tensor]]:
        """The program's results, and the values by name. Torch's Interpreter notes its
        node where tracers read it.
        """
        self._kept = {}
        with TRACING, torch.no_grad():
            return self.run(*pytree.tree_leaves(batch)), self._kept

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n in self._names:
            self._kept[self._names[n]] = value.clone()  # it may be written later
        return value


def _normalized(node: Node) -> Node:
    """The batch norm behind a layer, which preparing makes part of it; else the node."""
    users = list(node.users)
    return (
        users[0]
        if len(users) == 1 and follows_layer(users[0]) and is_folded(users[0])
        else node
    )


class _Sums:
    """Squares of a layer's values and of their differences."""

    def __init__(self) -> None:
        self.signal = self.noise = self.error = self.value = 0.0

    def add(self, got: torch.Tensor, wanted: torch.Tensor) -> None:
        a = got.double()
        b = wanted.double()
        self.signal += float(b.square().sum())
        self.noise += float((a - b).square().sum())
        if b.numel():
            self.error = max(self.error, float((a - b).abs().max()))
            self.value = max(self.value, float(b.abs().max()))

    def row(self, tap: _Tap) -> LayerError:
        named = (tap.layer, tap.node, tap.operator, tap.source)
        return LayerError(
            *named, self._ratio(), self.error, self.value, tap.module, tap.joined
        )

    def _ratio(self) -> float:
        """Signal to noise in dB."""
        if self.noise == 0:
            return math.inf
        return (
            -math.inf if self.signal == 0 else 10 * math.log10(self.signal / self.noise)
        )

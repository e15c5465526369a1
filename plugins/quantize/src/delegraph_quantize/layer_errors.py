"""Measures quantization errors layer by layer: the lowered program against floats."""

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
from delegraph.errors import InputError
from delegraph.io.escape_for_terminal import table
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
from .float_calls import LAYER
from .flow import export_whole, module_of

RED_TO_GREEN = ("#d73027", "#fee08b", "#1a9850")
"""Colours of Model Explorer, for the lowest to the highest ratio."""


@dataclass(frozen=True)
class LayerError:
    """A quantized layer compared with the same layer in floats, over all batches.

    ``snr`` is the signal-to-noise ratio in dB: 10 log10(sum of squares in floats / sum
    of squared differences). It includes errors of all layers before, and is infinite
    without errors. ``node`` is its name in the quantized program. ``module`` is the
    name of the calling module, as a quantizer's ``set_module_name`` takes it; ""
    outside of submodules. ``joined`` has other modules that are computed together with
    it. For a limit, that is the module of the convolution before it: there are no
    integers between the two.
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
    """The errors of all quantized layers in order of the program, then the outputs."""

    layers: tuple[LayerError, ...]

    def worst(self, count: int = 5) -> list[LayerError]:
        """Return the layers with the lowest signal-to-noise ratio, lowest first."""
        return sorted(self.layers, key=lambda row: row.snr)[:count]

    def worst_modules(self, count: int = 5) -> list[str]:
        """Return the modules of the worst layers once each, lowest ratio first.

        ``count`` layers in modules are taken, each with its joined modules.
        """
        worst: dict[str, tuple[str, ...]] = {}
        for row in self.worst(len(self.layers)):
            if row.module:
                worst.setdefault(row.module, row.joined)
        names: dict[str, None] = {}
        for module, joined in list(worst.items())[:count]:
            names.update(dict.fromkeys([module, *joined]))
        return list(names)

    def to_text(self) -> str:
        """Return a table, with the worst layers named below it."""
        heads = (
            "module",
            "layer",
            "operator",
            "SNR dB",
            "max error",
            "max value",
            "source",
        )
        worst = []
        for row in self.worst(3):
            name = f"{row.layer} in {row.module}" if row.module else row.layer
            worst.append(f"{name} ({_decibels(row.snr)} dB)")
        rows = table([heads, *map(_cells, self.layers)])
        return f"{rows}\nworst: {', '.join(worst)}"

    def to_json(self) -> dict[str, Any]:
        """Return the errors as a dictionary; an infinite ratio becomes None."""
        rows = [
            {**asdict(row), "snr": row.snr if math.isfinite(row.snr) else None}
            for row in self.layers
        ]
        return {
            "schema": "delegraph.quantization-errors/1",
            "layers": [{**row, "joined": [*row["joined"]]} for row in rows],
        }

    def to_model_explorer(self, graph: str = "graph") -> str:
        """Return the signal-to-noise ratios of layers as JSON for Model Explorer.

        The JSON is node data: load it in Model Explorer together with the quantized
        program's ``.pt2`` file. ``graph`` is the id of the graph in that file. The
        colours run from red, the lowest ratio, to green. Outputs of the program and
        infinite ratios are left out. Needs delegraph-analysis.
        """
        ratios = {
            row.node: row.snr
            for row in self.layers
            if row.node and math.isfinite(row.snr)
        }
        node_data = provided("delegraph_analysis:NodeData", "node data")
        column = node_data("signal to noise, dB", {graph: ratios}, RED_TO_GREEN)
        return json.dumps(column.to_json(), indent=2)

    def __str__(self) -> str:
        return self.to_text()


def _cells(row: LayerError) -> tuple[str, ...]:
    """Return a row of the table as texts."""
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
    """Compare each quantized layer of the lowered program with the layer in floats.

    ``quantized`` is the result of ``quantize(program, ...)``, with the same
    ``dynamic_shapes``. It is lowered once more, with the layers as outputs. Without
    ``backends``, it is lowered for the backend that ``quantize`` takes the quantizer
    of. Raises InputError if the two do not belong together, and the errors of
    ``lower``.
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
    calls = {
        node.name: _FloatCall(str(node.target), _module_of(node))
        for node in floats.graph.nodes
    }
    tapped, taps = _add_taps(quantized, calls)
    with TRACING:
        wanted = _Recorder(floats, [tap.layer for tap in taps])
    lowered = lower(tapped, backends=backends, options=options, registry=registry)
    sums: list[_Sums] = []
    for batch in (first, *given):
        outputs = lowered(*batch.args, **batch.kwargs)
        pairs = _pairs(outputs, *wanted.values(batch), taps)
        sums = sums or [_Sums() for _ in pairs]
        for total, (got, value) in zip(sums, pairs, strict=True):
            total.add_batch(got, value)
    count = len(sums) - len(taps)
    rows = [total.row(tap) for tap, total in zip(taps, sums[count:], strict=True)]
    rows += [
        total.row(_Tap(layer=f"output {k}")) for k, total in enumerate(sums[:count])
    ]
    return QuantizationErrors(tuple(rows))


def _pairs(
    outputs: Sequence[torch.Tensor],
    floats: Any,
    values: Mapping[str, torch.Tensor],
    taps: Sequence[_Tap],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return pairs of lowered and float values of one batch, outputs before layers."""
    # ``_add_taps`` appended the integers of the layers to the outputs
    results = outputs[: -len(taps)]
    integers = outputs[-len(taps) :]
    pairs = list(zip(results, pytree.tree_leaves(floats), strict=True))
    return pairs + [
        (_dequantize(q, tap), values[tap.layer])
        for q, tap in zip(integers, taps, strict=True)
    ]


def _expect_exported(quantized: object) -> None:
    """Raise InputError unless ``quantized`` is an ExportedProgram."""
    if not isinstance(quantized, ExportedProgram):
        text = (
            "the quantized program must be an ExportedProgram; got"
            f" {type(quantized).__name__}"
        )
        hint = "quantization_errors(module, delegraph.quantize(module, ...), ...)"
        raise InputError("input-invalid", text, hint=hint)


class _Tap(NamedTuple):
    """A layer whose integers the program returns, or an output of the program.

    For an output, only ``layer`` is set. The fields are those of ``LayerError``.
    """

    layer: str
    node: str = ""
    operator: str = ""
    source: str = ""
    scale: float = 1.0
    zero_point: int = 0
    module: str = ""
    joined: tuple[str, ...] = ()


class _FloatCall(NamedTuple):
    """The operator of a call of the program in floats, and the module that calls it."""

    operator: str
    module: str


def _module_of(node: Node) -> str:
    """Return the innermost module that calls ``node``: ``features.0``."""
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    # torch's path is ``L['self'].features.0``
    return str(paths[-1]).replace("L['self'].", "", 1) if paths else ""


def _add_taps(
    quantized: ExportedProgram, calls: Mapping[str, _FloatCall]
) -> tuple[ExportedProgram, list[_Tap]]:
    """Return the program with the integers of its layers as further outputs.

    Its outputs are a flat tuple. The taps describe the further ones, in order.
    ``calls``: the calls of the program in floats, by name.
    """
    graph = Graph()
    copies = dict[Node, Node]()
    for node in quantized.graph.nodes:
        copies[node] = copy_node(graph, node, copies.__getitem__)
    found: dict[Node, _Tap] = {}
    for node in graph.nodes:
        tap = _tap(node, calls)
        if tap is not None:
            found[node] = tap
    if not found:
        text = "the program has no quantized layer"
        raise InputError(
            "input-invalid", text, hint="pass the result of delegraph.quantize"
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


def _tap(node: Node, calls: Mapping[str, _FloatCall]) -> _Tap | None:
    """Return the tap of a quantize operator after a layer; None for other nodes.

    The layer may be the last part of an operator that was decomposed.
    """
    if node.target is not torch.ops.quantized_decomposed.quantize_per_tensor.default:
        return None
    last_call = node.args[0]
    assert isinstance(last_call, Node)
    layer = last_call.meta.get("custom", {}).get(LAYER)
    if layer is None or last_call.target is operator.getitem:
        return None
    # in the program in floats, the operator is not decomposed
    last_operator = str(last_call.target)
    operator_name, module = calls.get(layer, _FloatCall(last_operator, ""))
    if operator_name == last_operator and _keeps_quantization(last_call, node):
        return None
    scale, zero_point = node.args[1:3]
    source = source_of(last_call)
    place = "" if source is None else source.place
    return _Tap(
        layer=layer,
        node=last_call.name,
        operator=operator_name,
        source=place,
        scale=float(scale),  # type: ignore[arg-type]
        zero_point=int(zero_point),  # type: ignore[arg-type]
        module=module,
        joined=_joined_modules(last_call, module, calls),
    )


def _joined_modules(
    last_call: Node, module: str, calls: Mapping[str, _FloatCall]
) -> tuple[str, ...]:
    """Return the modules that are computed together with a layer, except ``module``.

    These modules have calls in floats between the integer operands of the layer and
    ``last_call``, its last call.
    """
    pending = [*last_call.all_input_nodes]
    found = dict[str, None]()
    while pending:
        node = pending.pop(0)
        if node.op == "call_function" and "quantize_per_" not in str(node.target):
            layer = node.meta.get("custom", {}).get(LAYER, "")
            if layer in calls:
                found[calls[layer].module] = None
            pending += node.all_input_nodes
    return tuple(name for name in found if name not in ("", module))


def _keeps_quantization(layer: Node, quantize: Node) -> bool:
    """Return whether a layer has one operand, with the same scale as its result.

    Such a layer, for example a view or a maximum, only selects integers of its operand
    and adds no error. ``quantize`` is the quantize operator after the layer.
    """
    operands = layer.all_input_nodes
    return (
        len(operands) == 1
        and operands[0].target
        is torch.ops.quantized_decomposed.dequantize_per_tensor.default
        and operands[0].args[1:] == quantize.args[1:]
    )


def _dequantize(integers: torch.Tensor, tap: _Tap) -> torch.Tensor:
    """Return the numbers that the integers of a tap represent."""
    return (integers.double() - tap.zero_point) * tap.scale


class _Recorder(Interpreter):
    """Runs a program in floats and keeps the values of some calls, by name."""

    def __init__(self, module: Any, names: Sequence[str]) -> None:
        super().__init__(module)
        by_name = {node.name: node for node in module.graph.nodes}
        for name in names:
            if name not in by_name:
                text = (
                    f"the quantized program has a layer {name}; the"
                    " floating-point program has no layer of that name"
                )
                raise InputError(
                    "input-invalid", text, hint="pass the module that was quantized"
                )
        self._names = {_with_batch_norm(by_name[name]): name for name in names}
        self._kept: dict[str, torch.Tensor] = {}

    def values(self, batch: Batch) -> tuple[Any, dict[str, torch.Tensor]]:
        """Return the program's results, and the recorded values by name.

        torch's Interpreter stores its node where tracers read it, so this needs a lock.
        """
        self._kept = {}
        with TRACING, torch.no_grad():
            return self.run(*pytree.tree_leaves(batch)), self._kept

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n in self._names:
            self._kept[self._names[n]] = value.clone()  # it may be written later
        return value


def _with_batch_norm(node: Node) -> Node:
    """Return the batch norm that quantizing folds into ``node``, or ``node`` itself."""
    users = list(node.users)
    if len(users) == 1 and follows_layer(users[0]) and is_folded(users[0]):
        return users[0]
    return node


class _Sums:
    """Sums and maxima of a layer's values and of their differences."""

    def __init__(self) -> None:
        self.square_sum = 0.0
        self.squared_error_sum = 0.0
        self.max_abs_error = 0.0
        self.max_abs_value = 0.0

    def add_batch(self, quantized: torch.Tensor, floats: torch.Tensor) -> None:
        """Add the layer's values in one batch: as quantized, and in floats."""
        value = floats.double()
        error = quantized.double() - value
        self.square_sum += float(value.square().sum())
        self.squared_error_sum += float(error.square().sum())
        if value.numel():
            self.max_abs_error = max(self.max_abs_error, float(error.abs().max()))
            self.max_abs_value = max(self.max_abs_value, float(value.abs().max()))

    def row(self, tap: _Tap) -> LayerError:
        """Return the errors over all batches, with the description of the layer."""
        return LayerError(
            layer=tap.layer,
            node=tap.node,
            operator=tap.operator,
            source=tap.source,
            snr=self._ratio(),
            max_abs_error=self.max_abs_error,
            max_abs_value=self.max_abs_value,
            module=tap.module,
            joined=tap.joined,
        )

    def _ratio(self) -> float:
        """Return the signal-to-noise ratio in dB."""
        if self.squared_error_sum == 0:
            return math.inf
        if self.square_sum == 0:
            return -math.inf
        return 10 * math.log10(self.square_sum / self.squared_error_sum)

"""Summarizes a graph for ``delegraph inspect --summary``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from delegraph.formats import (
    ConstantSummary,
    MethodSummary,
    Quantization,
    QuantizationParameters,
    Summary,
    TensorSummary,
)

from ..ir.graph import Graph, Value
from ..ir.types import UNKNOWN, DType
from ..serialize.elements import size_in_file
from ..spec import TosaSpec

_TORCH_NAMES = {DType.FP32: "float32", DType.FP16: "float16", DType.BF16: "bfloat16"}
"""Element types with a torch name other than TOSA's in small letters."""


def summarize(
    graph: Graph, target: TosaSpec, size: int, quantized: Quantization
) -> Summary:
    """Return the summary of a file's graph of ``size`` bytes for ``target``.

    Of constants only their types are looked at.
    """
    graphs = graph.reachable()
    constants = [
        _constant(v) for v in dict.fromkeys(v for g in graphs for v in g.constants())
    ]
    operators = Counter(op.name for g in graphs for op in g.operators)
    inputs = _border(graph.inputs, quantized.inputs)
    outputs = _border(graph.outputs, quantized.outputs)
    return Summary(
        kind="TOSA program",
        version=f"{target.version[0]}.{target.version[1]}",
        bytes=size,
        needs={
            "profiles": list(target.profile_names),
            "extensions": sorted(target.extensions),
        },
        methods=(
            MethodSummary(graph.name, inputs, outputs, dict(operators.most_common())),
        ),
        constants=len(constants),
        constant_bytes=sum(c.bytes for c in constants),
        largest=Summary.largest_of(constants),
    )


def _border(
    values: Iterable[Value], quantized: Mapping[str, QuantizationParameters | None]
) -> tuple[TensorSummary, ...]:
    return tuple(_tensor(value, quantized.get(value.name)) for value in values)


def _tensor(value: Value, quantized: QuantizationParameters | None) -> TensorSummary:
    sizes = tuple(
        None if size == UNKNOWN else int(size) for size in value.type.declared
    )
    scale, zero_point = (
        (None, None) if quantized is None else (quantized.scale, quantized.zero_point)
    )
    return TensorSummary(
        value.name, _dtype(value), sizes, scale=scale, zero_point=zero_point
    )


def _constant(value: Value) -> ConstantSummary:
    return ConstantSummary(
        value.name, _dtype(value), value.shape, int(size_in_file(value.type))
    )


def _dtype(value: Value) -> str:
    return _TORCH_NAMES.get(value.dtype, str(value.dtype))

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
"""Element types that torch names differently from TOSA."""


def summarize(
    graph: Graph, target: TosaSpec, size: int, quantized: Quantization
) -> Summary:
    """Return the summary of the graph of a file with ``size`` bytes for ``target``.

    Does not read the elements of constants.
    """
    operators: Counter[str] = Counter()
    values: dict[Value, None] = {}
    for body in graph.reachable():
        operators.update([operator.name for operator in body.operators])
        values.update(dict.fromkeys(body.constants()))
    constants = [_constant(value) for value in values]
    method = MethodSummary(
        graph.name,
        _border(graph.inputs, quantized.inputs),
        _border(graph.outputs, quantized.outputs),
        dict(operators.most_common()),
    )
    major, minor = target.version
    needs = {
        "profiles": list(target.profile_names),
        "extensions": sorted(target.extensions),
    }
    return Summary(
        kind="TOSA program",
        version=f"{major}.{minor}",
        bytes=size,
        needs=needs,
        methods=(method,),
        constants=len(constants),
        constant_bytes=sum(constant.bytes for constant in constants),
        largest=Summary.largest_of(constants),
    )


def _border(
    values: Iterable[Value], quantized: Mapping[str, QuantizationParameters | None]
) -> tuple[TensorSummary, ...]:
    """Return the summaries of the inputs or of the outputs."""
    return tuple(_tensor(value, quantized.get(value.name)) for value in values)


def _tensor(value: Value, quantized: QuantizationParameters | None) -> TensorSummary:
    """Return the summary of an input or output; None is a dynamic size."""
    sizes = tuple(
        None if size == UNKNOWN else int(size) for size in value.type.declared
    )
    scale = None
    zero_point = None
    if quantized is not None:
        scale = quantized.scale
        zero_point = quantized.zero_point
    return TensorSummary(
        value.name, _dtype(value), sizes, scale=scale, zero_point=zero_point
    )


def _constant(value: Value) -> ConstantSummary:
    """Return the summary of a constant."""
    bytes = int(size_in_file(value.type))
    return ConstantSummary(value.name, _dtype(value), value.shape, bytes)


def _dtype(value: Value) -> str:
    """Return torch's name of an element type, if it has one."""
    return _TORCH_NAMES.get(value.dtype, str(value.dtype))

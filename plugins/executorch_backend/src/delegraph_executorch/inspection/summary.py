"""Summarize a program file for ``delegraph inspect --summary``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from delegraph.formats import (
    ConstantSummary,
    DelegateSummary,
    MethodSummary,
    Summary,
    TensorSummary,
)

from ..buckets.table import KEY
from ..program.calling import input_names, input_ranges
from ..program.pte_tables import Dynamism, ExecutionPlan, Location, Tensor
from ..program.scalar_types import TORCH_NAMES, ScalarType
from ..serialize.check import nbytes
from ..serialize.reader import ProgramFile
from .facts import MethodFacts, ProgramFacts


def summarize(file: ProgramFile, facts: ProgramFacts) -> Summary:
    """Return the summary of a checked file with the figures ``facts``."""
    pairs = zip(file.program.plans, facts.methods, strict=True)
    tensors: dict[str, Tensor] = {}
    for plan in file.program.plans:
        tensors |= dict(_constants(plan))
    constants = [
        ConstantSummary(name, _dtype(t), t.sizes, nbytes(t))
        for name, t in tensors.items()
    ]
    # Named data are constants of delegates. The table of buckets is none.
    for name, size in facts.named_data.items():
        if name not in tensors and name != KEY:
            constants.append(ConstantSummary(name, "bytes", (size,), size))
    return Summary(
        kind="ExecuTorch program",
        version=str(file.program.version),
        bytes=facts.bytes,
        needs={
            "backends": facts.backends,
            "kernels": facts.kernels,
            "tensors of data files": facts.external_tensors,
        },
        methods=tuple(_method(plan, method) for plan, method in pairs),
        constants=len(constants),
        constant_bytes=sum(c.bytes for c in constants),
        largest=Summary.largest_of(constants),
    )


def _method(plan: ExecutionPlan, facts: MethodFacts) -> MethodSummary:
    """Return the summary of a method."""
    delegates = tuple(
        DelegateSummary(d.backend, d.producer, d.bytes) for d in facts.delegates
    )
    ranges = input_ranges(plan.container, len(plan.inputs))
    names = input_names(plan.container, len(plan.inputs))
    inputs = tuple(
        replace(summary, within=ranges.get(k))
        for k, summary in enumerate(_summaries(plan, plan.inputs, names))
    )
    # files have no names of outputs
    outputs = tuple(_summaries(plan, plan.outputs, [""] * len(plan.outputs)))
    return MethodSummary(facts.name, inputs, outputs, facts.kernels, delegates)


def _summaries(
    plan: ExecutionPlan, positions: Sequence[int], names: Sequence[str]
) -> Iterator[TensorSummary]:
    """Yield the summaries of values, with the given names."""
    for position, name in zip(positions, names, strict=True):
        value = plan.values[position].value
        if isinstance(value, Tensor):
            yield TensorSummary(
                name,
                _dtype(value),
                value.sizes,
                bounded=value.dynamism != Dynamism.STATIC,
            )
        else:
            yield TensorSummary(name, type(value).__name__.lower(), None)


def _constants(plan: ExecutionPlan) -> Iterator[tuple[str, Tensor]]:
    """Yield the constants in the program's file, by their name or number."""
    for entry in plan.values:
        tensor = entry.value
        if not isinstance(tensor, Tensor) or tensor.allocation is not None:
            continue
        if tensor.extra is not None and tensor.extra.fully_qualified_name:
            if tensor.extra.location == Location.SEGMENT:
                yield tensor.extra.fully_qualified_name, tensor
        elif tensor.data_buffer_idx:
            yield f"constant {tensor.data_buffer_idx}", tensor


def _dtype(tensor: Tensor) -> str:
    """Return the element type by torch's name, or by the file's if torch has none."""
    kind = ScalarType(tensor.scalar_type)
    return TORCH_NAMES.get(kind, kind.name.lower())

"""Collect figures of a program file: its needs, sizes and use of memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from delegraph.io.escape_for_terminal import LONGEST

from ..buckets.table import KEY, BucketTable
from ..program.calling import delegate_facts, producers
from ..program.pte_tables import (
    DataSegment,
    DelegateCall,
    ExecutionPlan,
    KernelCall,
    Location,
    Tensor,
)
from ..program.quantized_library import QUANTIZED_LIBRARY
from ..serialize.check import nbytes
from ..serialize.reader import ProgramFile, blob_of
from .arena import live_extents, peak_bytes
from .text import describe_tensor, method_lines, shorten


@dataclass(frozen=True)
class DelegateFacts:
    """A delegate with its backend, the size of its blob, and the number of calls.

    ``compile_specs`` maps keys to values, or to the size of a value that is no text.
    ``producer`` is the distribution that compiled it, with its version; "" if unknown.
    ``facts`` are the backend's facts by name, such as the target, and the scales of
    quantized inputs and outputs.
    """

    backend: str
    bytes: int
    compile_specs: dict[str, str]
    calls: int
    producer: str = ""
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodFacts:
    """The figures of a method.

    ``memories``: planned bytes of each memory, from number 1 on. ``peak``: the most
    bytes in use at one time. ``sum``: bytes of all tensors with planned memory, as if
    none shared its bytes. ``text``: the instructions as text.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    instructions: int
    kernels: dict[str, int]
    delegates: tuple[DelegateFacts, ...]
    memories: tuple[int, ...]
    peak: int
    sum: int
    state_bytes: int
    text: str


@dataclass(frozen=True)
class ProgramFacts:
    """The figures of a file. A runtime needs all ``backends`` and ``kernels`` to load it.

    ``structure_bytes``: bytes outside of segments. ``buckets``: the methods that are
    sizes of one model, if there are any.
    """

    bytes: int
    structure_bytes: int
    constant_bytes: int
    named_data: dict[str, int]
    external_tensors: tuple[str, ...]
    backends: tuple[str, ...]
    kernels: tuple[str, ...]
    methods: tuple[MethodFacts, ...]
    buckets: BucketTable | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the facts as a dictionary."""
        # the table of buckets has its own form, without the results' shapes
        found = asdict(replace(self, buckets=None))
        del found["buckets"]
        if self.buckets is not None:
            found["buckets"] = self.buckets.to_json()
        return found

    def __str__(self) -> str:
        """Return the figures, as comments before the text of the methods."""
        lines = [f"// {line}" for line in self.lines()]
        return "\n".join([*lines, *(method.text for method in self.methods)])

    def lines(self) -> list[str]:
        """Return the figures, one on a line."""
        backends = ", ".join(self.backends) or "none"
        kernels = ", ".join(self.kernels) or "none"
        lines = [
            (
                f"{self.bytes} bytes: {self.structure_bytes} of structure,"
                f" {self.constant_bytes} of constants"
            ),
            f"backends that the runtime must have: {backends}",
            f"kernels that the runtime must have: {kernels}",
        ]
        linked = ", ".join(name for name in self.kernels if name in QUANTIZED_LIBRARY)
        if linked:
            lines.append(
                "of these the build has to link ExecuTorch's kernels/quantized for"
                f" {linked}"
            )
        if self.named_data:
            sizes = [f"{key} ({size} bytes)" for key, size in self.named_data.items()]
            lines.append(f"named data: {', '.join(sizes)}")
        if self.external_tensors:
            lines.append(f"tensors in other files: {', '.join(self.external_tensors)}")
        if self.buckets is not None:
            lines.append(shorten(str(self.buckets)))
        for method in self.methods:
            lines += _method_lines(method)
        return lines


def _method_lines(method: MethodFacts) -> list[str]:
    """Return the figures of a method, one on a line."""
    memories = ", ".join(
        f"{size} bytes in memory {k}" for k, size in enumerate(method.memories, 1)
    )
    lines = [
        (
            f"method {method.name}: {_count(method.instructions, 'instruction')}, "
            f"{_count(sum(method.kernels.values()), 'call')} of kernels"
        ),
        (
            f"  planned: {memories or 'no memory'}; peak {method.peak}, sum"
            f" {method.sum}, state {method.state_bytes}"
        ),
    ]
    for number, delegate in enumerate(method.delegates):
        made = f" of {delegate.producer}" if delegate.producer else ""
        size = f"{_count(delegate.bytes, 'byte')}, {_count(delegate.calls, 'call')}"
        lines.append(f"  delegate {number}: {delegate.backend}{made}, {size}")
        lines += [
            f"    compile spec {key}: {value}"
            for key, value in delegate.compile_specs.items()
        ]
        lines += [f"    {name}: {text}" for name, text in delegate.facts.items()]
    return lines


def _count(number: int, noun: str) -> str:
    """Return a number with a noun in singular or plural."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def collect_facts(file: ProgramFile, size: int) -> ProgramFacts:
    """Return the figures of a file of ``size`` bytes that passed ``check_program``."""
    program = file.program
    methods = tuple(_facts_of_method(file, plan) for plan in program.plans)
    constants = program.constant_segment
    constant_bytes = 0
    if constants is not None and len(constants.offsets) > 1:
        constant_bytes = len(file.segments[constants.segment_index])
    external: set[str] = set()
    for plan in program.plans:
        external |= {_printable_name(name) for name in _external_names(plan)}
    backends: set[str] = set()
    kernels: set[str] = set()
    for method in methods:
        backends |= {delegate.backend for delegate in method.delegates}
        kernels |= set(method.kernels)
    return ProgramFacts(
        bytes=size,
        structure_bytes=size - bytes_covered(program.segments),
        constant_bytes=constant_bytes,
        named_data={
            _printable_name(n.key): len(file.segments[n.segment_index])
            for n in program.named_data
        },
        external_tensors=tuple(sorted(external)),
        backends=tuple(sorted(backends)),
        kernels=tuple(sorted(kernels)),
        methods=methods,
        buckets=_buckets(file),
    )


def _buckets(file: ProgramFile) -> BucketTable | None:
    """Return the table of sizes, if there is one. Raises FormatError if it is damaged."""
    for named in file.program.named_data:
        if named.key == KEY:
            return BucketTable.of_bytes(bytes(file.segments[named.segment_index]))
    return None


def bytes_covered(segments: Sequence[DataSegment]) -> int:
    """Return the bytes of all segments. Bytes that segments share count once."""
    total = 0
    covered_to = 0
    for segment in sorted(segments, key=lambda s: s.offset):
        end = segment.offset + segment.size
        total += max(end - max(segment.offset, covered_to), 0)
        covered_to = max(end, covered_to)
    return total


def _facts_of_method(file: ProgramFile, plan: ExecutionPlan) -> MethodFacts:
    """Return the figures of a method."""
    calls = plan.calls
    operators = Counter(c.op_index for c in calls if isinstance(c, KernelCall))
    # a damaged file may have a name twice, so count by name only now
    kernels: Counter[str] = Counter()
    for index, count in operators.items():
        kernels[_printable_name(str(plan.operators[index]))] += count
    calls_of = Counter(c.delegate_index for c in calls if isinstance(c, DelegateCall))
    extents = live_extents(plan)
    producer_of = [_printable_name(text) for text in producers(plan.container)]
    facts_of = delegate_facts(plan.container)
    delegates = []
    for k, delegate in enumerate(plan.delegates):
        specs = {
            _printable_name(spec.key): _value_of_spec(spec.value)
            for spec in delegate.compile_specs
        }
        delegates.append(
            DelegateFacts(
                backend=_printable_name(delegate.id),
                bytes=len(blob_of(file, delegate)),
                compile_specs=specs,
                calls=calls_of[k],
                producer=producer_of[k] if k < len(producer_of) else "",
                facts=facts_of[k] if k < len(facts_of) else {},
            )
        )
    return MethodFacts(
        name=_printable_name(plan.name),
        inputs=_describe_values(plan, plan.inputs),
        outputs=_describe_values(plan, plan.outputs),
        instructions=len(calls),
        kernels=dict(sorted(kernels.items())),
        delegates=tuple(delegates),
        memories=plan.memory_sizes[1:],
        peak=peak_bytes(extents),
        sum=sum(e.size for e in extents),
        state_bytes=sum(
            nbytes(t)
            for t in _tensors(plan)
            if t.allocation is not None and t.data_buffer_idx
        ),
        text="\n".join(method_lines(plan)),
    )


def _value_of_spec(value: bytes) -> str:
    """Return the value of a compile spec as text, or its size if it is no text."""
    size = _count(len(value), "byte")
    try:
        text = bytes(value).decode()
    except UnicodeDecodeError:
        return size
    return shorten(text) if text.isprintable() else size


def _printable_name(name: str) -> str:
    """Return a name of the file, shortened and printable."""
    return shorten(name, LONGEST)


def _describe_values(plan: ExecutionPlan, positions: Sequence[int]) -> tuple[str, ...]:
    """Return the types and sizes of values as texts."""
    values = [plan.values[p].value for p in positions]
    return tuple(
        describe_tensor(v) if isinstance(v, Tensor) else type(v).__name__.lower()
        for v in values
    )


def _tensors(plan: ExecutionPlan) -> list[Tensor]:
    """Return all tensors among the values of a method."""
    return [e.value for e in plan.values if isinstance(e.value, Tensor)]


def _external_names(plan: ExecutionPlan) -> list[str]:
    """Return the names of tensors in data files."""
    extras = [t.extra for t in _tensors(plan) if t.extra is not None]
    return [e.fully_qualified_name for e in extras if e.location == Location.EXTERNAL]

"""Saves, reads, shows and runs ``.tosa`` files. Imports no torch."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from delegraph.backend import NamedDataStoreOutput
from delegraph.command import provided
from delegraph.errors import InputError, Unsupported
from delegraph.formats import (
    Blob,
    DelegateFormat,
    LoadDelegate,
    Origin,
    ProgramContents,
    Quantization,
    Step,
    StoredBlob,
    Summary,
    Verdict,
    join,
)

from .evaluate import (
    bounded_iterations,
    check_inputs,
    check_ranges,
    evaluate,
    numbers_of,
)
from .evaluate.specialize import is_dynamic
from .ir.graph import Array, Graph, Value
from .ir.types import BLOCK_SCALED, DType
from .options import Options
from .serialize import (
    input_ranges,
    join_constants,
    producer_of,
    producer_record,
    quantization,
    read,
    read_numbered,
    target_of,
)
from .serialize.trailer import Followed
from .text import render
from .tools import figures, sample, summarize, verdicts
from .validate import validate

ELIDED = 16
"""Constants with more elements are left out of the text form."""
ADDRESSABLE = 1 << 47
"""Size in bytes of a 64-bit processor's address space."""
MAX_ITERATIONS = 100_000
"""Default limit of loop iterations in ``run``: some seconds if bodies are small."""
_VERSIONS = {"1.1": " (TOSA 1.1, a draft)", "0.80": " (TOSA 0.80)"}
"""Text after the profiles for versions other than 1.0."""
_MOST_LISTED = 8
"""The most input names that an error lists."""
_NEXT_SOURCE = re.compile(r" and (?=\w+ = )")
"""Separates the sources of an operator that was made from several calls."""
_SOURCE = re.compile(
    r"\w+ = (?P<operator>\S+)(?: in (?P<module>\S+))?(?: at (?P<line>.+))?", re.DOTALL
)
"""Matches ``relu_1 = aten.relu.default in layers.0 at model.py:7, in forward``."""
MAPPED = 1 << 28
"""Size in bytes from which a file is mapped into memory."""


@dataclass(frozen=True)
class TosaInspection:
    """Statistics of a file, and its text form without large constants."""

    name: str
    bytes: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    quantization: Quantization
    operators: dict[str, int]
    constants: int
    constant_bytes: int
    parameters: int
    multiply_accumulates: int
    constant_bytes_by_type: dict[str, int]
    computed_bytes_by_type: dict[str, int]
    largest_live_bytes: int
    version: str
    profiles: tuple[str, ...]
    extensions: tuple[str, ...]
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return the inspection as a dictionary."""
        quantization = {}
        for side, border in self.quantization._asdict().items():
            quantization[side] = {name: p and p._asdict() for name, p in border.items()}
        return asdict(self) | {"quantization": quantization}

    def __str__(self) -> str:
        """Return the statistics as comments, followed by the text form."""
        return "\n".join([*(f"// {line}" for line in self.lines()), self.text])

    def lines(self) -> list[str]:
        """Return the statistics, one sentence an entry."""
        operators = ", ".join(
            f"{count} {name}" for name, count in self.operators.items()
        )
        extensions = [f", extension {extension}" for extension in self.extensions]
        needs = " and ".join(self.profiles) + "".join(extensions)
        return [
            (
                f"{self.bytes} bytes, of which {self.constant_bytes} are the elements"
                f" of {self.constants} constants"
            ),
            f"needs profile {needs}" + _VERSIONS.get(self.version, ""),
            f"inputs: {', '.join(self.inputs) or 'none'}",
            f"outputs: {', '.join(self.outputs) or 'none'}",
            *self._quantized(),
            f"{sum(self.operators.values())} operators: {operators or 'none'}",
            (
                f"{self.parameters} parameters, {self.multiply_accumulates}"
                " multiply-accumulates"
            ),
            f"bytes of constants: {_by_type(self.constant_bytes_by_type)}",
            f"bytes of inputs and results: {_by_type(self.computed_bytes_by_type)}",
            f"largest live set: {self.largest_live_bytes} bytes",
        ]

    def _quantized(self) -> list[str]:
        """Return a line for each quantized input and output."""
        border = [*self.quantization.inputs.items(), *self.quantization.outputs.items()]
        return [
            f"quantized: %{name}: {parameters}"
            for name, parameters in border
            if parameters
        ]


class TosaFormat(DelegateFormat):
    """``.tosa`` files. Each is the blob of one delegate.

    Reading a damaged file raises FormatError.
    """

    backend_id = "TOSABackend"
    holds_named_data = True

    @classmethod
    def serialize(
        cls, program: ProgramContents, options: Mapping[str, Any]
    ) -> bytes | Blob:
        """Return the whole file with its named constants and its producer."""
        blob = super().serialize(program, options)
        delegate = program.whole_delegate()
        if isinstance(blob, bytes):
            data = delegate.named_data or NamedDataStoreOutput([], {}, {})
            constants = {
                key: join(data.buffers[entry.buffer_index])
                for key, entry in data.pte_data.items()
            }
            blob = join_constants(blob, constants)
        has_metadata = Options.parse(delegate.compile_specs).metadata
        record = producer_record(delegate.producer) if has_metadata else b""
        return Followed(blob, record)

    @staticmethod
    def inspect(path: Path) -> TosaInspection:
        """Return the statistics and the text form of a file."""
        data = _content(path)
        graph = read(data)
        target = target_of(data, graph)
        counted = figures(graph)
        return TosaInspection(
            name=graph.name,
            bytes=path.stat().st_size,
            inputs=tuple(map(_declared, graph.inputs)),
            outputs=tuple(map(_declared, graph.outputs)),
            quantization=quantization(data, graph),
            operators=counted.operators,
            constants=counted.constants,
            constant_bytes=sum(counted.constant_bytes.values()),
            parameters=counted.parameters,
            multiply_accumulates=counted.multiply_accumulates,
            constant_bytes_by_type=counted.constant_bytes,
            computed_bytes_by_type=counted.computed_bytes,
            largest_live_bytes=counted.largest_live_bytes,
            version=f"{target.version[0]}.{target.version[1]}",
            profiles=target.profile_names,
            extensions=tuple(sorted(target.extensions)),
            text=render(graph, elide=ELIDED),
        )

    @classmethod
    def read(
        cls, path: Path, load_delegate: LoadDelegate
    ) -> Mapping[str, Callable[..., Any]]:
        """Return ``forward``, which takes inputs in order or by name."""
        (blob,) = cls.blobs(path)
        names = [value.name for value in _graph(path).inputs]
        delegate = load_delegate(cls.backend_id, path.read_bytes(), header=blob.header)
        return {
            "forward": lambda *args, **kwargs: delegate(*_in_order(names, args, kwargs))
        }

    @classmethod
    def profile(
        cls, path: Path, load_delegate: LoadDelegate, see: Callable[[Step], None]
    ) -> Mapping[str, Callable[..., Any]]:
        """As ``read``; each call also reports the source lines of the operators.

        Files have source lines if they were written with ``locations``.
        """
        forward = cls.read(path, load_delegate)["forward"]
        _, numbers = read_numbered(_content(path))
        inside = {
            str(number): _origin(operator.name, operator.source)
            for operator, number in numbers.items()
        }

        def call(*args: Any, **kwargs: Any) -> Any:
            results = forward(*args, **kwargs)
            see(Step(cls.backend_id, inside=inside))
            return results

        return {"forward": call}

    @classmethod
    def blobs(cls, path: Path) -> Sequence[StoredBlob]:
        """Return the file as one blob, with its producer."""
        (blob,) = super().blobs(path)
        return [
            blob._replace(
                header=replace(blob.header, producer=producer_of(_content(path)))
            )
        ]

    @staticmethod
    def quantization(path: Path) -> Quantization:
        """Return the scales of quantized inputs and outputs."""
        data = _content(path)
        return quantization(data, read(data))

    @staticmethod
    def summarize(path: Path) -> Summary:
        """Return a summary that fits on one screen."""
        data = _content(path)
        graph = read(data)
        summary = summarize(
            graph,
            target_of(data, graph),
            path.stat().st_size,
            quantization(data, graph),
        )
        return replace(summary, producer=producer_of(data))

    @staticmethod
    def page(path: Path) -> str:
        """Return the statistics and the graph as one HTML page without links."""
        facts: list[tuple[str, str]] = []
        for line in TosaFormat.inspect(path).lines():
            name, _, value = line.partition(": ")
            facts.append((name, value))
        provided("delegraph_analysis.drawing:figure", "a page that shows a file")
        # imported late: the module needs delegraph_analysis
        from .tools.html import page

        return page(_graph(path), path.name, facts)

    @staticmethod
    def node_of(identifier: int) -> tuple[str, str]:
        """Name an operator as Arm's Model Explorer adapter does: region and number."""
        return "main", f"main/op{identifier}"

    @staticmethod
    def verify(path: Path) -> list[Verdict]:
        """Run other installed tools on the file, for the smallest possible target."""
        data = _content(path)
        graph = read(data)
        with _within_memory(graph):
            inputs = []
            if not is_dynamic(graph):
                inputs = sample(graph, 0, input_ranges(data, graph))
        return verdicts(path, graph, target_of(data, graph), inputs)

    @staticmethod
    def sample(path: Path, seed: int) -> list[Array]:
        """Return one random array for each input, which the file accepts.

        Raises InvalidGraph for a file that is not legal at any level. Raises
        Unsupported if the arrays do not fit into memory.
        """
        graph = _legal_graph(path)
        ranges = input_ranges(_content(path), graph)
        with _within_memory(graph):
            return sample(graph, seed, ranges)

    @staticmethod
    def run(
        path: Path, inputs: Sequence[Array], max_iterations: int = MAX_ITERATIONS
    ) -> list[tuple[str, Array]]:
        """Return the outputs by name, for one array for each input.

        BF16 inputs are given as bits in uint16. BF16 and block-scaled outputs are
        returned as float32.

        ``max_iterations`` limits the iterations of all loops together; a branch counts
        as one. Raises InputError for arrays of a wrong number, shape or type, and
        InvalidGraph for a file that is not legal at any level. Raises Unsupported for
        programs that numpy cannot compute, need too much memory or exceed
        ``max_iterations``.
        """
        graph = _legal_graph(path)
        ranges = input_ranges(_content(path), graph)
        with _within_memory(graph), bounded_iterations(max_iterations):
            check_inputs(graph.inputs, [(x.shape, x.dtype.name) for x in inputs])
            check_ranges(graph.inputs, inputs, ranges)
            results = evaluate(graph, inputs)
        outputs: list[tuple[str, Array]] = []
        for value, result in zip(graph.outputs, results, strict=True):
            name = value.name or f"output_{len(outputs)}"
            outputs.append((name, _readable(result, value.dtype)))
        return outputs


def _in_order(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the arguments of a call in the order of the file's inputs.

    The delegate checks their number.
    """
    rest = names[len(args) :]
    for name in kwargs:
        if name not in rest:
            inputs = [*names[:_MOST_LISTED]]
            if len(names) > _MOST_LISTED:
                inputs.append("...")
            listed = ", ".join(inputs) or "none"
            why = f"is none of the file's; inputs: {listed}"
            if name in names:
                why = "is given twice"
            raise InputError("input-invalid", f"the input {name!r} {why}")
    missing = [name for name in rest if name not in kwargs]
    if missing and kwargs:
        raise InputError("input-invalid", f"the input {missing[0]!r} is missing")
    return [*args, *(kwargs[name] for name in rest if name in kwargs)]


def _origin(name: str, location: str | None) -> Origin:
    """Return the origin of an operator ``name`` from its location in the file.

    Other writers write locations in other forms. Such a location is returned as a
    whole.
    """
    sources = [
        _SOURCE.fullmatch(source) for source in _NEXT_SOURCE.split(location or "")
    ]
    if not location or None in sources:
        return Origin((name,), (location,) if location else ())
    matches = [match for match in sources if match]
    operators = [match["operator"] for match in matches]
    lines = [match["line"] for match in matches if match["line"]]
    return Origin(tuple(dict.fromkeys(operators)), tuple(dict.fromkeys(lines)))


def _graph(path: Path) -> Graph:
    """Return the graph of a file."""
    return read(_content(path))


def _content(path: Path) -> bytes | memoryview:
    """Return the bytes of a file. Large files are memory-mapped.

    A mapped file must not be truncated while it is open.
    """
    if path.stat().st_size < MAPPED:
        return path.read_bytes()
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _legal_graph(path: Path) -> Graph:
    """Return the graph of a file. Raises InvalidGraph if it is not legal at any level.

    Without this check, a kernel could fail with an error that looks like a defect here.
    """
    data = _content(path)
    graph = read(data)
    validate(graph, replace(target_of(data, graph), level="NONE"))
    return graph


@contextmanager
def _within_memory(graph: Graph) -> Iterator[None]:
    """Raise Unsupported if the ``with`` block runs out of memory for ``graph``.

    A small file can declare tensors of any size, which is no defect of this program.
    """
    needed = figures(graph).largest_live_bytes
    problem = Unsupported(
        "unsupported",
        f"the program needs {needed} bytes of memory at once, which this process cannot"
        " have",
    )
    if needed >= ADDRESSABLE:
        raise problem
    try:
        yield
    except MemoryError:
        raise problem from None


def _by_type(counted: dict[str, int]) -> str:
    """Return bytes by element type as text."""
    return ", ".join(f"{count} {name}" for name, count in counted.items()) or "none"


def _declared(value: Value) -> str:
    """Return name and type of a value, with ``?`` for dynamic sizes."""
    return repr(value).replace(str(value.type), value.type.written)


def _readable(array: Array, dtype: DType) -> Array:
    """Return elements as numbers: BF16 and block-scaled elements as float32."""
    if dtype is DType.BF16 or dtype in BLOCK_SCALED:
        return numbers_of(array, dtype)
    return array

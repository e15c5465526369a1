"""``.tosa`` files: saved, read back, shown and run. Imports no torch."""

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
"""Constants of more elements are left out of the text form."""
ADDRESSABLE = 1 << 47
"""Bytes that a process has addresses for, on 64-bit processors."""
MAX_ITERATIONS = 100_000
"""Iterations of loops that ``run`` allows unless it is told another number: some
seconds of small bodies.
"""
_VERSIONS = {"1.1": " (TOSA 1.1, a draft)", "0.80": " (TOSA 0.80)"}
"""What is said of a version that is not 1.0."""
_LISTED = 8
"""Names of inputs in an error."""
_NEXT_SOURCE = re.compile(r" and (?=\w+ = )")
"""What stands between the sources of an operator that several became."""
_SOURCE = re.compile(
    r"\w+ = (?P<operator>\S+)(?: in (?P<module>\S+))?(?: at (?P<line>.+))?", re.DOTALL
)
"""``relu_1 = aten.relu.default in layers.0 at model.py:7, in forward: x =
self.relu(x)``
"""
MAPPED = 1 << 28
"""Bytes from which on a file is mapped into memory."""


@dataclass(frozen=True)
class TosaInspection:
    """Statistics of a file, and its text form with large constants left out."""

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
        """As a dictionary."""
        sides = self.quantization._asdict().items()
        rows = {
            side: {name: p and p._asdict() for name, p in border.items()}
            for side, border in sides
        }
        return asdict(self) | {"quantization": rows}

    def __str__(self) -> str:
        """The statistics, as comments before the text form."""
        return "\n".join([*(f"// {line}" for line in self.lines()), self.text])

    def lines(self) -> list[str]:
        """The statistics, a sentence each."""
        operators = ", ".join(
            f"{count} {name}" for name, count in self.operators.items()
        )
        needs = " and ".join(self.profiles) + "".join(
            f", extension {e}" for e in self.extensions
        )
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
        border = [*self.quantization.inputs.items(), *self.quantization.outputs.items()]
        return [
            f"quantized: %{name}: {parameters}"
            for name, parameters in border
            if parameters
        ]


class TosaFormat(DelegateFormat):
    """``.tosa`` files, each the blob of one delegate. Raises FormatError for a damaged
    one.
    """

    backend_id = "TOSABackend"
    holds_named_data = True

    @classmethod
    def serialize(
        cls, program: ProgramContents, options: Mapping[str, Any]
    ) -> bytes | Blob:
        """The file, whole, also where its constants are named data, and behind it what
        made it.
        """
        blob = super().serialize(program, options)
        delegate = program.whole_delegate()
        if isinstance(blob, bytes):
            data = delegate.named_data or NamedDataStoreOutput([], {}, {})
            blob = join_constants(
                blob,
                {
                    key: join(data.buffers[entry.buffer_index])
                    for key, entry in data.pte_data.items()
                },
            )
        wanted = Options.parse(delegate.compile_specs).metadata
        return Followed(blob, producer_record(delegate.producer) if wanted else b"")

    @staticmethod
    def inspect(path: Path) -> TosaInspection:
        """Statistics and the text form."""
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
        """``forward``, which takes its inputs in order or by the names in the file, and
        returns a tuple.
        """
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
        """As ``read``; operators are of the lines that the file says, if it was written
        with ``locations``.
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
        """The one blob that the file is, with what made it."""
        (blob,) = super().blobs(path)
        return [
            blob._replace(
                header=replace(blob.header, producer=producer_of(_content(path)))
            )
        ]

    @staticmethod
    def quantization(path: Path) -> Quantization:
        """The scales of integers that enter and leave, which stand behind the
        flatbuffer.
        """
        data = _content(path)
        return quantization(data, read(data))

    @staticmethod
    def summarize(path: Path) -> Summary:
        """One screen."""
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
        """The statistics and the graph as one HTML page, which needs no network."""
        facts = [
            tuple(line.partition(": ")[::2])
            for line in TosaFormat.inspect(path).lines()
        ]
        provided("delegraph_analysis.drawing:figure", "a page that shows a file")
        from .tools.html import page  # which draws by that distribution

        return page(_graph(path), path.name, [(name, value) for name, value in facts])

    @staticmethod
    def node_of(identifier: int) -> tuple[str, str]:
        """As Arm's adapter for Model Explorer names them: by region and number."""
        return "main", f"main/op{identifier}"

    @staticmethod
    def verify(path: Path) -> list[Verdict]:
        """What other tools that are installed say about the file, for the smallest
        target that takes it.
        """
        data = _content(path)
        graph = read(data)
        with _within_memory(graph):
            inputs = (
                [] if is_dynamic(graph) else sample(graph, 0, input_ranges(data, graph))
            )
        return verdicts(path, graph, target_of(data, graph), inputs)

    @staticmethod
    def sample(path: Path, seed: int) -> list[Array]:
        """One random array an input, on which the file runs.

        Raises InvalidGraph for a file that is not legal at any level, Unsupported for
        what no memory holds.
        """
        graph = _legal_graph(path)
        ranges = input_ranges(_content(path), graph)
        with _within_memory(graph):
            return sample(graph, seed, ranges)

    @staticmethod
    def run(
        path: Path, inputs: Sequence[Array], max_iterations: int = MAX_ITERATIONS
    ) -> list[tuple[str, Array]]:
        """Outputs by name, for one array an input (BF16: its bits, as uint16).

        Outputs that are BF16 or block-scaled come as float32. Raises InputError for
        arrays of another number, shape or type; InvalidGraph for a file that is not
        legal at any level; Unsupported for what numpy cannot compute or memory does not
        hold, and for a program that runs more than ``max_iterations`` iterations of all
        its loops together, branches counted as well.
        """
        graph = _legal_graph(path)
        ranges = input_ranges(_content(path), graph)
        with _within_memory(graph), bounded_iterations(max_iterations):
            check_inputs(graph.inputs, [(x.shape, x.dtype.name) for x in inputs])
            check_ranges(graph.inputs, inputs, ranges)
            results = evaluate(graph, inputs)
        return [
            (_name(k, v), _readable(r, v.dtype))
            for k, (v, r) in enumerate(zip(graph.outputs, results, strict=True))
        ]


def _in_order(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """The arguments of a call in the order of the file's inputs. How many there are is
    the delegate's matter.
    """
    rest = names[len(args) :]
    for name in kwargs:
        if name not in rest:
            listed = (
                ", ".join(
                    [*names[:_LISTED], *(["..."] if len(names) > _LISTED else [])]
                )
                or "none"
            )
            why = (
                "is given twice"
                if name in names
                else f"is none of the file's; inputs: {listed}"
            )
            raise InputError("input-invalid", f"the input {name!r} {why}")
    missing = [name for name in rest if name not in kwargs]
    if missing and kwargs:
        raise InputError("input-invalid", f"the input {missing[0]!r} is not given")
    return [*args, *(kwargs[name] for name in rest if name in kwargs)]


def _origin(name: str, location: str | None) -> Origin:
    """What an operator was made from, by the location in its file, which other writers
    word otherwise.
    """
    sources = [
        _SOURCE.fullmatch(source) for source in _NEXT_SOURCE.split(location or "")
    ]
    if not location or None in sources:
        return Origin((name,), (location,) if location else ())
    operators, lines = (
        [match[part] for match in sources if match and match[part]]
        for part in ("operator", "line")
    )
    return Origin(tuple(dict.fromkeys(operators)), tuple(dict.fromkeys(lines)))


def _graph(path: Path) -> Graph:
    return read(_content(path))


def _content(path: Path) -> bytes | memoryview:
    """The bytes of a file. Of a large one only what is looked at is loaded; it must not
    shrink meanwhile.
    """
    if path.stat().st_size < MAPPED:
        return path.read_bytes()
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _legal_graph(path: Path) -> Graph:
    """What breaks a rule would fail somewhere inside of a kernel, and look like a
    defect of this package.
    """
    data = _content(path)
    graph = read(data)
    validate(graph, replace(target_of(data, graph), level="NONE"))
    return graph


@contextmanager
def _within_memory(graph: Graph) -> Iterator[None]:
    """A few bytes of a file can ask for any number: that is no defect of ours."""
    needed = figures(graph).largest_live_bytes
    problem = Unsupported(
        "unsupported",
        f"the program needs {needed} bytes at once for its inputs and results",
    )
    if needed >= ADDRESSABLE:
        raise problem
    try:
        yield
    except MemoryError:
        raise problem from None


def _by_type(counted: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counted.items()) or "none"


def _declared(value: Value) -> str:
    return repr(value).replace(str(value.type), value.type.written)


def _name(position: int, value: Value) -> str:
    return value.name or f"output_{position}"


def _readable(array: Array, dtype: DType) -> Array:
    return (
        numbers_of(array, dtype)
        if dtype is DType.BF16 or dtype in BLOCK_SCALED
        else array
    )

"""Call methods of a backend's file format for another environment.

An *ability* is such a method: a name of ``describe.ABILITIES``. Each function of
``_ABILITIES`` calls one of them. Its ``header`` has the arguments that are values of
JSON, its ``parts`` the blobs or arrays. It returns the header and the parts of the
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import delegraph
import torch
from delegraph.backend import CompileSpec, DataEntry, NamedDataStoreOutput
from delegraph.errors import Unsupported
from delegraph.formats import join
from delegraph.host import FileFormat

from .arrays import read_arrays, write_arrays
from .kept import keep
from .message import Answer

Header = Mapping[str, Any]
Parts = Sequence[memoryview]


def answer(header: Header, parts: Parts) -> Answer:
    """Call the method that ``header["ability"]`` names."""
    path = Path(header["path"] or f"a{header['suffix']}")
    file = FileFormat(path, delegraph.default_registry())
    return _ABILITIES[header["ability"]](file, path, header, parts)


def _contents(header: Header, parts: Parts) -> Any:
    """Return the program of a job, which has one delegate, for a method of a format.

    ``parts`` has the delegate's blob, then the buffers of its named data.
    """
    row = header["delegate"]
    blob, *buffers = map(bytes, parts)
    data = None
    if header["entries"] is not None:
        entries = {
            key: DataEntry(index, alignment, None)
            for key, index, alignment in header["entries"]
        }
        data = NamedDataStoreOutput([*buffers], entries, {})
    delegate = SimpleNamespace(
        method=row["method"],
        name=row["name"],
        backend_id=row["backend_id"],
        producer=row["producer"],
        fingerprint=row["fingerprint"],
        blob=blob,
        compile_specs=[
            CompileSpec(key, bytes.fromhex(value)) for key, value in row["specs"]
        ],
        named_data=data,
        inputs=[_input_or_output(each) for each in row["inputs"]],
        outputs=[_input_or_output(each) for each in row["outputs"]],
        debug_handle_map={
            identifier: tuple(handles) for identifier, handles in row["handles"]
        },
    )
    return _Contents(delegate)


class _Contents:
    """A ``ProgramContents`` of one delegate, without its graph."""

    methods: Sequence[str] = ()
    constant_methods: Mapping[str, Any] = {}
    host_operators = 0

    def __init__(self, delegate: Any) -> None:
        self.delegates = [delegate]
        self.named_data = delegate.named_data or NamedDataStoreOutput([], {}, {})

    def whole_delegate(self) -> Any:
        return self.delegates[0]

    def exported_program(self, name: str = "forward") -> Any:
        raise Unsupported(
            "unsupported",
            "a format in another Python environment can write single delegates,"
            " but no whole programs",
        )

    def core_program(self, name: str = "forward", keep: Any = ()) -> Any:
        return self.exported_program(name)


def _input_or_output(row: Sequence[Any]) -> Any:
    """Return an input or output of a delegate: the inverse of ``_describe_value``."""
    name, dtype, shape = row
    return SimpleNamespace(
        name=name,
        dtype=getattr(torch, dtype, dtype),
        shape=None if shape is None else tuple(shape),
    )


def _why_not(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    return {"text": file.why_not(header["ids"])}, []


def _serialize(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    blob = file.serialize(_contents(header, parts), header["options"])
    return {"names": [""]}, [join(blob)]


def _files(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    files = file.files(_contents(header, parts), header["options"])
    return {"names": list(files)}, [join(blob) for blob in files.values()]


def _write(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    file.write(_contents(header, parts), path, header["options"])
    return {"names": []}, []


def _read(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    return _methods(file.load(**header["limits"]))


def _load_in(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    return _methods(file.load(header["runtime"]))


def _methods(program: Any) -> Answer:
    """Keep the methods of a loaded program; return their numbers (``kept``)."""
    numbers = {name: keep(program.method(name)) for name in program.methods}
    return {"methods": numbers}, []


def _quantization(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    quantization = file.quantization(path)
    inputs = _parameters(quantization.inputs)
    outputs = _parameters(quantization.outputs)
    return {"sides": [inputs, outputs]}, []


def _parameters(quantized: Mapping[str, Any]) -> list[Any]:
    """Return rows for inputs or outputs with their quantization parameters or None."""
    rows: list[Any] = []
    for name, p in quantized.items():
        row = None
        if p is not None:
            row = [p.dtype, float(p.scale).hex(), int(p.zero_point)]
        rows.append([name, row])
    return rows


def _blobs(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    rows = []
    beginnings = []
    for method, blob, specs in file.blobs(path):
        settings = [[spec.key, spec.value.hex()] for spec in specs]
        row = [method, blob.backend_id, blob.size, blob.producer, blob.fingerprint]
        rows.append([*row, settings])
        beginnings.append(blob.beginning)
    return {"rows": rows}, beginnings


def _named_data(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    data = file.named_data(path)
    return {"names": list(data)}, list(map(bytes, data.values()))


def _inspect(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    inspection = file.inspect(path)
    return {"text": str(inspection), "json": inspection.to_json()}, []


def _summarize(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    return {"summary": file.summarize(path).to_json()}, []


def _sample(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    arrays = file.sample(path, header["seed"], **header["named"])
    rows, data = write_arrays(arrays)
    return {"arrays": rows}, data


def _run(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    inputs = read_arrays(header["arrays"], parts)
    outputs = file.run(path, inputs, **header["limits"])
    rows, data = write_arrays([array for _, array in outputs])
    return {"names": [name for name, _ in outputs], "arrays": rows}, data


def _page(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    return {"text": file.page(path)}, []


def _node_of(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    return {"node": list(file.node_of(header["identifier"]))}, []


def _verify(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    return {"verdicts": [list(verdict) for verdict in file.verify(path)]}, []


_ABILITIES: Mapping[str, Callable[[FileFormat, Path, Header, Parts], Answer]] = {
    "why_not": _why_not,
    "serialize": _serialize,
    "files": _files,
    "write": _write,
    "read": _read,
    "load_in": _load_in,
    "quantization": _quantization,
    "named_data": _named_data,
    "blobs": _blobs,
    "inspect": _inspect,
    "summarize": _summarize,
    "sample": _sample,
    "run": _run,
    "page": _page,
    "node_of": _node_of,
    "verify": _verify,
}

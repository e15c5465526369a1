"""What a worker of a backend's own environment does for its file format: one method of
it at a time.
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

Answer = tuple[dict[str, Any], list[bytes]]
Header = Mapping[str, Any]
Parts = Sequence[memoryview]


def answer(header: Header, parts: Parts) -> Answer:
    """What the format of a suffix answers; methods of programs that it reads are kept."""
    path = Path(header["path"]) if header["path"] else Path(f"a{header['suffix']}")
    file = FileFormat(path, delegraph.default_registry())
    return _ABILITIES[header["ability"]](file, path, header, parts)


def _contents(header: Header, parts: Parts) -> Any:
    """A program of one delegate, as far as formats of delegates look at one."""
    told = header["delegate"]
    data = None
    if header["entries"] is not None:
        data = NamedDataStoreOutput(
            [bytes(part) for part in parts[1:]],
            {k: DataEntry(n, align, None) for k, n, align in header["entries"]},
            {},
        )
    delegate = SimpleNamespace(
        **{
            key: told[key]
            for key in ("method", "name", "backend_id", "producer", "fingerprint")
        },
        blob=bytes(parts[0]),
        compile_specs=[
            CompileSpec(key, bytes.fromhex(value)) for key, value in told["specs"]
        ],
        named_data=data,
        inputs=[_border(row) for row in told["inputs"]],
        outputs=[_border(row) for row in told["outputs"]],
        debug_handle_map={k: tuple(v) for k, v in told["handles"]},
    )
    return _Contents(delegate)


class _Contents:
    """A program whose delegate was sent, and nothing else of it."""

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
            "a format in an environment of its own is shown delegates, and no program",
        )

    def core_program(self, name: str = "forward", keep: Any = ()) -> Any:
        return self.exported_program(name)


def _border(row: Sequence[Any]) -> Any:
    name, dtype, shape = row
    return SimpleNamespace(
        name=name, dtype=getattr(torch, dtype, dtype), shape=shape and tuple(shape)
    )


def _written(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    contents = _contents(header, parts)
    options = header["options"]
    if header["ability"] == "write":
        file.write(contents, path, options)
        return {"names": []}, []
    made = (
        {"": file.serialize(contents, options)}
        if header["ability"] == "serialize"
        else file.files(contents, options)
    )
    return {"names": list(made)}, [join(blob) for blob in made.values()]


def _read(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    runtime = header.get("runtime")
    program = file.load(runtime) if runtime else file.load(**header["limits"])
    return {
        "methods": {name: keep(program.method(name)) for name in program.methods}
    }, []


def _quantization(file: FileFormat, path: Path, *_: Any) -> Answer:
    sides = [
        [
            [name, p and [p.dtype, float(p.scale).hex(), int(p.zero_point)]]
            for name, p in side.items()
        ]
        for side in file.quantization(path)
    ]
    return {"sides": sides}, []


def _blobs(file: FileFormat, path: Path, *_: Any) -> Answer:
    blobs = file.blobs(path)
    rows = []
    for method, header, specs in blobs:
        told = [[spec.key, spec.value.hex()] for spec in specs]
        rows.append(
            [
                method,
                header.backend_id,
                header.size,
                header.producer,
                header.fingerprint,
                told,
            ]
        )
    return {"rows": rows}, [b.header.beginning for b in blobs]


def _named_data(file: FileFormat, path: Path, *_: Any) -> Answer:
    data = file.named_data(path)
    return {"names": list(data)}, list(map(bytes, data.values()))


def _inspect(file: FileFormat, path: Path, *_: Any) -> Answer:
    seen = file.inspect(path)
    return {"text": str(seen), "json": seen.to_json()}, []


def _sample(file: FileFormat, path: Path, header: Header, *_: Any) -> Answer:
    rows, parts = write_arrays(file.sample(path, header["seed"], **header["named"]))
    return {"arrays": rows}, parts


def _run(file: FileFormat, path: Path, header: Header, parts: Parts) -> Answer:
    made = file.run(path, read_arrays(header["arrays"], parts), **header["limits"])
    rows, data = write_arrays([array for _, array in made])
    return {"names": [name for name, _ in made], "arrays": rows}, data


def _verify(file: FileFormat, path: Path, *_: Any) -> Answer:
    return {"verdicts": [list(verdict) for verdict in file.verify(path)]}, []


_ABILITIES: Mapping[str, Callable[..., Answer]] = {
    "why_not": lambda file, path, header, *_: (
        {"text": file.why_not(header["ids"])},
        [],
    ),
    "serialize": _written,
    "files": _written,
    "write": _written,
    "read": _read,
    "load_in": _read,
    "quantization": _quantization,
    "named_data": _named_data,
    "blobs": _blobs,
    "inspect": _inspect,
    "summarize": lambda file, path, *_: (
        {"summary": file.summarize(path).to_json()},
        [],
    ),
    "sample": _sample,
    "run": _run,
    "page": lambda file, path, *_: ({"text": file.page(path)}, []),
    "node_of": lambda file, path, header, *_: (
        {"node": list(file.node_of(header["identifier"]))},
        [],
    ),
    "verify": _verify,
}

"""Represent file formats of backends in other environments.

``Format_SUFFIX`` is made on first use. The worker itself reads and writes files, with
the rights of this process; blobs and values of calls are sent. Only formats with the
blob of one delegate are taken from an environment. Formats of whole programs have
delegates of any backend, so they are needed here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from delegraph.backend import Blob, CompileSpec
from delegraph.errors import FormatError, PluginUnavailable
from delegraph.formats import (
    ConstantSummary,
    DelegateFormat,
    DelegateSummary,
    MethodSummary,
    ProgramContents,
    Quantization,
    QuantizationParameters,
    StoredBlob,
    Summary,
    TensorSummary,
    Verdict,
    join,
)
from delegraph.runtime import BlobHeader

from .arrays import read_arrays, write_arrays
from .environments import call_there, environment, rows_of
from .plugin import described, identifier, suffixes

_Words = Callable[[dict[str, Any], list[memoryview]], Any]
"""A function that makes a value of the header and the parts of an answer."""


def __getattr__(attribute: str) -> Any:
    """Return the classes that ``plugin`` declares."""
    for suffix, name in suffixes().items():
        if attribute == f"Format_{identifier(suffix)}":
            return _format(name, suffix)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


@cache
def _format(name: str, suffix: str) -> type[DelegateFormat]:
    """Return the format of a suffix in the environment of backend ``name``."""
    told = next(
        row
        for row in described()[name][1]["formats"]
        if row["suffix"].lower() == suffix
    )
    if "error" in told:
        text = (
            f"the format of {suffix} files in the environment of {name!r} cannot be"
            f" used: {told['error']}"
        )
        raise PluginUnavailable("plugin-unavailable", text)
    body: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": f"{suffix} files, by the format in the environment of {name!r}.",
        "backend_id": told["backend_id"],
        "holds_named_data": told["holds_named_data"],
    }
    there = _There(name, suffix)
    for ability, parameters in told["abilities"].items():
        method = getattr(there, ability, None)
        if method is None:
            continue
        body[ability] = staticmethod(_with_parameters(method, parameters))
    if "serialize" in body:
        checked = body["serialize"].__func__

        def serialize(
            cls: Any, program: ProgramContents, options: Mapping[str, Any]
        ) -> bytes | Blob:
            DelegateFormat.serialize.__func__(cls, program, {})  # type: ignore[attr-defined]  # one delegate alone
            return checked(program, options)  # type: ignore[no-any-return]

        body["serialize"] = classmethod(serialize)
    return type(f"Format_{identifier(suffix)}", (DelegateFormat,), body)


def _with_parameters(
    method: Callable[..., Any], optional: Sequence[str]
) -> Callable[..., Any]:
    """Return a function with the optional parameters of the method in the environment.

    Callers of formats inspect these parameters.
    """

    def function(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    signature = inspect.signature(method)
    known = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for name in optional
    ]
    function.__signature__ = signature.replace(parameters=[*known, *added])  # type: ignore[attr-defined]
    return function


class _There:
    """The methods of a format in another environment, like those of ``ProgramFormat``."""

    def __init__(self, name: str, suffix: str) -> None:
        self._name = name
        self._suffix = suffix

    def _ask(
        self,
        ability: str,
        path: Path | None = None,
        parts: Sequence[bytes] = (),
        **fields: Any,
    ) -> tuple[dict[str, Any], list[memoryview], int]:
        header = {"do": "format", "ability": ability, "suffix": self._suffix, **fields}
        return environment(self._name).run(
            header | {"path": path and os.path.abspath(path)}, parts
        )

    def _read(
        self,
        ability: str,
        words: Callable[[dict[str, Any], list[memoryview]], Any],
        *args: Any,
        **fields: Any,
    ) -> Any:
        """Return the value that ``words`` makes of an answer.

        Raises FormatError if it is invalid.
        """
        told, parts, _ = self._ask(ability, *args, **fields)
        try:
            return words(told, parts)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
            text = (
                f"the format of {self._suffix} files in the environment of"
                f" {self._name!r} gave an invalid answer"
            )
            raise FormatError(
                "format-invalid", f"{text}: {type(e).__name__}: {e}"
            ) from e

    def why_not(self, backend_ids: Sequence[str]) -> Any:
        return self._read(
            "why_not", lambda told, _: told["text"], ids=sorted(backend_ids)
        )

    def serialize(self, program: ProgramContents, options: Mapping[str, Any]) -> bytes:
        return bytes(self._contents("serialize", program, options)[""])

    def files(
        self, program: ProgramContents, options: Mapping[str, Any]
    ) -> Mapping[str, bytes | Blob]:
        return self._contents("files", program, options)

    def write(
        self, program: ProgramContents, path: Path, options: Mapping[str, Any]
    ) -> None:
        self._contents("write", program, options, path)

    def _contents(
        self,
        ability: str,
        program: ProgramContents,
        options: Mapping[str, Any],
        path: Path | None = None,
    ) -> dict[str, bytes]:
        """Return the files that a format makes of a program of one delegate."""
        delegate = program.whole_delegate()
        data = delegate.named_data
        entries = (
            [[k, e.buffer_index, e.alignment] for k, e in data.pte_data.items()]
            if data
            else None
        )
        fields = {
            "method": delegate.method,
            "name": delegate.name,
            "backend_id": delegate.backend_id,
            "producer": delegate.producer,
            "fingerprint": delegate.fingerprint,
            "specs": rows_of(delegate.compile_specs),
            "inputs": [_border(each) for each in delegate.inputs],
            "outputs": [_border(each) for each in delegate.outputs],
            "handles": [[k, list(v)] for k, v in delegate.debug_handle_map.items()],
        }
        blobs = [
            join(blob) for blob in (delegate.blob, *(data.buffers if data else ()))
        ]
        return self._read(  # type: ignore[no-any-return]
            ability,
            lambda told, parts: dict(
                zip(told["names"], map(bytes, parts), strict=True)
            ),
            path,
            blobs,
            delegate=fields,
            entries=entries,
            options=dict(options),
        )

    def read(
        self, path: Path, load_delegate: Any, **limits: Any
    ) -> Mapping[str, Callable[..., Any]]:
        return self._methods(
            "read", path, limits={k: v for k, v in limits.items() if v is not None}
        )

    def load_in(self, runtime: str, path: Path) -> Mapping[str, Callable[..., Any]]:
        return self._methods("load_in", path, runtime=runtime)

    def _methods(
        self, ability: str, path: Path, **fields: Any
    ) -> Mapping[str, Callable[..., Any]]:
        told, _, process = self._ask(ability, path, **fields)
        made = {}
        for method, number in told.get("methods", {}).items():
            made[method] = partial(call_there, self._name, number, process)
            environment(self._name).keep_for(made[method], process, number)
        return made

    def quantization(self, path: Path) -> Quantization:
        def parameters(row: Any) -> QuantizationParameters | None:
            return row and QuantizationParameters(
                str(row[0]), float.fromhex(row[1]), int(row[2])
            )

        return self._read(  # type: ignore[no-any-return]
            "quantization",
            lambda told, _: Quantization(
                *({n: parameters(row) for n, row in side} for side in told["sides"])
            ),
            path,
        )

    def named_data(self, path: Path) -> Mapping[str, bytes | memoryview]:
        made = self._read(
            "named_data",
            lambda told, parts: dict(zip(told["names"], parts, strict=True)),
            path,
        )
        return made  # type: ignore[no-any-return]

    def blobs(self, path: Path) -> Sequence[StoredBlob]:
        def stored(row: Any, beginning: memoryview) -> StoredBlob:
            method, backend_id, size, producer, fingerprint, specs = row
            header = BlobHeader(
                backend_id, size, bytes(beginning), producer, fingerprint
            )
            return StoredBlob(
                method,
                header,
                tuple(CompileSpec(key, bytes.fromhex(value)) for key, value in specs),
            )

        return self._read(  # type: ignore[no-any-return]
            "blobs",
            lambda told, parts: [
                stored(*each) for each in zip(told["rows"], parts, strict=True)
            ],
            path,
        )

    def inspect(self, path: Path) -> _Inspection:
        return self._read(  # type: ignore[no-any-return]
            "inspect", lambda told, _: _Inspection(told["text"], told["json"]), path
        )

    def summarize(self, path: Path) -> Summary:
        return self._read("summarize", lambda told, _: _summary(told["summary"]), path)  # type: ignore[no-any-return]

    def sample(self, path: Path, seed: int, **named: Any) -> list[np.ndarray[Any, Any]]:
        return self._read(  # type: ignore[no-any-return]
            "sample",
            lambda told, p: read_arrays(told["arrays"], p),
            path,
            seed=seed,
            named=named,
        )

    def run(
        self, path: Path, inputs: Sequence[np.ndarray[Any, Any]], **limits: Any
    ) -> list[tuple[str, np.ndarray[Any, Any]]]:
        rows, parts = write_arrays(inputs)
        limits = {k: v for k, v in limits.items() if v is not None}
        return self._read(  # type: ignore[no-any-return]
            "run",
            lambda told, p: list(
                zip(told["names"], read_arrays(told["arrays"], p), strict=True)
            ),
            path,
            parts,
            arrays=rows,
            limits=limits,
        )

    def page(self, path: Path) -> str:
        return str(self._read("page", lambda told, _: told["text"], path))

    def node_of(self, identifier: Any) -> tuple[str, str]:
        graph, node = self._read(
            "node_of", lambda told, _: map(str, told["node"]), identifier=identifier
        )
        return graph, node

    def verify(self, path: Path) -> Sequence[Verdict]:
        return self._read(  # type: ignore[no-any-return]
            "verify", lambda told, _: [Verdict(*row) for row in told["verdicts"]], path
        )


class _Inspection:
    """A format's description of a file, from another environment."""

    def __init__(self, text: str, json: dict[str, Any]) -> None:
        self._text = str(text)
        self._json = dict(json)

    def __str__(self) -> str:
        return self._text

    def to_json(self) -> dict[str, Any]:
        return self._json


def _border(value: Any) -> list[Any]:
    """Return name, type and sizes of a delegate's input or output; unknown sizes are
    text.
    """
    sizes = (
        None
        if value.shape is None
        else [int(n) if isinstance(n, int) else str(n) for n in value.shape]
    )
    return [value.name, str(value.dtype).removeprefix("torch."), sizes]


def _summary(told: Mapping[str, Any]) -> Summary:
    """Return the Summary of a dictionary from ``Summary.to_json`` after JSON."""

    def tensors(rows: Any) -> tuple[TensorSummary, ...]:
        return tuple(
            TensorSummary(**row | {"shape": row["shape"] and tuple(row["shape"])})
            for row in rows
        )

    methods = tuple(
        MethodSummary(
            row["name"],
            tensors(row["inputs"]),
            tensors(row["outputs"]),
            row["operators"],
            tuple(DelegateSummary(**each) for each in row["delegates"]),
        )
        for row in told["methods"]
    )
    largest = tuple(
        ConstantSummary(**row | {"shape": tuple(row["shape"])})
        for row in told["largest"]
    )
    return Summary(**dict(told) | {"methods": methods, "largest": largest})

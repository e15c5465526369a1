"""Stand in for file formats of backends that are installed in other environments.

The class ``Format_SUFFIX``, one for each suffix, is made on first use. A worker reads
and writes the files, with the rights of this process. It gets the blobs, and the values
of calls. This applies to formats of
one delegate only. Files of whole programs may contain delegates of any backend, so
their formats must be installed in this environment.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from .environments import Answer, call_there, environment, rows_of
from .plugin import described, identifier, suffixes


def __getattr__(attribute: str) -> Any:
    """Return the classes that ``plugin`` declares."""
    for suffix, name in suffixes().items():
        if attribute == f"Format_{identifier(suffix)}":
            return _format(name, suffix)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


@cache
def _format(name: str, suffix: str) -> type[DelegateFormat]:
    """Return the format of a suffix in the environment of backend ``name``."""
    _, description = described()[name]
    rows = {row["suffix"].lower(): row for row in description["formats"]}
    row = rows[suffix]
    if "error" in row:
        raise PluginUnavailable(
            "plugin-unavailable",
            f"the format of {suffix} files in the environment of {name!r} cannot be"
            f" used: {row['error']}",
        )
    body: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": f"{suffix} files, by the format in the environment of {name!r}.",
        "backend_id": row["backend_id"],
        "holds_named_data": row["holds_named_data"],
    }
    remote = _RemoteFormat(name, suffix)
    for ability, parameters in row["abilities"].items():
        method = getattr(remote, ability, None)
        if method is not None:
            body[ability] = staticmethod(_with_parameters(method, parameters))
    if "serialize" in body:
        serialize_there = body["serialize"].__func__

        def serialize(
            cls: Any, program: ProgramContents, options: Mapping[str, Any]
        ) -> bytes | Blob:
            # raises for a program of more than one delegate
            DelegateFormat.serialize.__func__(cls, program, {})  # type: ignore[attr-defined]
            return serialize_there(program, options)  # type: ignore[no-any-return]

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


class _RemoteFormat:
    """A format in another environment, with the methods of ``ProgramFormat``.

    Each method sends its arguments to a worker there (``serve_formats``).
    """

    def __init__(self, name: str, suffix: str) -> None:
        self._name = name
        self._suffix = suffix

    def _call(
        self,
        ability: str,
        path: Path | None = None,
        parts: Sequence[bytes] = (),
        **fields: Any,
    ) -> Answer:
        """Call the method ``ability`` of the format in its environment.

        ``fields``: the arguments that are values of JSON. ``parts``: blobs or arrays.
        """
        header = {
            "do": "format",
            "ability": ability,
            "suffix": self._suffix,
            "path": None if path is None else os.path.abspath(path),
            **fields,
        }
        return environment(self._name).run(header, parts)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Raise FormatError if the block finds an invalid answer."""
        try:
            yield
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
            raise FormatError(
                "format-invalid",
                f"the format of {self._suffix} files in the environment of"
                f" {self._name!r} gave an invalid answer: {type(e).__name__}: {e}",
            ) from e

    def why_not(self, backend_ids: Sequence[str]) -> Any:
        answer = self._call("why_not", ids=sorted(backend_ids))
        with self._reading():
            return answer.content["text"]

    def serialize(self, program: ProgramContents, options: Mapping[str, Any]) -> bytes:
        return self._files_of("serialize", program, options)[""]

    def files(
        self, program: ProgramContents, options: Mapping[str, Any]
    ) -> Mapping[str, bytes | Blob]:
        return self._files_of("files", program, options)

    def write(
        self, program: ProgramContents, path: Path, options: Mapping[str, Any]
    ) -> None:
        self._files_of("write", program, options, path)

    def _files_of(
        self,
        ability: str,
        program: ProgramContents,
        options: Mapping[str, Any],
        path: Path | None = None,
    ) -> dict[str, bytes]:
        """Return the files that a format makes of a program of one delegate, by name.

        ``ability`` is the method of the format: "serialize", "files" or "write". Only
        "write" has a ``path``, and writes the files itself.
        """
        delegate = program.whole_delegate()
        handles = [
            [identifier, list(listed)]
            for identifier, listed in delegate.debug_handle_map.items()
        ]
        fields = {
            "method": delegate.method,
            "name": delegate.name,
            "backend_id": delegate.backend_id,
            "producer": delegate.producer,
            "fingerprint": delegate.fingerprint,
            "specs": rows_of(delegate.compile_specs),
            "inputs": [_describe_value(each) for each in delegate.inputs],
            "outputs": [_describe_value(each) for each in delegate.outputs],
            "handles": handles,
        }
        blobs = [join(delegate.blob)]
        entries = None
        data = delegate.named_data
        if data:
            blobs += [join(buffer) for buffer in data.buffers]
            entries = [
                [key, entry.buffer_index, entry.alignment]
                for key, entry in data.pte_data.items()
            ]
        answer = self._call(
            ability,
            path,
            blobs,
            delegate=fields,
            entries=entries,
            options=dict(options),
        )
        with self._reading():
            contents = map(bytes, answer.parts)
            return dict(zip(answer.content["names"], contents, strict=True))

    def read(
        self, path: Path, load_delegate: Any, **limits: Any
    ) -> Mapping[str, Callable[..., Any]]:
        return self._methods("read", path, limits=_without_none(limits))

    def load_in(self, runtime: str, path: Path) -> Mapping[str, Callable[..., Any]]:
        return self._methods("load_in", path, runtime=runtime)

    def _methods(
        self, ability: str, path: Path, **fields: Any
    ) -> Mapping[str, Callable[..., Any]]:
        """Return the methods of a program that a process of the environment loaded.

        ``ability`` is the method of the format that loads it. The process keeps a
        method as long as this process uses it.
        """
        answer = self._call(ability, path, **fields)
        process = answer.process
        methods = {}
        for method, number in answer.content.get("methods", {}).items():
            methods[method] = partial(call_there, self._name, number, process)
            environment(self._name).release_after(methods[method], process, number)
        return methods

    def quantization(self, path: Path) -> Quantization:
        answer = self._call("quantization", path)
        with self._reading():
            inputs, outputs = answer.content["sides"]
            return Quantization(_parameters(inputs), _parameters(outputs))

    def named_data(self, path: Path) -> Mapping[str, bytes | memoryview]:
        answer = self._call("named_data", path)
        with self._reading():
            return dict(zip(answer.content["names"], answer.parts, strict=True))

    def blobs(self, path: Path) -> Sequence[StoredBlob]:
        answer = self._call("blobs", path)
        blobs = []
        with self._reading():
            for row, beginning in zip(
                answer.content["rows"], answer.parts, strict=True
            ):
                method, backend_id, size, producer, fingerprint, settings = row
                header = BlobHeader(
                    backend_id, size, bytes(beginning), producer, fingerprint
                )
                specs = tuple(
                    CompileSpec(key, bytes.fromhex(value)) for key, value in settings
                )
                blobs.append(StoredBlob(method, header, specs))
        return blobs

    def inspect(self, path: Path) -> _Inspection:
        answer = self._call("inspect", path)
        with self._reading():
            return _Inspection(answer.content["text"], answer.content["json"])

    def summarize(self, path: Path) -> Summary:
        answer = self._call("summarize", path)
        with self._reading():
            return _summary(answer.content["summary"])

    def sample(self, path: Path, seed: int, **named: Any) -> list[np.ndarray[Any, Any]]:
        answer = self._call("sample", path, seed=seed, named=named)
        with self._reading():
            return read_arrays(answer.content["arrays"], answer.parts)

    def run(
        self, path: Path, inputs: Sequence[np.ndarray[Any, Any]], **limits: Any
    ) -> list[tuple[str, np.ndarray[Any, Any]]]:
        rows, parts = write_arrays(inputs)
        answer = self._call(
            "run", path, parts, arrays=rows, limits=_without_none(limits)
        )
        with self._reading():
            arrays = read_arrays(answer.content["arrays"], answer.parts)
            return list(zip(answer.content["names"], arrays, strict=True))

    def page(self, path: Path) -> str:
        answer = self._call("page", path)
        with self._reading():
            return str(answer.content["text"])

    def node_of(self, identifier: Any) -> tuple[str, str]:
        answer = self._call("node_of", identifier=identifier)
        with self._reading():
            graph, node = answer.content["node"]
            return str(graph), str(node)

    def verify(self, path: Path) -> Sequence[Verdict]:
        answer = self._call("verify", path)
        with self._reading():
            return [Verdict(*row) for row in answer.content["verdicts"]]


class _Inspection:
    """A format's description of a file, from another environment."""

    def __init__(self, text: str, json: dict[str, Any]) -> None:
        self._text = str(text)
        self._json = dict(json)

    def __str__(self) -> str:
        return self._text

    def to_json(self) -> dict[str, Any]:
        return self._json


def _without_none(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits that are set."""
    return {name: limit for name, limit in limits.items() if limit is not None}


def _describe_value(value: Any) -> list[Any]:
    """Return name, type and sizes of a delegate's input or output, for JSON.

    Sizes known at run time only are text. The list of sizes is None if the rank is
    unknown.
    """
    sizes = None
    if value.shape is not None:
        sizes = [int(n) if isinstance(n, int) else str(n) for n in value.shape]
    return [value.name, str(value.dtype).removeprefix("torch."), sizes]


def _parameters(rows: Any) -> dict[str, QuantizationParameters | None]:
    """Return the quantization of inputs or outputs, by name."""
    parameters: dict[str, QuantizationParameters | None] = {}
    for name, row in rows:
        parameters[name] = None
        if row:
            dtype, scale, zero_point = row
            parameters[name] = QuantizationParameters(
                str(dtype), float.fromhex(scale), int(zero_point)
            )
    return parameters


def _summary(content: Mapping[str, Any]) -> Summary:
    """Build a Summary from the JSON object of ``Summary.to_json``.

    JSON has dictionaries and lists; a Summary has records and tuples.
    """
    methods = []
    for row in content["methods"]:
        delegates = tuple(DelegateSummary(**fields) for fields in row["delegates"])
        methods.append(
            MethodSummary(
                row["name"],
                _tensors(row["inputs"]),
                _tensors(row["outputs"]),
                row["operators"],
                delegates,
            )
        )
    largest = tuple(
        ConstantSummary(**{**row, "shape": tuple(row["shape"])})
        for row in content["largest"]
    )
    return Summary(**{**content, "methods": tuple(methods), "largest": largest})


def _tensors(rows: Any) -> tuple[TensorSummary, ...]:
    """Build the summaries of inputs or outputs from JSON."""
    tensors = []
    for row in rows:
        shape = None if row["shape"] is None else tuple(row["shape"])
        tensors.append(TensorSummary(**{**row, "shape": shape}))
    return tuple(tensors)

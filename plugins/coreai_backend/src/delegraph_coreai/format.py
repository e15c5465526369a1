"""``.aimodel`` folders: a program that is one delegate, for systems with Core AI.

Folders that other tools wrote can be inspected, run and verified as well.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from coreai.authoring.asset import AIModelAsset, AIProgram
from delegraph.errors import FormatError, InputError, OptionError
from delegraph.formats import (
    Blob,
    DelegateFormat,
    LoadDelegate,
    MethodSummary,
    ProgramContents,
    StoredBlob,
    Summary,
    TensorSummary,
    Verdict,
    join,
)
from delegraph.io.escape_for_terminal import printable
from delegraph.runtime import BEGINNING, BlobHeader

from .names import DTYPES, MAIN, MARK

if TYPE_CHECKING:
    from delegraph.delegates import DelegateInfo

BYTECODE = "main.mlirb"
DIGEST = "main.hash"
METADATA = "metadata.json"
PROGRAM = "program"
"""The key of the whole program, which the runtime gets as named data."""
PRODUCER = "delegraph.producer"
"""The key of metadata with distribution and version of the backend."""
_TYPE = re.compile(r"NDArray \((\w+)(?:, ([^)]*))?\)")
_NAMES = {"coreai.name", "MutableBuffers.buffer_mutation"}
"""Attributes with the name of an input or output. A state has its name in both."""
_MOST = 1 << 28
"""The most elements of a random input: a damaged file may declare any size."""


class CoreAIInspection(Summary):
    """The summary of a folder as text."""

    def __str__(self) -> str:
        (method,) = self.methods
        lines = [
            f"{self.kind}, {self.version}: {self.bytes} bytes",
            f"producer: {self.producer or 'unknown'}",
            *(f"input {tensor}" for tensor in method.inputs),
            *(f"output {tensor}" for tensor in method.outputs),
            *(f"{count} {name}" for name, count in method.operators.items()),
        ]
        return "\n".join(map(printable, lines))


class CoreAIFormat(DelegateFormat):
    """A Core AI model, with the names of ``forward`` and the order of its inputs."""

    backend_id = "CoreAIBackend"
    holds_named_data = True

    @classmethod
    def serialize(
        cls, program: ProgramContents, options: Mapping[str, Any]
    ) -> bytes | Blob:
        """Raise InputError: a folder has no bytes."""
        raise InputError(
            "input-invalid", "an .aimodel is a folder", hint="save it to a path"
        )

    @classmethod
    def write(
        cls, program: ProgramContents, path: Path, options: Mapping[str, Any]
    ) -> None:
        """Write the folder. An older one is replaced when the new one is complete."""
        if options:
            raise OptionError(
                "option-invalid",
                f".aimodel folders have no option {next(iter(options))!r:.40}",
            )
        delegate = cls.delegate(program)
        named = _with_names(join(delegate.blob), delegate)
        try:
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                new = Path(folder, "new.aimodel")
                asset = named.save_asset(new)
                asset.update_metadata(
                    lambda m: m.set_custom(PRODUCER, delegate.producer)
                )
                if path.exists():
                    os.rename(path, Path(folder, "old.aimodel"))
                os.rename(new, path)
        except OSError as error:
            raise InputError(
                "input-invalid", f"cannot write {path}: {error.strerror or error}"
            ) from error

    @classmethod
    def read(
        cls, path: Path, load_delegate: LoadDelegate
    ) -> Mapping[str, Callable[..., Any]]:
        """Return ``forward``, which takes inputs in order or by name.

        It returns a tuple.
        """
        contents = _contents(path)
        (stored,) = cls.blobs(path)
        blob = _sealed(contents)
        data: Any = {PROGRAM: contents.bytecode}
        delegate = load_delegate(cls.backend_id, blob, [], data, stored.header)
        names = [tensor.name for tensor in contents.inputs]

        def forward(*args: Any, **kwargs: Any) -> Any:
            return delegate(*_in_order(names, args, kwargs))

        return {"forward": forward}

    @classmethod
    def blobs(cls, path: Path) -> Sequence[StoredBlob]:
        """Return the one blob of the folder, with the name of its producer."""
        with _part(path, BYTECODE).open("rb") as file:
            beginning = file.read(BEGINNING)
        header = BlobHeader(
            cls.backend_id,
            _part(path, BYTECODE).stat().st_size,
            beginning,
            producer=_producer(path),
        )
        return [StoredBlob("forward", header, [])]

    @staticmethod
    def inspect(path: Path) -> CoreAIInspection:
        """Return inputs, outputs and operators of any ``.aimodel`` folder."""
        contents = _contents(path, counts=True)
        method = MethodSummary(
            "forward", contents.inputs, contents.outputs, contents.operators
        )
        size = sum(file.stat().st_size for file in path.rglob("*"))
        return CoreAIInspection(
            "Core AI model",
            f"for systems from {contents.version}",
            size,
            {},
            (method,),
            contents.operators.get("constant", 0),
            0,
            (),
            _producer(path),
        )

    @staticmethod
    def summarize(path: Path) -> Summary:
        """Return the same as ``inspect``."""
        return CoreAIFormat.inspect(path)

    @staticmethod
    def sample(path: Path, seed: int) -> list[np.ndarray[Any, Any]]:
        """Return random inputs: floats are standard normal, integers are 0 or 1.

        Sizes that vary are 2.
        """
        generator = np.random.default_rng(seed)
        arrays = []
        for tensor in _contents(path).inputs:
            shape = [2 if size is None else size for size in tensor.shape or ()]
            if prod(shape) > _MOST:
                raise FormatError(
                    "format-invalid",
                    f"the input {tensor} is too large for random values",
                )
            if "float" in tensor.dtype:
                numbers: Any = generator.standard_normal(shape)
            else:
                numbers = generator.integers(0, 2, shape)
            kind = "float32" if tensor.dtype == "bfloat16" else tensor.dtype
            arrays.append(np.asarray(numbers, kind))
        return arrays

    @staticmethod
    def verify(path: Path) -> Sequence[Verdict]:
        """Return the judgement of Core AI's compiler for this host."""
        from .model import load_model

        try:
            load_model([_bytecode(path)])
        except FormatError as error:
            return [Verdict("Core AI", False, error.message)]
        return [Verdict("Core AI", True, "")]


# --- reading ------------------------------------------------------------------------


class _Contents(NamedTuple):
    """The contents of a folder. ``function``: the name of the function to call."""

    function: str
    bytecode: memoryview
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    operators: dict[str, int]
    version: str


def _part(path: Path, name: str) -> Path:
    """Return the path of a file in the folder. Raises FormatError without it."""
    part = path / name
    if not part.is_file():
        raise FormatError(
            "format-invalid", f"the folder is not a Core AI model: there is no {name}"
        )
    return part


def _bytecode(path: Path) -> memoryview:
    """Return the program, mapped into memory: it may have gigabytes of weights.

    Raises FormatError if it differs from its digest.
    """
    with _part(path, BYTECODE).open("rb") as file:
        try:
            bytecode = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError as error:  # it is empty
            text = f"the folder is not a Core AI model: {BYTECODE}: {error}"
            raise FormatError("format-invalid", text) from error
    if hashlib.sha256(bytecode).digest() != _part(path, DIGEST).read_bytes():
        raise FormatError(
            "format-invalid",
            f"the Core AI model is damaged: {DIGEST} is not the SHA-256 of {BYTECODE}",
        )
    return bytecode


def _contents(path: Path, counts: bool = False) -> _Contents:
    """Return the contents of a folder.

    ``counts``: whether to count the operators, which takes longer.
    """
    _metadata(path)
    bytecode = _bytecode(path)
    try:
        summary = AIModelAsset.load(path).summary(include_statistics=counts)
    except RuntimeError as error:
        raise FormatError(
            "format-invalid", f"the folder is not a Core AI model: {error}"
        ) from error
    functions = [] if summary is None else summary.function_names
    if len(functions) != 1 and MAIN not in functions:
        listed = ", ".join(functions) or "none"
        raise FormatError(
            "format-invalid",
            f"a Core AI model has one function, or one called {MAIN}; this one has"
            f" {listed}",
        )
    function = MAIN if MAIN in functions else functions[0]
    return _Contents(
        function,
        bytecode,
        tuple(map(_tensor, summary.function_inputs(function))),
        tuple(map(_tensor, summary.function_outputs(function))),
        dict(sorted(summary.operation_distribution, key=lambda pair: -pair[1])),
        summary._compatibility_version or "unknown",
    )


def _tensor(described: tuple[str, str]) -> TensorSummary:
    """Return an input or output from its name and Core AI's text for its type."""
    name, text = described
    match = _TYPE.fullmatch(text)
    if match is None or match[1] not in DTYPES:
        raise FormatError(
            "format-invalid",
            f"the Core AI model's {name!r:.40} has the type {text:.60}; delegraph passes"
            f" tensors of {', '.join(DTYPES.values())}",
        )
    sizes = [size.strip() for size in (match[2] or "").split("\u00d7") if size.strip()]
    shape = tuple(int(size) if size.isdecimal() else None for size in sizes)
    return TensorSummary(name, DTYPES[match[1]], shape)


def _metadata(path: Path) -> dict[str, Any]:
    """Return the metadata of a folder. Raises FormatError if there are none."""
    try:
        found = json.loads(_part(path, METADATA).read_bytes())
    except (ValueError, RecursionError) as error:
        raise FormatError(
            "format-invalid",
            f"the folder is not a Core AI model: {METADATA} is not JSON: {error}",
        ) from error
    if not isinstance(found, dict):
        raise FormatError(
            "format-invalid",
            f"the folder is not a Core AI model: {METADATA} is not a JSON object",
        )
    return found


def _producer(path: Path) -> str:
    """Return distribution and version of the backend that wrote a folder.

    For folders of other tools, return the name of the tool.
    """
    found = _metadata(path)
    custom = found.get("creatorDefinedMetadata", found.get("userDefined", {}))
    if isinstance(custom, dict) and isinstance(custom.get(PRODUCER), str):
        producer: str = custom[PRODUCER]
        return producer
    return str(found.get("producer", ""))[:100]


def _sealed(contents: _Contents) -> bytes:
    """Return the contents of a folder as a blob of the backend.

    The blob refers to the program as named data, and does not copy it.
    """
    from delegraph_engines import Signature

    from .weights import Hole

    sides = []
    for tensors in (contents.inputs, contents.outputs):
        side = []
        for tensor in tensors:
            sizes = tuple(-1 if size is None else size for size in tensor.shape or ())
            side.append((tensor.dtype, sizes))
        sides.append(side)
    holes = [Hole(0, len(contents.bytecode), PROGRAM)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, BYTECODE)
        file.touch()
        signature = Signature.from_json(sides)
        return signature.seal(file, MARK, function=contents.function, weights=holes)


def _in_order(
    names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the inputs of a call in the order of ``names``."""
    rest = names[len(args) :]
    if sorted(rest) != sorted(kwargs):
        raise InputError(
            "input-invalid",
            f"the program takes {', '.join(names)}; {len(args)} inputs were given"
            f" in order, and by name {', '.join(kwargs) or 'none'}",
        )
    return [*args, *(kwargs[name] for name in rest)]


# --- writing ------------------------------------------------------------------------


def _named_data(delegate: DelegateInfo) -> dict[str, bytes]:
    """Return the named data of a delegate, by key."""
    store = delegate.named_data
    if store is None:
        return {}
    return {
        key: join(store.buffers[entry.buffer_index])
        for key, entry in store.pte_data.items()
    }


def _with_names(blob: bytes, delegate: DelegateInfo) -> AIProgram:
    """Return the program of a blob with the names of the user's program.

    Raises InputError for a state whose initial value is not zero, which a file cannot
    hold.
    """
    from coreai._compiler.ir import ArrayAttr, DictAttr, StringAttr
    from delegraph_engines import Signature

    from .states import states_of
    from .weights import filled

    bytecode, _, facts = Signature.unseal(blob, MARK)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, BYTECODE)
        with path.open("wb") as file:
            file.writelines(filled(bytecode, facts, _named_data(delegate)))
        program = AIProgram._load_bytecode(path)
    graph = program._get_graph(MAIN)
    assert graph is not None
    names = _Names()
    for k, tensor in enumerate(delegate.inputs):
        names.add(f"x{k}", tensor.name or f"input_{k}", "input")
    for k, tensor in enumerate(delegate.outputs):
        names.add(f"y{k}", tensor.name or f"output_{k}", "output")
    for state in states_of(facts):
        if state.key is not None:  # the key of an initial value
            raise InputError(
                "input-invalid",
                f"states in an .aimodel begin with zeros, but the buffer"
                f" {state.buffer} has other initial values",
                hint="fill the buffer with zeros, and add its initial value in forward",
            )
        names.add(state.name, state.buffer.replace(".", "_"), "state")

    def renamed(attributes: Any) -> Any:
        """Return ``attributes``, one row for each input or output, with new names."""
        rows = []
        for row in attributes:
            entries = {entry.name: entry.attr for entry in row}
            for key in _NAMES & entries.keys():
                old = StringAttr(entries[key]).value
                entries[key] = StringAttr.get(names.of[old])
            rows.append(DictAttr.get(entries))
        return ArrayAttr.get(rows)

    with program._module._context:
        graph.arg_attrs = renamed(graph.arg_attrs)
        graph.res_attrs = renamed(graph.res_attrs)
    return program


class _Names:
    """The user's names of inputs, outputs and states.

    ``of``: the name in the program, such as ``x0``, -> the user's name.
    """

    def __init__(self) -> None:
        self.of: dict[str, str] = {}

    def add(self, old: str, name: str, kind: str) -> None:
        """Add a name. If it is taken, append the kind and the number: ``x_output_0``."""
        if name in self.of.values():
            name = f"{name}_{kind}_{old[1:]}"
        self.of[old] = name

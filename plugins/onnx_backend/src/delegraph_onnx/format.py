"""``.onnx`` files: a program that is one delegate, for ONNX Runtime and other readers.

Files that other tools wrote can be inspected, run and verified as well.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from delegraph.errors import FormatError, InputError, OptionError
from delegraph.formats import (
    Blob,
    ConstantSummary,
    DelegateFormat,
    LoadDelegate,
    MethodSummary,
    ProgramContents,
    StoredBlob,
    Summary,
    TensorSummary,
    Verdict,
    join,
    write_whole,
)
from delegraph.io.atomic_write import expect_writable
from delegraph.io.escape_for_terminal import printable
from google.protobuf.message import DecodeError
from onnx import TensorProto

if TYPE_CHECKING:  # a file is read without torch
    from delegraph.delegates import DelegateInfo

LARGEST = 2**31 - 2**20
"""Bytes of a file without external data: protobuf reads no larger ones."""
PRODUCER = "delegraph.producer"
"""The key of metadata with distribution and version of the backend."""
DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.BOOL: "bool",
}
"""ONNX's types -> torch's, of tensors at the border of a program."""
_MOST_ELEMENTS = 1 << 28
"""The most elements of a random input: a few bytes of a file can request any number."""


class OnnxInspection(Summary):
    """The summary of a file as text."""

    def __str__(self) -> str:
        (method,) = self.methods
        lines = [
            f"{self.kind}, {self.version}: {self.bytes} bytes",
            f"producer: {self.producer or 'unknown'}",
            f"constants: {self.constants}, {self.constant_bytes} bytes",
            *(f"input {tensor}" for tensor in method.inputs),
            *(f"output {tensor}" for tensor in method.outputs),
            *(f"{count} {name}" for name, count in method.operators.items()),
        ]
        return "\n".join(map(printable, lines))


class OnnxFormat(DelegateFormat):
    """An ONNX model, with the names of ``forward`` and the order of its inputs."""

    backend_id = "OnnxBackend"
    holds_named_data = True

    @classmethod
    def serialize(
        cls, program: ProgramContents, options: Mapping[str, Any]
    ) -> bytes | Blob:
        """Return the file. Raises InputError for a program of more than 2 GB."""
        model, weights = cls._model(program, options)
        size = sum(len(data) for data in weights.values())
        if size + model.ByteSize() > LARGEST:
            raise InputError(
                "input-invalid",
                f"an ONNX file of {size} bytes needs a second file for its weights",
                hint="save it to a path",
            )
        for initializer in model.graph.initializer:
            if initializer.name in weights:
                _put_inside(initializer, weights[initializer.name])
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    @classmethod
    def write(
        cls, program: ProgramContents, path: Path, options: Mapping[str, Any]
    ) -> None:
        """Write the file. Beyond 2 GB, weights are in ``model.onnx.data``, in the same folder."""
        model, weights = cls._model(program, options)
        size = sum(len(data) for data in weights.values())
        if size + model.ByteSize() <= LARGEST:
            super().write(program, path, options)
            return
        data_file = path.with_name(f"{path.name}.data")
        parts = list[bytes]()
        offset = 0
        for initializer in model.graph.initializer:
            if initializer.name in weights:
                data = weights[initializer.name]
                _point_to(initializer, data_file.name, offset, len(data))
                parts.append(data)
                offset += len(data)
        # before the second file is written, which would otherwise be left over
        expect_writable(path)
        write_whole(data_file, b"".join(parts))
        write_whole(path, model.SerializeToString(deterministic=True))

    @classmethod
    def _model(
        cls, program: ProgramContents, options: Mapping[str, Any]
    ) -> tuple[onnx.ModelProto, dict[str, bytes]]:
        """Return the model, and the bytes of the weights that it does not hold.

        They are named as their initializers.
        """
        from delegraph_engines import Signature  # imports torch

        from .session import MARK

        if options:
            raise OptionError(
                "option-invalid",
                f".onnx files have no option {next(iter(options))!r:.40}",
            )
        delegate = cls.delegate(program)
        content, _, facts = Signature.unseal(join(delegate.blob), MARK)
        model = onnx.ModelProto.FromString(bytes(content))
        _rename_border(model.graph, delegate)
        distribution, _, version = delegate.producer.partition(" ")
        model.producer_name = distribution
        model.producer_version = version
        model.metadata_props.add(key=PRODUCER, value=delegate.producer)
        return model, _weights(facts, delegate)

    @classmethod
    def read(
        cls, path: Path, load_delegate: LoadDelegate
    ) -> Mapping[str, Callable[..., Any]]:
        """Return ``forward``, which takes inputs in order or by name.

        It returns a tuple.
        """
        from delegraph_engines import to_specs

        from .settings import PREFIX

        model = _load(path)
        names = [value.name for value in _inputs(model.graph)]
        blob, data = _sealed(model, path)
        specs = to_specs(PREFIX, {"ep": _provider(model)})
        (stored,) = cls.blobs(path)
        delegate = load_delegate(cls.backend_id, blob, specs, data, stored.header)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return delegate(*_in_order(names, args, kwargs))

        return {"forward": forward}

    @classmethod
    def blobs(cls, path: Path) -> Sequence[StoredBlob]:
        """Return the blob of the file, and its producer."""
        (blob,) = super().blobs(path)
        producer = _producer(_load(path))
        return [blob._replace(header=replace(blob.header, producer=producer))]

    @staticmethod
    def inspect(path: Path) -> OnnxInspection:
        """Return inputs, outputs, operators and constants of any ONNX file."""
        model = _load(path)
        graph = model.graph
        constants = [
            ConstantSummary(
                tensor.name, _dtype(tensor.data_type), tuple(tensor.dims), _size(tensor)
            )
            for tensor in graph.initializer
        ]
        counts = Counter(node.op_type for node in graph.node)
        method = MethodSummary(
            "forward",
            tuple(map(_summary, _inputs(graph))),
            tuple(map(_summary, graph.output)),
            dict(counts.most_common()),
        )
        opsets = [f"{o.domain or 'opset'} {o.version}" for o in model.opset_import]
        return OnnxInspection(
            "ONNX model",
            ", ".join(opsets),
            path.stat().st_size,
            {},
            (method,),
            len(constants),
            sum(constant.bytes for constant in constants),
            Summary.largest_of(constants),
            _producer(model)
            or f"{model.producer_name} {model.producer_version}".strip(),
        )

    @staticmethod
    def summarize(path: Path) -> Summary:
        """Return the same as ``inspect``."""
        return OnnxFormat.inspect(path)

    @staticmethod
    def sample(path: Path, seed: int) -> list[np.ndarray[Any, Any]]:
        """Return random inputs: floats are standard normal, integers are 0 or 1.

        A size that calls choose is 2.
        """
        generator = np.random.default_rng(seed)
        arrays = []
        for tensor in map(_summary, _inputs(_load(path).graph)):
            shape = [2 if size is None else size for size in tensor.shape or ()]
            if prod(shape) > _MOST_ELEMENTS or tensor.dtype not in DTYPES.values():
                text = f"no random values can be drawn for the file's input {tensor}"
                raise FormatError("format-invalid", text)
            if "float" in tensor.dtype:
                numbers: Any = generator.standard_normal(shape)
            else:
                numbers = generator.integers(0, 2, shape)
            kind = "float32" if tensor.dtype == "bfloat16" else tensor.dtype
            arrays.append(np.asarray(numbers, kind))
        return arrays

    @staticmethod
    def verify(path: Path) -> Sequence[Verdict]:
        """Return the judgements of ``onnx.checker`` and of ONNX Runtime."""
        try:
            onnx.checker.check_model(str(path), full_check=True)
            checked = Verdict("onnx.checker", True, "")
        except Exception as error:  # the class depends on the fault
            checked = Verdict("onnx.checker", False, str(error).strip()[:500])
        return [checked, _judge_by_runtime(path)]


def _judge_by_runtime(path: Path) -> Verdict:
    """Return whether ONNX Runtime loads a file by itself."""
    from .providers import make_options
    from .session import reason_of
    from .settings import check_settings

    try:
        import onnxruntime as ort
    except ImportError:
        return Verdict("ONNX Runtime", None, "onnxruntime is not installed")
    try:
        options = make_options(check_settings({"ep": _provider(_load(path))}))
        ort.InferenceSession(str(path), options)
    except Exception as error:  # the class depends on the fault
        return Verdict("ONNX Runtime", False, reason_of(error))
    return Verdict("ONNX Runtime", True, "")


# --- reading ------------------------------------------------------------------------


def _load(path: Path) -> onnx.ModelProto:
    """Return the model in a file, without external data. Raises FormatError."""
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, ValueError) as error:
        raise FormatError(
            "format-invalid", f"the file is not an ONNX model: {error}"
        ) from error
    if not model.opset_import or not model.graph.output:
        raise FormatError(
            "format-invalid",
            "the file is not an ONNX model: it has no opset or no output",
        )
    return model


def _inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs of a call. Older files list weights among them."""
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def _summary(value: onnx.ValueInfoProto) -> TensorSummary:
    """Return name, dtype and shape of a value; the shape is None without a rank."""
    tensor = value.type.tensor_type
    sizes = None
    if tensor.HasField("shape"):
        sizes = tuple(
            size.dim_value if size.HasField("dim_value") else None
            for size in tensor.shape.dim
        )
    return TensorSummary(value.name, _dtype(tensor.elem_type), sizes)


def _dtype(number: int) -> str:
    """Return torch's name of a type, else ONNX's."""
    if number in DTYPES:
        return DTYPES[number]
    names = {n: name.lower() for name, n in TensorProto.DataType.items()}
    name: str = names.get(number, "unknown")
    return name


def _size(tensor: TensorProto) -> int:
    """Return the bytes of a constant."""
    dtype = _dtype(tensor.data_type)
    if tensor.data_type not in DTYPES:
        return len(tensor.raw_data)
    width = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    size: int = prod(tensor.dims) * width
    return size


def _producer(model: onnx.ModelProto) -> str:
    """Return distribution and version of the backend; "" for files of other tools."""
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    producer: str = metadata.get(PRODUCER, "")
    return producer


def _provider(model: onnx.ModelProto) -> str:
    """Return the execution provider that compiled a model; ``cpu`` if none did."""
    for node in model.graph.node:
        if node.op_type == "EPContext":
            sources = [a.s for a in node.attribute if a.name == "source"]
            source = b"".join(sources).decode(errors="replace")
            name = source.removesuffix("ExecutionProvider").lower()
            return "".join(c for c in name if c.isalnum()) or "cpu"
    return "cpu"


def _sealed(model: onnx.ModelProto, path: Path) -> tuple[bytes, dict[str, bytes]]:
    """Return a model as a blob of the backend, and its external data as named data."""
    from delegraph_engines import Signature

    from .session import MARK

    _expect_one_file(model)
    sides = []
    for values in (_inputs(model.graph), model.graph.output):
        side = []
        for tensor in map(_summary, values):
            if tensor.dtype not in DTYPES.values() or tensor.shape is None:
                raise FormatError(
                    "format-invalid",
                    f"the ONNX file has the input or output {tensor}; these must have a"
                    f" known rank and a dtype among {', '.join(DTYPES.values())}",
                )
            sizes = tuple(-1 if size is None else size for size in tensor.shape)
            side.append((tensor.dtype, sizes))
        sides.append(side)
    rows, data = _external(model, path)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.onnx")
        file.write_bytes(model.SerializeToString(deterministic=True))
        return Signature.from_json(sides).seal(file, MARK, weights=rows), data


def _expect_one_file(model: onnx.ModelProto) -> None:
    """Raise FormatError if code of a provider, or a constant, is in another file.

    A model of another person must not choose the files that are read. ``_external``
    reads the weights of the model itself.
    """
    for node in _all_nodes(model):
        # a value that a function gets from its caller is 0 here
        modes = [a.i for a in node.attribute if a.name == "embed_mode"]
        if node.op_type == "EPContext" and any(mode != 1 for mode in modes):
            names = [a.s for a in node.attribute if a.name == "ep_cache_context"]
            name = b"".join(names).decode(errors="replace")
            raise FormatError(
                "format-invalid",
                "the compiled code for an execution provider is in another file,"
                f" {name!r:.80}; delegraph reads only code that is embedded in the"
                " model",
            )
        for attribute in node.attribute:
            tensors = [attribute.t, *attribute.tensors]
            for graph in _graphs_of(attribute):
                tensors += graph.initializer
            for tensor in tensors:
                if tensor.data_location == TensorProto.EXTERNAL:
                    raise FormatError(
                        "format-invalid",
                        f"the constant {tensor.name!r:.40} of {node.op_type!r:.40} is"
                        " in another file; delegraph reads only weights of the main"
                        " graph from other files",
                        hint="save the model with this constant inside",
                    )


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a model, its functions, branches and loop bodies."""
    groups = [model.graph.node]
    groups += [function.node for function in model.functions]
    while groups:
        for node in groups.pop():
            yield node
            for attribute in node.attribute:
                groups += [graph.node for graph in _graphs_of(attribute)]


def _graphs_of(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    """Return the branches or loop bodies that an attribute has."""
    return [*attribute.graphs, attribute.g]


def _external(
    model: onnx.ModelProto, path: Path
) -> tuple[dict[str, list[Any]], dict[str, bytes]]:
    """Return rows for the fact "weights", and the bytes of external data by name.

    Raises FormatError for a file in another folder: a model of another person must not
    choose the files that are read.
    """
    rows = dict[str, list[Any]]()
    data = dict[str, bytes]()
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        data_file = path.with_name(Path(entries.get("location", "")).name)
        if entries.get("location") != data_file.name or not data_file.is_file():
            raise FormatError(
                "format-invalid",
                f"the weight {tensor.name!r:.40} is in the file"
                f" {entries.get('location')!r:.80}, which is not in the folder of the model",
            )
        dtype = _dtype(tensor.data_type)
        rows[tensor.name] = [tensor.name, dtype, list(tensor.dims)]
        try:
            offset = int(entries.get("offset", 0))
            with data_file.open("rb") as file:
                file.seek(offset)
                data[tensor.name] = file.read(_size(tensor))
        except (ValueError, OSError) as error:
            raise FormatError(
                "format-invalid",
                f"cannot read the external data of {tensor.name!r:.40}: {error}",
            ) from error
    return rows, data


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


def _rename_border(graph: onnx.GraphProto, delegate: DelegateInfo) -> None:
    """Name inputs and outputs as the program does."""
    wanted = [
        (graph.input, delegate.inputs, "input"),
        (graph.output, delegate.outputs, "output"),
    ]
    names = dict[str, str]()
    for values, descriptions, side in wanted:
        for k, (value, described) in enumerate(zip(values, descriptions, strict=True)):
            name = described.name or f"{side}_{k}"
            if name in names.values():
                name = f"{name}_{side}_{k}"
            names[value.name] = name
            value.name = name
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for inner in _graphs_of(attribute):
                _rename_inside(inner, names)


def _rename_inside(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename values of the outer graph that a branch or a loop body reads."""
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for attribute in node.attribute:
            for inner in _graphs_of(attribute):
                _rename_inside(inner, names)
    for value in graph.output:
        value.name = names.get(value.name, value.name)


def _weights(facts: Mapping[str, Any], delegate: DelegateInfo) -> dict[str, bytes]:
    """Return the bytes of the weights that are named data, by names of initializers."""
    named = delegate.named_data
    weights = {}
    for name, (key, _, _) in facts["weights"].items():
        assert named is not None
        weights[name] = join(named.buffers[named.pte_data[key].buffer_index])
    return weights


def _put_inside(initializer: TensorProto, data: bytes) -> None:
    """Store the bytes of a weight in the model."""
    del initializer.external_data[:]
    initializer.data_location = TensorProto.DEFAULT
    initializer.raw_data = data


def _point_to(
    initializer: TensorProto, location: str, offset: int, length: int
) -> None:
    """Let a weight refer to bytes of the file ``location``."""
    del initializer.external_data[:]
    initializer.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": str(offset), "length": str(length)}
    for key, value in entries.items():
        initializer.external_data.add(key=key, value=value)

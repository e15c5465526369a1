"""Store the types and largest sizes of a blob's inputs and outputs.

This is the blob's calling convention. A blob of ExecuTorch does not contain it, because
the program file does. A runtime that gets only the blob finds the convention in named
data, under a key with the blob's digest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from delegraph.backend import NamedDataStore
from delegraph.errors import FormatError, NoRuntime, Unsupported
from delegraph_programs import output_values, user_inputs
from delegraph_programs.exported_program import MUTATIONS
from torch.export import ExportedProgram
from torch.fx import Node

from ..emit.size_bounds import upper_bounds
from ..program.conventions import convention_key
from ..program.pte_tables import Dynamism, Tensor
from ..program.scalar_types import TORCH_NAMES, ScalarType


@dataclass(frozen=True)
class Value:
    """A tensor with its type and sizes, or a number, which has no type.

    ``varies``: whether the sizes are only upper bounds.
    """

    dtype: str | None
    sizes: tuple[int, ...] = ()
    varies: bool = False


@dataclass(frozen=True)
class Convention:
    """The inputs and outputs of a blob, in their order."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def add_convention(
    store: NamedDataStore, backend_id: str, blob: bytes, program: ExportedProgram
) -> None:
    """Add the calling convention of ``blob`` to ``store``.

    If a size has no upper bound, nothing is added: no runtime could plan memory for it.
    """
    returned = []
    specs = program.graph_signature.output_specs
    for spec, value in zip(specs, output_values(program), strict=True):
        if spec.kind not in MUTATIONS:
            returned.append(value)
    try:
        convention = Convention(
            _values(user_inputs(program), program), _values(returned, program)
        )
    except Unsupported:
        # a size has no upper bound
        return
    store.add_named_data(
        convention_key(backend_id, blob),
        json.dumps(asdict(convention), separators=(",", ":")).encode(),
    )


def convention_in_file(
    backend_id: str, blob: bytes, values: Sequence[Any], output_count: int
) -> dict[str, bytes]:
    """Return the calling convention of a blob in a program file, as named data.

    ``values`` are the records of the inputs, then of the ``output_count`` outputs. If a
    tensor is not in C order, the result is empty: the program that runs a single blob
    needs C order.
    """
    for value in values:
        if isinstance(value, Tensor):
            c_order = tuple(range(len(value.sizes)))
            if value.dim_order != c_order:
                return {}
    listed = [_value_in_file(v) for v in values]
    input_count = len(listed) - output_count
    convention = Convention(tuple(listed[:input_count]), tuple(listed[input_count:]))
    return {convention_key(backend_id, blob): json.dumps(asdict(convention)).encode()}


def _value_in_file(value: Any) -> Value:
    """Convert the record of a value in a program file."""
    if not isinstance(value, Tensor):
        return Value(dtype=None)
    return Value(
        TORCH_NAMES[ScalarType(value.scalar_type)],
        value.sizes,
        varies=value.dynamism != Dynamism.STATIC,
    )


def convention_of(
    backend_id: str, blob: bytes, named_data: Mapping[str, bytes]
) -> Convention:
    """Return the calling convention of ``blob``.

    Raises NoRuntime if there is none, FormatError if it is damaged.
    """
    content = named_data.get(convention_key(backend_id, blob))
    if content is None:
        text = f"this blob of {backend_id} has no calling convention"
        hint = (
            "give all dynamic sizes an upper bound, torch.export.Dim(..., max=...); if"
            " another tool compiled the blob, run the whole .pte of that tool"
        )
        raise NoRuntime("no-runtime", text, hint=hint)
    try:
        read = json.loads(content)
        inputs = tuple(_read_value(v) for v in read["inputs"])
        outputs = tuple(_read_value(v) for v in read["outputs"])
        return Convention(inputs, outputs)
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        text = f"the calling convention of a blob of {backend_id} is damaged: {e}"
        raise FormatError("format-invalid", text) from e


def _values(nodes: Sequence[Any], program: ExportedProgram) -> tuple[Value, ...]:
    return tuple(_value_of(node, program) for node in nodes)


def _value_of(node: Any, program: ExportedProgram) -> Value:
    """Describe an input or output of a program: a node or a constant number."""
    val = node.meta.get("val") if isinstance(node, Node) else node
    if not isinstance(val, torch.Tensor):
        return Value(dtype=None)
    sizes, varies = upper_bounds(val.shape, program.range_constraints, node)
    return Value(str(val.dtype).removeprefix("torch."), sizes, varies)


def _read_value(read: Any) -> Value:
    """Return a value from its JSON object; ValueError if it is damaged."""
    dtype = read["dtype"]
    sizes = tuple(read["sizes"])
    varies = read["varies"]
    if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"{dtype!r:.40} is not a type of torch")
    if any(type(size) is not int or not 0 <= size < 1 << 31 for size in sizes):
        raise ValueError(f"{sizes!r:.40} are not sizes")
    return Value(dtype, sizes, bool(varies))

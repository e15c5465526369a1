"""How a blob is called: types and largest sizes of its inputs and outputs, kept as
named data beside it.

A blob of ExecuTorch's does not say it, since the program around it does; a runtime that
is given the blob alone needs it. The key has the digest of the blob. A program file
says it again in the values of its calls, and does without.
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

from ..emit.sizes import upper_bounds
from ..program.conventions import convention_key
from ..program.scalar_types import TORCH_NAMES, ScalarType
from ..program.tables import Dynamism, Tensor


@dataclass(frozen=True)
class Value:
    """A tensor: its type, its sizes, and whether they are only a bound. A number has no
    type.
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
    """Add how ``blob`` is called. Where sizes have no bound there is nothing to add: no
    runtime could plan for it.
    """
    specs = zip(
        program.graph_signature.output_specs, output_values(program), strict=True
    )
    returned = [value for spec, value in specs if spec.kind not in MUTATIONS]
    try:
        convention = Convention(
            _values(user_inputs(program), program), _values(returned, program)
        )
    except Unsupported:
        return
    store.add_named_data(
        convention_key(backend_id, blob),
        json.dumps(asdict(convention), separators=(",", ":")).encode(),
    )


def convention_in_file(
    backend_id: str, blob: bytes, values: Sequence[Any], outputs: int
) -> dict[str, bytes]:
    """What a file says of how ``blob`` is called, by the values of a call, whose last
    ``outputs`` are results.

    As named data; none where a tensor is not in C order, as the program that is made
    for a blob has them.
    """
    if any(
        isinstance(v, Tensor) and v.dim_order != tuple(range(len(v.sizes)))
        for v in values
    ):
        return {}
    stated = [_value_in_file(v) for v in values]
    convention = Convention(
        tuple(stated[: len(stated) - outputs]), tuple(stated[len(stated) - outputs :])
    )
    return {convention_key(backend_id, blob): json.dumps(asdict(convention)).encode()}


def _value_in_file(value: Any) -> Value:
    if not isinstance(value, Tensor):
        return Value(None)
    return Value(
        TORCH_NAMES[ScalarType(value.scalar_type)],
        value.sizes,
        value.dynamism != Dynamism.STATIC,
    )


def convention_of(
    backend_id: str, blob: bytes, named_data: Mapping[str, bytes]
) -> Convention:
    """How ``blob`` is called. Raises NoRuntime if nothing says it, FormatError if what
    says it is damaged.
    """
    content = named_data.get(convention_key(backend_id, blob))
    if content is None:
        text = f"nothing says how this blob of {backend_id} is called"
        hint = (
            "give its sizes bounds, torch.export.Dim(..., max=...); blobs of others run"
            " within their own .pte"
        )
        raise NoRuntime("no-runtime", text, hint=hint)
    try:
        read = json.loads(content)
        return Convention(
            *(tuple(_value(v) for v in read[side]) for side in ("inputs", "outputs"))
        )
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise FormatError(
            "format-invalid",
            f"what says how a blob of {backend_id} is called is damaged: {e}",
        ) from e


def _values(nodes: Sequence[Any], program: ExportedProgram) -> tuple[Value, ...]:
    return tuple(_value_of(node, program) for node in nodes)


def _value_of(node: Any, program: ExportedProgram) -> Value:
    val = node.meta.get("val") if isinstance(node, Node) else node
    if not isinstance(val, torch.Tensor):
        return Value(None)
    sizes, varies = upper_bounds(val.shape, program.range_constraints, node)
    return Value(str(val.dtype).removeprefix("torch."), sizes, varies)


def _value(read: Any) -> Value:
    dtype = read["dtype"]
    sizes = tuple(read["sizes"])
    varies = read["varies"]
    if dtype is not None and not isinstance(getattr(torch, dtype, None), torch.dtype):
        raise ValueError(f"no type {dtype!r:.40}")
    if any(type(size) is not int or not 0 <= size < 1 << 31 for size in sizes):
        raise ValueError(f"no sizes {sizes!r:.40}")
    return Value(dtype, sizes, bool(varies))

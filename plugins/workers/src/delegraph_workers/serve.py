"""What a worker of a backend's own environment does besides compiling: it partitions,
it runs delegates, and more.

``serve_quantizer`` annotates what is to be quantized, ``serve_formats`` reads and
writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import delegraph
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import ContractViolation, Unsupported
from delegraph.partitioner import Partitioner
from delegraph.runtime import BlobHeader, Compatibility
from delegraph_programs import TRACING
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from . import (
    hidden,  # noqa: F401  # its operator is in programs that are sent
    serve_formats,
    serve_quantizer,
)
from .answers import marks_of
from .constants import fetch_from
from .forms import read
from .installed import code_of
from .kept import keep, kept
from .operators import register_operators
from .tensors import read_values, write_values

Answer = tuple[dict[str, Any], list[bytes]]


def _program(header: Mapping[str, Any], parts: Sequence[memoryview]) -> ExportedProgram:
    register_operators(parts[:1])
    return read(parts[0], fetch_from(header["folder"], {}), named=True)


def _partitioner(header: Mapping[str, Any]) -> Partitioner:
    # which may register operators that the program calls
    delegraph.get_backend(header["backend"])
    return delegraph.get_partitioner(header["backend"], **header["options"])


def partition(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """The tags that the backend's partitioner puts on a program, by name of node, and
    its refusals.
    """
    who = _partitioner(header)
    program = _program(header, parts)
    before = {node: set(node.meta) for node in program.graph.nodes}
    with TRACING:
        result = who(program)
    tags = {
        n.name: n.meta["delegation_tag"]
        for n in program.graph.nodes
        if n.meta.get("delegation_tag") is not None
    }
    marks = {node.name: _marks(node, known) for node, known in before.items()}
    return {
        "tags": {
            name: list(tag) if isinstance(tag, tuple) else tag
            for name, tag in tags.items()
        },
        "marks": {name: added for name, added in marks.items() if added},
        "partitions": [
            [tag, spec.backend_id, [[s.key, s.value.hex()] for s in spec.compile_specs]]
            for tag, spec in result.partition_tags.items()
        ],
        "boundary": {
            name: str(dtype).removeprefix("torch.")
            for name, dtype in result.boundary_types.items()
        },
        "refusals": [_refusal(r.node, r.reason, r.final) for r in result.refusals],
    }, []


def _refusal(node: Node, reason: str, final: bool) -> list[Any]:
    """A refusal: name of the node, text, whether it is final, hint, cause and operand."""
    of = getattr(getattr(reason, "of", None), "name", None)
    return [
        node.name,
        str(reason),
        final,
        getattr(reason, "hint", ""),
        getattr(reason, "cause", ""),
        of,
    ]


def _marks(node: Node, before: set[str]) -> dict[str, Any]:
    """``marks_of``.

    Raises Unsupported for one that cannot be sent: without it another blob might be
    compiled.
    """
    try:
        return marks_of(node, before)
    except ContractViolation as e:
        text = (
            f"the metadata that the partitioner set on {node.name} cannot be sent:"
            f" {e.message}"
        )
        raise Unsupported("unsupported", text) from e


def keeps(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """The calls of a program that the backend wants whole, by name, and their
    operators.
    """
    who = _partitioner(header)
    program = _program(header, parts)
    calls = [
        n
        for n in program.graph.nodes
        if n.op == "call_function" and isinstance(n.target, OpOverload)
    ]
    support = who.support
    if support is None:
        operators, wanted = who.ops_to_not_decompose(program)
        whole = [
            n for n in calls if n.target in operators and (wanted is None or wanted(n))
        ]
        return {
            "operators": [str(op) for op in operators],
            "kept": [n.name for n in whole],
        }, []
    support.begin(program)
    kept = []
    for node in calls:
        if support.why_not(node) is None:
            support.is_constant(node)
            kept.append(node)
    return {
        "operators": list(dict.fromkeys(str(n.target) for n in kept)),
        "kept": [n.name for n in kept],
    }, []


def about(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """What a cache has to know of the backend, and its fingerprint if there are compile
    specs.
    """
    backend = delegraph.get_backend(header["backend"])
    traits = delegraph.default_registry().spec(header["backend"]).traits
    return {
        "fingerprint": (
            None if header["specs"] is None else backend.fingerprint(_specs(header))
        ),
        "keeps_names": backend.keeps_names,
        "installed": code_of(backend, traits.composes, traits.independent_of),
    }, []


def compatible(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """What the backend's runtime says of a stored blob, of which there is a header:
    verdict and reason, or None.
    """
    runtime = delegraph.get_runtime(header["backend"])
    blob = BlobHeader(
        header["id"],
        header["size"],
        bytes(parts[0]),
        header["producer"],
        header["fingerprint"],
    )
    answer = runtime.compatible(blob, _specs(header), header["device"])
    if not isinstance(answer, Compatibility | None):
        raise ContractViolation(
            "contract-violation",
            f"{runtime.__name__}.compatible returned {answer!r:.80}",
        )
    return {"verdict": answer and [answer.verdict, answer.reason]}, []


def _specs(header: Mapping[str, Any]) -> list[CompileSpec]:
    return [CompileSpec(key, bytes.fromhex(value)) for key, value in header["specs"]]


def load(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Load a blob in the backend's runtime; the answer has a number for it."""
    runtime = delegraph.get_runtime(header["backend"])
    named = dict(zip(header["keys"], map(bytes, parts[1:]), strict=True))
    return {"number": keep(runtime.load(bytes(parts[0]), _specs(header), named))}, []


def call(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Call a loaded delegate."""
    returned: Any = kept(header["number"], header["process"])(
        *read_values(header["values"], parts)
    )
    alone = isinstance(returned, torch.Tensor)  # a method of a file may return one
    returned = (returned,) if alone else returned
    if not isinstance(returned, (tuple, list)):
        raise ContractViolation(
            "contract-violation",
            f"a delegate returned {type(returned).__name__}, not a tuple",
        )
    rows, data = write_values(
        [r.clone() if isinstance(r, torch.Tensor) else r for r in returned]
    )
    return {"values": rows, "alone": alone}, data


def file_format(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """A method of the backend's file format."""
    return serve_formats.answer(header, parts)


ANSWERS: Mapping[str, Callable[[Mapping[str, Any], Sequence[memoryview]], Answer]] = {
    "partition": partition,
    "keeps": keeps,
    "about": about,
    "compatible": compatible,
    "load": load,
    "call": call,
    "quantize": serve_quantizer.quantize,
    "derive": serve_quantizer.derive,
    "format": file_format,
}
"""Job besides compiling -> the function that answers it."""

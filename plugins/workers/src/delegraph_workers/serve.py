"""Run services for other environments: partition, load and call delegates.

Each service is a function of ``SERVICES``. It gets the header and the parts of a job,
and returns those of the answer. ``header["backend"]`` names the backend. A program is
the first part, and its large constants are files in ``header["folder"]``.
``serve_quantizer`` annotates graphs, ``serve_formats`` reads and writes files.
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
    hidden,  # noqa: F401  # registers an operator of the programs
    serve_formats,
    serve_quantizer,
)
from .answers import new_metadata
from .constants import fetch_from
from .forms import read
from .installed import code_of
from .kept import keep, kept
from .message import Answer
from .operators import register_operators
from .tensors import read_values, write_values


def _program(header: Mapping[str, Any], parts: Sequence[memoryview]) -> ExportedProgram:
    """Return the program of a job."""
    register_operators(parts[:1])
    return read(parts[0], fetch_from(header["folder"], {}), named=True)


def _partitioner(header: Mapping[str, Any]) -> Partitioner:
    """Return the backend's partitioner with the options of a job."""
    # the import of a backend may register operators that the program calls
    delegraph.get_backend(header["backend"])
    return delegraph.get_partitioner(header["backend"], **header["options"])


def partition(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Partition a program; return tags and new metadata by node, and refusals."""
    partitioner = _partitioner(header)
    program = _program(header, parts)
    before = {node: set(node.meta) for node in program.graph.nodes}
    with TRACING:
        result = partitioner(program)
    tags = {}
    marks = {}
    for node, known in before.items():
        tag = node.meta.get("delegation_tag")
        if tag is not None:
            tags[node.name] = list(tag) if isinstance(tag, tuple) else tag
        added = _new_metadata(node, known)
        if added:
            marks[node.name] = added
    partitions = []
    for name, spec in result.partition_tags.items():
        settings = [[s.key, s.value.hex()] for s in spec.compile_specs]
        partitions.append([name, spec.backend_id, settings])
    boundary = {
        name: str(dtype).removeprefix("torch.")
        for name, dtype in result.boundary_types.items()
    }
    content = {
        "tags": tags,
        "marks": marks,
        "partitions": partitions,
        "boundary": boundary,
        "refusals": [_refusal(r.node, r.reason, r.final) for r in result.refusals],
    }
    return content, []


def _refusal(node: Node, reason: str, final: bool) -> list[Any]:
    """Return a refusal: node, text, whether it is final, hint, cause and operand."""
    operand = getattr(reason, "of", None)
    return [
        node.name,
        str(reason),
        final,
        getattr(reason, "hint", ""),
        getattr(reason, "cause", ""),
        getattr(operand, "name", None),
    ]


def _new_metadata(node: Node, before: set[str]) -> dict[str, Any]:
    """Return ``new_metadata``. Raises Unsupported if it cannot be sent.

    It is not left out instead: without it, the blob might differ.
    """
    try:
        return new_metadata(node, before)
    except ContractViolation as e:
        raise Unsupported(
            "unsupported",
            f"the metadata that the partitioner set on {node.name} cannot be sent to"
            f" another process: {e.message}",
        ) from e


def keeps(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Return the calls of a program that the backend keeps undecomposed, and their
    operators.
    """
    partitioner = _partitioner(header)
    program = _program(header, parts)
    calls = [
        node
        for node in program.graph.nodes
        if node.op == "call_function" and isinstance(node.target, OpOverload)
    ]
    support = partitioner.support
    if support is None:
        operators, wanted = partitioner.ops_to_not_decompose(program)
        whole = [node for node in calls if node.target in operators]
        if wanted is not None:
            whole = [node for node in whole if wanted(node)]
        names = [str(operator) for operator in operators]
        return {"operators": names, "kept": [node.name for node in whole]}, []

    support.begin(program)
    accepted = []
    for node in calls:
        if support.why_not(node) is None:
            # called because the check may remember its answer, and need it for users of
            # ``node``
            support.is_constant(node)
            accepted.append(node)
    names = list(dict.fromkeys(str(node.target) for node in accepted))
    return {"operators": names, "kept": [node.name for node in accepted]}, []


def about(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Return the facts about the backend that keys of a cache contain.

    The fingerprint is None if ``header["specs"]`` is.
    """
    backend = delegraph.get_backend(header["backend"])
    traits = delegraph.default_registry().spec(header["backend"]).traits
    fingerprint = None
    if header["specs"] is not None:
        fingerprint = backend.fingerprint(_specs(header))
    content = {
        "fingerprint": fingerprint,
        "keeps_names": backend.keeps_names,
        "installed": code_of(backend, traits.composes, traits.independent_of),
    }
    return content, []


def compatible(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Return whether the backend's runtime can load a blob with this header, and why.

    The answer is None if the runtime does not know.
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
            f"{runtime.__name__}.compatible returned {answer!r:.80}, not a"
            " Compatibility or None",
        )
    verdict = None if answer is None else [answer.verdict, answer.reason]
    return {"verdict": verdict}, []


def _specs(header: Mapping[str, Any]) -> list[CompileSpec]:
    return [CompileSpec(key, bytes.fromhex(value)) for key, value in header["specs"]]


def load(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Load a blob in the backend's runtime; return the number of the delegate."""
    runtime = delegraph.get_runtime(header["backend"])
    blob, *data = map(bytes, parts)
    named = dict(zip(header["keys"], data, strict=True))
    delegate = runtime.load(blob, _specs(header), named)
    return {"number": keep(delegate)}, []


def call(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Call an object with the number that ``load`` or ``serve_formats`` returned."""
    function = kept(header["number"], header["process"])
    returned: Any = function(*read_values(header["values"], parts))
    alone = isinstance(returned, torch.Tensor)
    if alone:  # a method of a file may return a tensor instead of a tuple
        returned = (returned,)
    if not isinstance(returned, (tuple, list)):
        raise ContractViolation(
            "contract-violation",
            f"a delegate returned {type(returned).__name__}, not a tuple",
        )
    values = [r.clone() if isinstance(r, torch.Tensor) else r for r in returned]
    rows, data = write_values(values)
    return {"values": rows, "alone": alone}, data


def file_format(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Call a method of the backend's file format."""
    return serve_formats.answer(header, parts)


SERVICES: Mapping[str, Callable[[Mapping[str, Any], Sequence[memoryview]], Answer]] = {
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
"""The value of "do" in a job's header -> the function that answers the job."""

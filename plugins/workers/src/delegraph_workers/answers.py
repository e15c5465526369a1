"""Cache the answers of partitioners: ``cached_answer``.

An *answer* is a ``PartitionResult``, with the tags and other metadata that the
partitioner set on nodes. Its key contains the form of the whole program and its names:
reasons and tags may contain names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from delegraph.backend import CompileSpec
from delegraph.errors import ContractViolation, DelegraphError, Unsupported
from delegraph.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    Reason,
    Refusal,
)
from torch.export import ExportedProgram
from torch.fx import Node

from .cached_results import Entries
from .entry_bytes import invalid_entry, key_of, packed, plain, unpacked, unplain
from .forms import DTYPES, NOT_IN_FORM, write
from .installed import code_of

_TAG = "delegation_tag"


def cached_answer(
    program: ExportedProgram,
    partitioner: Partitioner,
    fingerprint: str,
    cache: Entries,
    ask: Callable[[], PartitionResult],
) -> PartitionResult:
    """Return the answer of ``partitioner`` about ``program``, from ``cache`` or from
    ``ask``.

    In both cases, the nodes of the program have the tags and the metadata of the
    partitioner afterwards. ``fingerprint`` describes further inputs of the answer.
    """
    name = type(partitioner).__name__
    try:
        form = write(program)
    except Unsupported as e:
        cache.add_note(f"an answer of {name} is not cached: {e.message}")
        return ask()
    kind = type(partitioner)
    # the partitioner makes the answer; this module writes and reads the entry
    code = [code_of(kind), code_of(Entries)]
    key = key_of(kind, ["answer", code, form.key, form.names, fingerprint])
    found = cache.fetch(key, lambda data: _read(key, data, program))
    if found is not None:
        cache.add_note(f"an answer of {name} is from the cache")
        return found
    before = [set(node.meta) for node in program.graph.nodes]
    result = ask()
    try:
        rows = _rows(program, before, result)
    except (ContractViolation, KeyError, TypeError, AttributeError) as e:
        # JSON cannot express the answer; if it is also wrong, the caller notices
        cache.add_note(f"an answer of {name} is not cached: {e}")
        return result
    header = [{"partitioner": name, "torch": torch.__version__}, *rows]
    cache.store(key, packed(key, header, parts=()))
    return result


def _rows(
    program: ExportedProgram, before: list[set[str]], result: PartitionResult
) -> list[Any]:
    """Return an answer as JSON: partitions, boundary types, refusals, and metadata.

    ``before`` has the keys of each node's metadata before the partitioner was called.
    Nodes are written as numbers. Raises ContractViolation, KeyError, TypeError or
    AttributeError for an answer that JSON cannot express.
    """
    nodes = list(program.graph.nodes)
    number: dict[Any, Any] = {None: None} | {node: k for k, node in enumerate(nodes)}
    number_by_name = {node.name: k for k, node in enumerate(nodes)}
    tags = []
    for tag, spec in result.partition_tags.items():
        settings = [[c.key, c.value.hex()] for c in spec.compile_specs]
        tags.append([tag, spec.backend_id, settings])
    types = [
        [number_by_name[name], _name_of_dtype(dtype)]
        for name, dtype in result.boundary_types.items()
    ]
    refusals = []
    for refusal in result.refusals:
        reason = refusal.reason
        details = _details(reason, number) if isinstance(reason, Reason) else None
        refusals.append([number[refusal.node], str(reason), refusal.final, details])
    metadata = []
    for node, keys in zip(nodes, before, strict=True):
        metadata.append([plain(node.meta.get(_TAG)), new_metadata(node, keys)])
    return [tags, types, refusals, metadata]


def _name_of_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _details(reason: Reason, number: Mapping[Any, Any]) -> list[Any]:
    """Return the fields of a reason as JSON. ``number``: node -> its number."""
    unless: Any = reason.unless
    if isinstance(unless, tuple):
        unless = [*unless]
    elif unless not in (None, "static"):
        unless = _name_of_dtype(unless)
    instead = None
    if reason.instead is not None:
        instead = [str(reason.instead), _details(reason.instead, number)]
    return [reason.hint, reason.cause, number[reason.of], unless, instead]


def new_metadata(node: Node, before: set[str]) -> dict[str, Any]:
    """Return the new metadata of ``node`` as JSON that ``unplain`` reads.

    ``before`` has the keys before the partitioner was called. The tag, and keys that
    forms leave out, are not included. Raises ContractViolation for a value that JSON
    cannot express.
    """
    added = {}
    for key, value in node.meta.items():
        is_new = key not in before and not key.startswith("local:")
        if is_new and key not in NOT_IN_FORM:
            added[key] = plain(value)
    return added


def _read(key: str, data: bytes, program: ExportedProgram) -> PartitionResult:
    """Read an answer about ``program`` from an entry; the inverse of ``_rows``.

    Sets the tags and metadata of the answer on the nodes of ``program``. Raises
    FormatError if the entry is damaged; then no node is changed.
    """
    header, _ = unpacked(key, data)
    nodes: list[Node] = list(program.graph.nodes)
    try:
        _, tags, types, refusals, metadata = header
        specs = {}
        for tag, backend_id, settings in tags:
            compile_specs = [
                CompileSpec(name, bytes.fromhex(value)) for name, value in settings
            ]
            specs[tag] = DelegationSpec(backend_id, compile_specs)
        boundary = {nodes[k].name: DTYPES[dtype] for k, dtype in types}
        reasons = [
            Refusal(nodes[k], _reason(text, details, nodes), final)
            for k, text, final, details in refusals
        ]
        added: list[dict[str, Any]] = []
        for tag, meta in metadata:
            values = {name: unplain(value) for name, value in meta.items()}
            if tag is not None:
                values[_TAG] = unplain(tag)
            added.append(values)
        pairs = list(zip(nodes, added, strict=True))
    except DelegraphError:
        raise
    except Exception as e:
        raise invalid_entry(e) from e
    # the entry is valid, so the nodes can be changed
    for node, values in pairs:
        node.meta.pop(_TAG, None)
        node.meta |= values
    return PartitionResult(program, specs, boundary, reasons)


def _reason(text: str, details: Any, nodes: list[Node]) -> str:
    """Return the reason of a refusal; ``details`` is the result of ``_details``.

    If ``details`` is None, the reason was a plain text.
    """
    if details is None:
        return text
    hint, cause, of, unless, instead = details
    if isinstance(unless, list):
        low, high = unless
        unless = (low, high)
    elif unless not in (None, "static"):
        unless = DTYPES[unless]
    if instead is not None:
        instead_text, instead_details = instead
        instead = _reason(instead_text, instead_details, nodes)
    node = None if of is None else nodes[of]
    return Reason(text, hint=hint, cause=cause, of=node, unless=unless, instead=instead)

"""Answers of partitioners, kept in a lowering's cache: ``ask_once``.

The key has the form of the whole program, and its names, because reasons and tags may
contain names.
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
from .entry_bytes import key_of, nonsense, packed, plain, unpacked, unplain
from .forms import DTYPES, NOT_IN_FORM, write
from .installed import code_of

_TAG = "delegation_tag"


def ask_once(
    program: ExportedProgram,
    partitioner: Partitioner,
    fingerprint: str,
    cache: Entries,
    ask: Callable[[], PartitionResult],
) -> PartitionResult:
    """The answer of ``partitioner`` about ``program``: from ``cache``, or else from
    ``ask``, which is then kept.

    In both cases the program's nodes then have the tags and the metadata that the
    partitioner gave them. ``fingerprint``: what the partitioner says that its answer
    depends on.
    """
    name = type(partitioner).__name__
    try:
        form = write(program)
    except Unsupported as e:
        cache.say(f"an answer of {name} is not cached: {e.message}")
        return ask()
    kind = type(partitioner)
    # of the partitioner, and of this module, which writes and reads the entry
    code = code_of(kind), code_of(Entries)
    key = key_of(kind, ["answer", code, form.key, form.names, fingerprint])
    found = cache.fetch(key, lambda data: _read(key, data, program))
    if found is not None:
        cache.say(f"an answer of {name} is from the cache")
        return found
    before = [set(node.meta) for node in program.graph.nodes]
    result = ask()
    try:
        rows = _rows(program, before, result)
    except (ContractViolation, KeyError, TypeError, AttributeError) as e:
        # The answer may be wrong, which the caller checks, or right and no JSON.
        # Neither is cached.
        cache.say(f"an answer of {name} is not cached: {e}")
        return result
    header = [{"partitioner": name, "torch": torch.__version__}, *rows]
    # an entry may also have parts of bytes; an answer has none
    cache.keep(key, packed(key, header, ()))
    return result


def _rows(
    program: ExportedProgram, before: list[set[str]], result: PartitionResult
) -> list[Any]:
    """An answer as JSON: tags of partitions, boundary types, refusals, and the metadata
    that nodes got.

    ``before``: for each node, the keys of its metadata before the partitioner was
    asked. Nodes are written by number. Raises ContractViolation, KeyError, TypeError or
    AttributeError for an answer that JSON cannot express.
    """
    nodes = list(program.graph.nodes)
    number: dict[Any, Any] = {None: None} | {node: k for k, node in enumerate(nodes)}
    number_by_name = {node.name: k for k, node in enumerate(nodes)}
    specs = result.partition_tags.items()
    tags = [
        [tag, spec.backend_id, [[c.key, c.value.hex()] for c in spec.compile_specs]]
        for tag, spec in specs
    ]
    # dtypes by their names without ``torch.``
    types = [
        [number_by_name[name], str(dtype)[6:]]
        for name, dtype in result.boundary_types.items()
    ]
    refusals = []
    for refusal in result.refusals:
        reason = refusal.reason
        details = _details(reason, number) if isinstance(reason, Reason) else None
        refusals.append([number[refusal.node], str(reason), refusal.final, details])
    metas = []
    for node, keys in zip(nodes, before, strict=True):
        metas.append([plain(node.meta.get(_TAG)), marks_of(node, keys)])
    return [tags, types, refusals, metas]


def _details(reason: Reason, number: Mapping[Any, Any]) -> list[Any]:
    """The fields of a reason as JSON. ``number``: node -> its number."""
    unless: Any = reason.unless
    if isinstance(unless, tuple):
        unless = [*unless]
    elif unless not in (None, "static"):
        unless = str(unless)[6:]  # the name of a dtype
    instead = (
        None
        if reason.instead is None
        else [str(reason.instead), _details(reason.instead, number)]
    )
    return [reason.hint, reason.cause, number[reason.of], unless, instead]


def marks_of(node: Node, before: set[str]) -> dict[str, Any]:
    """What a partitioner left in the metadata of ``node`` for its backend, as JSON that
    ``unplain`` reads.

    ``before``: the keys that were there before. The tag is none of it, nor is what no
    form has. Raises ContractViolation for a mark that JSON has no words for.
    """
    added = [
        key for key in node.meta if key not in before and not key.startswith("local:")
    ]
    return {key: plain(node.meta[key]) for key in added if key not in NOT_IN_FORM}


def _read(key: str, data: bytes, program: ExportedProgram) -> PartitionResult:
    """The inverse of ``_rows``: the answer in ``data``, the entry with the key ``key``,
    about ``program``.

    Puts the tags and metadata of the answer on the nodes of ``program``. Raises
    FormatError if the entry is damaged; then no node is changed.
    """
    header, _ = unpacked(key, data)
    nodes: list[Node] = list(program.graph.nodes)
    try:
        _, tags, types, refusals, metas = header
        specs = {
            tag: DelegationSpec(
                backend_id,
                [CompileSpec(name, bytes.fromhex(value)) for name, value in settings],
            )
            for tag, backend_id, settings in tags
        }
        boundary = {nodes[k].name: DTYPES[dtype] for k, dtype in types}
        reasons = [
            Refusal(nodes[k], _reason(text, more, nodes), final)
            for k, text, final, more in refusals
        ]
        # for each node, its tag (None if it has none) and its new metadata
        added = [
            (unplain(tag), {name: unplain(value) for name, value in meta.items()})
            for tag, meta in metas
        ]
        # only now, when everything was read, are nodes changed
        pairs = list(zip(nodes, added, strict=True))
        for node, (tag, meta) in pairs:
            node.meta.pop(_TAG, None)
            node.meta |= meta if tag is None else {**meta, _TAG: tag}
    except DelegraphError:
        raise
    except Exception as e:
        raise nonsense(e) from e
    return PartitionResult(program, specs, boundary, reasons)


def _reason(text: str, more: Any, nodes: list[Node]) -> str:
    """The reason of a refusal, from its text and its other fields as ``_rows`` writes
    them.

    ``more`` None: the reason was a plain text. ``nodes``: the nodes of the program, by
    number.
    """
    if more is None:
        return text
    hint, cause, of, unless, other = more
    if isinstance(unless, list):
        low, high = unless
        changed: Any = (low, high)
    else:
        changed = unless if unless in (None, "static") else DTYPES[unless]
    node = None if of is None else nodes[of]
    instead: Any = None if other is None else _reason(other[0], other[1], nodes)
    return Reason(
        text, hint=hint, cause=cause, of=node, unless=changed, instead=instead
    )

"""Answers of partitioners that say what they depend on, in a cache by the form of the whole program and its names.

Names are in the key because reasons and tags may have them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from ..backend import CompileSpec
from ..discovery.attribution import AtWork
from ..errors import ContractViolation, DelegraphError, Unsupported
from ..exported.work import DTYPES, write
from ..partitioner.contract import DelegationSpec, Partitioner, PartitionResult, Reason, Refusal
from ..work import nonsense, packed, plain, unpacked, unplain
from .cache_key import key_of
from .compile_cached import Lookups

_TAG = "delegation_tag"


class Answers:
    """What partitioners answered in this lowering and in others."""

    def __init__(self, lookups: Lookups) -> None:
        self._lookups = lookups

    def ask(self, partitioner: Partitioner, program: ExportedProgram) -> PartitionResult:
        """What ``partitioner`` says of ``program``, whose nodes then have its tags, from the cache if that has it."""
        key = self._key(partitioner, program)
        if key is None:
            return _asked(partitioner, program)
        name = type(partitioner).__name__
        found: PartitionResult | None = self._lookups.fetch(key, lambda data: _read(key, data, program))
        if found is not None:
            self._lookups.say(f"an answer of {name} is from the cache")
            return found
        before = [set(node.meta) for node in program.graph.nodes]
        result = _asked(partitioner, program)
        try:
            rows = _rows(program, before, result)
        except (ContractViolation, KeyError, TypeError, AttributeError) as e:
            # what is wrong with it is the caller's to find; what is right and has no words is asked again each time
            self._lookups.say(f"an answer of {name} is not cached: {e}")
            return result
        self._lookups.keep(key, packed(key, [{"partitioner": name, "torch": torch.__version__}, *rows], ()))
        return result

    def _key(self, partitioner: Partitioner, program: ExportedProgram) -> str | None:
        """The key of an answer; None if it cannot be cached."""
        with AtWork(partitioner, "fingerprint"):
            fingerprint = partitioner.fingerprint(program)
        if fingerprint is None:
            return None
        try:
            form = write(program)
        except Unsupported as e:
            self._lookups.say(f"an answer of {type(partitioner).__name__} is not cached: {e.message}")
            return None
        return key_of(type(partitioner), ["answer", form.key, form.names, fingerprint])


def _asked(partitioner: Partitioner, program: ExportedProgram) -> PartitionResult:
    with AtWork(partitioner, "partition"):
        return partitioner(program)


def _rows(program: ExportedProgram, before: list[set[str]], result: PartitionResult) -> list[Any]:
    """An answer as JSON: tags of partitions, boundary types, refusals, and what nodes got; nodes by number.

    Raises ContractViolation, KeyError, TypeError or AttributeError for what has no words.
    """
    nodes = list(program.graph.nodes)
    number: dict[Any, Any] = {None: None} | {node: k for k, node in enumerate(nodes)}
    named = {node.name: k for k, node in enumerate(nodes)}
    specs = result.partition_tags.items()
    tags = [[tag, spec.backend_id, [[c.key, c.value.hex()] for c in spec.compile_specs]] for tag, spec in specs]
    types = [[named[name], str(dtype)[6:]] for name, dtype in result.boundary_types.items()]
    refusals = []
    for refusal in result.refusals:
        reason = refusal.reason
        more = None
        if isinstance(reason, Reason):
            unless = reason.unless if reason.unless in (None, "static") else str(reason.unless)[6:]
            more = [reason.hint, reason.cause, number[reason.of], unless]
        refusals.append([number[refusal.node], str(reason), refusal.final, more])
    metas = []
    for node, keys in zip(nodes, before, strict=True):
        added = [key for key in node.meta if key not in keys and key != _TAG and not key.startswith("local:")]
        metas.append([plain(node.meta.get(_TAG)), {key: plain(node.meta[key]) for key in added}])
    return [tags, types, refusals, metas]


def _read(key: str, data: bytes, program: ExportedProgram) -> PartitionResult:
    """The inverse of ``_rows``, which puts on the nodes what the partitioner put there. Raises FormatError."""
    header, _ = unpacked(key, data)
    nodes: list[Node] = list(program.graph.nodes)
    try:
        _, tags, types, refusals, metas = header
        specs = {t: DelegationSpec(b, [CompileSpec(k, bytes.fromhex(v)) for k, v in told]) for t, b, told in tags}
        boundary = {nodes[k].name: DTYPES[dtype] for k, dtype in types}
        reasons = [Refusal(nodes[k], _reason(text, more, nodes), final) for k, text, final, more in refusals]
        puts = [(unplain(tag), {k: unplain(v) for k, v in more.items()}) for tag, more in metas]
        pairs = list(zip(nodes, puts, strict=True))  # nothing is put on any node before all of it was read
        for node, (tag, more) in pairs:
            node.meta.pop(_TAG, None)
            node.meta |= more if tag is None else {**more, _TAG: tag}
    except DelegraphError:
        raise
    except Exception as e:
        raise nonsense(e) from e
    return PartitionResult(program, specs, boundary, reasons)


def _reason(text: str, more: Any, nodes: list[Node]) -> str:
    if more is None:
        return text
    hint, cause, of, unless = more
    known = unless if unless in (None, "static") else DTYPES[unless]
    return Reason(text, hint=hint, cause=cause, of=None if of is None else nodes[of], unless=known)

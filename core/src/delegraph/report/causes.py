"""Refusals by cause: where each begins, what only passes it on, and how many operators it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch.fx import Node

from ..partitioner.contract import Reason
from ..source import source_of
from .collect import Left, Refused, in_full, operator_name, refused, unpacked
from .rows import Cause, Reasons, RefusalRow, ReportOrigin

ASKED = 5
"""Causes of one method for which a backend is asked again; there is a partitioning in each."""


class _Root(NamedTuple):
    """Where a cause begins. ``key``: what all that it concerns have in common. ``node``: the value that it is about."""

    key: tuple[str, ...]
    reason: str
    behind: str


class _Member(NamedTuple):
    left: Left
    refused: Refused
    root: _Root


def find_causes(method: str, left: Sequence[Left], origin: ReportOrigin) -> list[Cause]:
    """The causes for which ``left`` are left to the host, those first that cost most, and before what follows of them.

    Every backend that was asked has its own.
    """
    reasons = origin.reasons.get(method, {})
    found: list[Cause] = []
    for backend in origin.backends:
        members = [_member(one, backend, reasons) for one in left]
        groups: dict[tuple[str, ...], list[_Member]] = {}
        for member in members:
            groups.setdefault(member.root.key, []).append(member)
        ordered = sorted(groups.values(), key=lambda group: (bool(group[0].root.behind), -len(group)))
        found += [_cause(method, backend, group, k < ASKED, left, origin) for k, group in enumerate(ordered)]
    return found


def _member(left: Left, backend: str, reasons: Reasons) -> _Member:
    found = refused(left.node, backend, reasons)
    return _Member(left, found, _root(found, backend, reasons))


def _root(found: Refused, backend: str, reasons: Reasons) -> _Root:
    """Where the reason comes from: from operand to operand, as long as each is refused for the same cause."""
    reason = found.reason
    if not isinstance(reason, Reason) or not reason.cause:
        return _Root((found.operator, in_full(found)), in_full(found), "")
    seen = {id(reason)}
    while reason.of is not None:
        producer = unpacked(reason.of) or reason.of
        before = reasons.get((backend, producer.meta.get("debug_handle", 0), operator_name(producer)))
        if not isinstance(before, Reason) or before.cause != reason.cause or id(before) in seen:
            place = operator_name(producer) if producer.op == "call_function" else producer.name
            return _Root((reason.cause, place), reason, place if before is not None else "")
        seen.add(id(before))
        reason = before
    return _Root((reason.cause,), reason, "")


def _cause(
    method: str, backend: str, group: Sequence[_Member], asks: bool, left: Sequence[Left], origin: ReportOrigin
) -> Cause:
    root = group[0].root
    frees = _frees(method, backend, root.reason, left, origin) if asks else None
    hint = root.reason.hint if isinstance(root.reason, Reason) else ""
    return Cause(method, backend, str(root.reason), hint, root.behind, _rows(method, backend, group), frees)


def _frees(method: str, backend: str, reason: str, left: Sequence[Left], origin: ReportOrigin) -> int | None:
    if origin.what_if is None or not isinstance(reason, Reason) or reason.unless is None:
        return None
    still = origin.what_if(method, backend, reason)
    return None if still is None else sum(one.node.meta.get("debug_handle", 0) not in still for one in left)


def _rows(method: str, backend: str, group: Sequence[_Member]) -> tuple[RefusalRow, ...]:
    """One row for each operator and reason, in the order of the program."""
    rows: dict[tuple[str, str], list[Node]] = {}
    for left, found, _ in group:
        rows.setdefault((left.operator, in_full(found)), []).append(left.node)
    return tuple(
        RefusalRow(method, op, backend, why, len(nodes), next(filter(None, map(source_of, nodes)), None))
        for (op, why), nodes in rows.items()
    )

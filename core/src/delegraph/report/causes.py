"""Groups refusals by cause: where each cause begins, what only passes it on, and how many operators it costs.

An operand that TOSA has no dtype for, for example, keeps every operator behind it on the host: one cause, many
refusals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch.fx import Node

from ..exported.call_names import operator_name, unpacked
from ..partitioner.contract import Reason
from ..source import source_of
from .collect import Left, Refused, in_full, refused
from .notation import Notation
from .rows import Cause, Reasons, RefusalRow, ReportOrigin

ASKED = 5
"""For so many causes of a method the backend is asked again what it would take without them.

That partitions each time.
"""


class _Root(NamedTuple):
    """Where a cause begins.

    ``key`` is what all refusals of the cause have in common. ``reason`` is the one at the beginning. ``behind`` is the
    operator that the cause follows from, if that is refused for another cause; else "".
    """

    key: tuple[str, ...]
    reason: str
    behind: str


class _Member(NamedTuple):
    """An operator that is left to the host, its refusal, and where the cause of that begins."""

    left: Left
    refused: Refused
    root: _Root


def find_causes(method: str, left: Sequence[Left], origin: ReportOrigin, notation: Notation) -> list[Cause]:
    """The causes for which the operators ``left`` are left to the host, of each backend that was asked.

    Those that cost most come first, and a cause comes before the causes that follow from it.
    """
    found: list[Cause] = []
    for backend in origin.backends:
        roots = _Roots(backend, origin.reasons.get(method, {}))
        groups: dict[tuple[str, ...], list[_Member]] = {}
        for one in left:
            member = roots.member(one)
            groups.setdefault(member.root.key, []).append(member)
        ordered = sorted(groups.values(), key=lambda group: (bool(group[0].root.behind), -len(group)))
        for k, group in enumerate(ordered):
            frees = _count_freed(method, backend, group[0].root.reason, left, origin) if k < ASKED else None
            found.append(_cause(method, backend, group, frees, notation))
    return found


class _Roots:
    """Finds where the reasons of one backend begin. Each reason is followed only once."""

    def __init__(self, backend: str, reasons: Reasons) -> None:
        self.backend, self.reasons = backend, reasons
        self._known: dict[int, _Root] = {}

    def member(self, left: Left) -> _Member:
        """The operator ``left`` together with the root of its reason, by which operators become one cause."""
        found = refused(left.node, self.backend, self.reasons)
        if isinstance(found.reason, Reason) and found.reason.cause:
            return _Member(left, found, self._root(found.reason))
        return _Member(left, found, _Root((found.operator, in_full(found)), in_full(found), ""))

    def _root(self, reason: Reason) -> _Root:
        """Go from the reason to that of its operand, and on, as long as these have the same cause.

        The last one is the root.
        """
        path: dict[int, Reason] = {}
        while id(reason) not in self._known:
            path[id(reason)] = reason
            before = self._reason_against_operand(reason)
            if not isinstance(before, Reason) or before.cause != reason.cause or id(before) in path:
                # Calls that blame themselves or each other begin the cause; they follow from nothing.
                self._known[id(reason)] = _root_of(reason, None if id(before) in path else before)
            else:
                reason = before
        root = self._known[id(reason)]
        self._known.update(dict.fromkeys(path, root))
        return root

    def _reason_against_operand(self, reason: Reason) -> str | None:
        """Why the operand that ``reason`` is about was refused; None if it was not, or if the reason is about none."""
        if reason.of is None:
            return None
        producer = unpacked(reason.of) or reason.of
        return self.reasons.get((self.backend, producer.meta.get("debug_handle", 0), operator_name(producer)))


def _root_of(reason: Reason, before: str | None) -> _Root:
    """The root of a reason that was not passed on by an operand. ``before``: why its operand is refused, if it is."""
    if reason.of is None:
        return _Root((reason.cause,), reason, "")
    producer = unpacked(reason.of) or reason.of
    place = operator_name(producer) if producer.op == "call_function" else producer.name
    return _Root((reason.cause, place), reason, place if before is not None else "")


def _cause(method: str, backend: str, group: Sequence[_Member], frees: int | None, notation: Notation) -> Cause:
    """The cause that the refusals in ``group`` share. They have one root, so the first one's text is that of all.

    ``frees``: how many operators the backend would take if this cause were gone; None if that is not known.
    """
    root = group[0].root
    hint = root.reason.hint if isinstance(root.reason, Reason) else ""
    handles = tuple(member.left.node.meta.get("debug_handle", 0) for member in group)
    said, rows = notation.text(root.reason), _rows(method, backend, group, notation)
    return Cause(method, backend, said, notation.text(hint), root.behind, rows, frees, handles)


def _count_freed(method: str, backend: str, reason: str, left: Sequence[Left], origin: ReportOrigin) -> int | None:
    """How many of the operators ``left`` the backend would take if ``reason`` did not hold.

    None if that is not known.
    """
    if origin.what_if is None or not isinstance(reason, Reason) or reason.unless is None:
        return None
    still = origin.what_if(method, backend, reason)
    return None if still is None else sum(one.node.meta.get("debug_handle", 0) not in still for one in left)


def _rows(method: str, backend: str, group: Sequence[_Member], notation: Notation) -> tuple[RefusalRow, ...]:
    """One row for each operator and reason among the members, in the order of the program."""
    rows: dict[tuple[str, str], list[Node]] = {}
    for left, found, _ in group:
        rows.setdefault((left.operator, in_full(found)), []).append(left.node)
    return tuple(
        RefusalRow(method, op, backend, notation.text(why), len(nodes), next(filter(None, map(source_of, nodes)), None))
        for (op, why), nodes in rows.items()
    )

"""Groups refusals by cause.

For example, a backend without float64 refuses ``y = x.exp()``, and all calls that use
``y``. These refusals have one cause. Its *root* is the first refusal, about
``x.exp()``, from which the others follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from delegraph_programs import operator_name
from delegraph_programs.call_names import handle_of, unpacked
from delegraph_programs.source_line import first_source
from torch.fx import Node

from ..discovery.import_by_name import load, missing
from ..partitioner.interface import Reason
from .left_on_host import LeftOperator, RefusedOperator, find_refusal, full_reason
from .rows import Cause, Reasons, RefusalRow, ReportOrigin
from .user_names import Notation

PREDICTED = 5
"""The most causes of one method and backend for which ``Cause.frees`` is predicted, by
delegraph-analysis.

Each prediction partitions the method again.
"""


class _Root(NamedTuple):
    """The first refusal of a cause.

    ``key`` identifies the cause: refusals with equal keys have the same cause.
    ``reason``: the reason of the first refusal. ``behind``: the operator that computes
    the operand ``reason.of``, if it is refused for another cause; else "".
    """

    key: tuple[str, ...]
    reason: str
    behind: str


class _Member(NamedTuple):
    """An operator on the host, its refusal by one backend, and the refusal's root."""

    operator: LeftOperator
    refusal: RefusedOperator
    root: _Root


def find_causes(
    method: str, left: Sequence[LeftOperator], origin: ReportOrigin, notation: Notation
) -> list[Cause]:
    """Return the causes that keep the operators in ``left`` on the host.

    ``origin``: has the backends' reasons. ``notation``: writes these with the user's
    names. The causes are in the order of the backends. The causes of one backend are in
    two groups: first those that follow from no other cause, then the others. Within a
    group, causes with more operators come first.
    """
    causes: list[Cause] = []
    # A function that returns the reason with the best hint, and how many operators the
    # backend would take without the cause. None if nothing can be predicted.
    predict = None
    if origin.checks and not missing(["delegraph_analysis"]):
        predict = load("delegraph_analysis.what_if:predict")
    nodes = [operator.node for operator in left]
    for backend in origin.backends:
        roots = _Roots(backend, origin.reasons.get(method, {}))
        groups: dict[tuple[str, ...], list[_Member]] = {}  # key of a root -> members
        for operator in left:
            member = roots.member(operator)
            groups.setdefault(member.root.key, []).append(member)
        # ``behind`` is "" for a cause that follows from no other one
        ordered = sorted(
            groups.values(), key=lambda group: (group[0].root.behind != "", -len(group))
        )
        check = origin.checks.get((method, backend))
        for k, group in enumerate(ordered):
            reason = group[0].root.reason
            frees = None
            # only for the first causes, because a prediction takes long
            if k < PREDICTED and check is not None and predict is not None:
                reason, frees = predict(check.program, check.refused, reason, nodes)
            causes.append(_cause(method, backend, group, reason, frees, notation))
    return causes


class _Roots:
    """Finds the roots of the reasons of one backend, and remembers them."""

    def __init__(self, backend: str, reasons: Reasons) -> None:
        """``reasons``: those of all backends for one method."""
        self.backend = backend
        self.reasons = reasons
        self._known: dict[int, _Root] = {}  # id of a reason -> its root

    def member(self, operator: LeftOperator) -> _Member:
        """Return ``operator`` with its refusal and the root of the refusal."""
        refusal = find_refusal(operator.node, self.backend, self.reasons)
        if isinstance(refusal.reason, Reason) and refusal.reason.cause:
            return _Member(operator, refusal, self._root(refusal.reason))
        # without a cause, refusals of one operator with the same text have one root
        text = full_reason(refusal)
        root = _Root((refusal.operator, text), text, behind="")
        return _Member(operator, refusal, root)

    def _root(self, reason: Reason) -> _Root:
        """Return the root of the cause that ``reason`` has.

        A reason may name an operand (``of``), and the backend may have refused that
        operand for the same cause. This method follows the reasons from operand to
        operand. The last one with that cause is the root of all reasons on the way.
        """
        path: dict[int, Reason] = {}  # id -> reason, for the reasons on the way
        while id(reason) not in self._known:
            path[id(reason)] = reason
            earlier = self._reason_against_operand(reason)
            is_cycle = id(earlier) in path
            if (
                isinstance(earlier, Reason)
                and earlier.cause == reason.cause
                and not is_cycle
            ):
                reason = earlier
            else:
                # ``reason`` is the last one with its cause. In a cycle, the operand has
                # the same cause, so ``reason`` follows from no other one.
                follows_from_another = earlier is not None and not is_cycle
                self._known[id(reason)] = _root_of(reason, follows_from_another)
        root = self._known[id(reason)]
        # all reasons on the way have this root
        self._known.update(dict.fromkeys(path, root))
        return root

    def _reason_against_operand(self, reason: Reason) -> str | None:
        """Return the reason for which the backend refused the operand ``reason.of``.

        None if ``reason`` names no operand, or if the operand was not refused.
        """
        if reason.of is None:
            return None
        # if the operand is unpacked from the results of a call, look up that call
        producer = unpacked(reason.of) or reason.of
        return self.reasons.get(
            (self.backend, handle_of(producer), operator_name(producer))
        )


def _root_of(reason: Reason, follows_from_another: bool) -> _Root:
    """Return the root of a cause with ``reason`` as its first reason.

    ``follows_from_another``: the operand ``reason.of`` is refused, too, for another
    cause.
    """
    if reason.of is None:
        return _Root((reason.cause,), reason, behind="")
    # The operator or the input is part of the key: refusals about results of different
    # operators, or about different inputs, are different causes.
    producer = unpacked(reason.of) or reason.of
    name = operator_name(producer) if producer.op == "call_function" else producer.name
    behind = name if follows_from_another else ""
    return _Root((reason.cause, name), reason, behind)


def _cause(
    method: str,
    backend: str,
    group: Sequence[_Member],
    reason: str,
    frees: int | None,
    notation: Notation,
) -> Cause:
    """Return the row of the cause that all members of ``group`` share.

    ``reason``: the reason of the root, or the one in its ``instead`` if that has a
    better hint. Only the hint is used. ``frees``: how many operators the backend would
    take without this cause; None if not known. ``notation``: writes reason and hint
    with the user's names of sizes.
    """
    root = group[0].root  # all members have equal root keys
    hint = reason.hint if isinstance(reason, Reason) else ""
    handles = tuple(handle_of(member.operator.node) for member in group)
    text = notation.text(root.reason)
    rows = _rows(method, backend, group, notation)
    return Cause(
        method, backend, text, notation.text(hint), root.behind, rows, frees, handles
    )


def _rows(
    method: str, backend: str, group: Sequence[_Member], notation: Notation
) -> tuple[RefusalRow, ...]:
    """Return one row for each pair of operator and reason in ``group``.

    Rows are in the order of the program. A row has the number of calls of its pair, and
    the first known line of the user's program with such a call.
    """
    calls_of: dict[tuple[str, str], list[Node]] = {}  # (operator, reason) -> calls
    for left, refusal, _ in group:
        calls_of.setdefault((left.operator, full_reason(refusal)), []).append(left.node)
    return tuple(
        RefusalRow(
            method,
            op,
            backend,
            notation.text(why),
            len(nodes),
            first_source(nodes),
        )
        for (op, why), nodes in calls_of.items()
    )

"""Finds the calls of a partition that its compiler fails on, so that the rest stays
delegated.

A compiler that raises an exception seldom names the operator that caused it. So the
longest beginning of the partition that compiles is found by halving. The call after it
goes to the next backend or to the host. The same is done with the calls after that.

For example, the compiler fails on call 5 of 8. Calls 1 to 4 compile, and calls 1 to 6
and 1 to 5 do not. So call 5 is refused, and calls 6 to 8 become a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from delegraph_programs.inseparable_calls import inseparable_groups
from delegraph_programs.reachable_nodes import reachable
from torch.fx import Node

from ..partitioner import PartitionResult
from .ask_partitioner import build_partitions
from .extract import begin_work
from .order_host_program import draws
from .partition_records import Partition, Tags, Work

MOST_COMPILATIONS = 8
"""Most attempts to compile parts of one partition, since each may take long."""
_FOR_THE_REST = 2
"""Attempts that halving leaves for the calls that follow the beginning."""

Unit = Sequence[Node]
"""Calls that are compiled together, in graph order."""


@dataclass
class Narrowed:
    """A partition that was not compiled as a whole, and its parts.

    ``work``: the work on the whole partition. ``kept``: the work on its parts that
    compile. ``refused``: copies of ``work`` with only the calls that do not compile,
    each with its reason.
    """

    work: Work
    kept: list[Work] = field(default_factory=list)
    refused: list[Work] = field(default_factory=list)


def narrow(work: Work, compile_part: Callable[[Work], None]) -> Narrowed:
    """Compile parts of a partition on which its compiler failed.

    ``work`` has the failure. ``compile_part`` gets the work on a part, and stores the
    result in it, or the reason why there is none. If the compiler raised Unsupported,
    or if the partition cannot be split, the whole partition is refused.
    """
    assert work.not_compiled is not None, "only a failed partition is narrowed"
    if not work.not_compiled.has_failed or not _can_be_split(work.partition):
        return Narrowed(work, refused=[work])
    search = _Search(work, compile_part)
    search.run()
    return Narrowed(work, search.kept, search.refused)


def _can_be_split(partition: Partition) -> bool:
    """Return whether a partition may become several.

    It may not if it owns buffers that it writes, or constants that must have only one
    copy: these belong to one delegate.
    """
    return not partition.state and not any(
        node.meta.get("no_copy") for node in partition.constants
    )


class _Search:
    """The search for the calls of one partition that its compiler fails on.

    ``run`` fills ``kept`` and ``refused``, which are those of ``Narrowed``.
    ``_attempts_left``: the number of attempts that may still be made. ``_reason``: the
    reason of the last attempt that failed. ``_constant``: the calls that compute
    constants; each part gets copies of those that it needs.
    """

    def __init__(self, work: Work, compile_part: Callable[[Work], None]) -> None:
        self.kept: list[Work] = []
        self.refused: list[Work] = []
        self._work = work
        self._compile_part = compile_part
        self._attempts_left = MOST_COMPILATIONS
        self._reason = work.not_compiled
        self._constant = _constant_calls(work.partition)

    def run(self) -> None:
        """Fill ``kept`` and ``refused`` with parts of the partition."""
        nodes = self._work.partition.nodes
        units = inseparable_groups([n for n in nodes if n not in self._constant])
        if not units:  # there are only constant calls
            self.refused.append(self._work)
        while units:
            # The first ``good`` units compile, with the work ``beginning``. The first
            # ``bad`` units do not compile. Halving leaves some attempts for the rest.
            good = 0
            bad = len(units)
            beginning = None
            while bad - good > 1 and self._attempts_left > _FOR_THE_REST:
                middle = (good + bad) // 2
                compiled = self._attempt(units[:middle])
                if compiled is None:
                    bad = middle
                else:
                    good = middle
                    beginning = compiled
            if beginning is not None:
                self.kept.append(beginning)
                # the other units may compile if they are apart from the beginning
                if self._keep_if_compiled(units[good:]):
                    return
            self._refuse(units[good:bad])
            # attempt to compile all units that follow; if that fails, search among them
            units = units[bad:]
            if units and self._keep_if_compiled(units):
                return

    def _keep_if_compiled(self, units: Sequence[Unit]) -> bool:
        """Attempt to compile ``units``, and add the work on them to ``kept``.

        Returns False, without a change of ``kept``, if they do not compile.
        """
        compiled = self._attempt(units)
        if compiled is not None:
            self.kept.append(compiled)
        return compiled is not None

    def _attempt(self, units: Sequence[Unit]) -> Work | None:
        """Compile a part with ``units``, and return the work on it.

        Returns None if the part does not compile, or if no attempt is left. Counts the
        attempt, and keeps the reason of a failure.
        """
        if self._attempts_left == 0:
            return None
        self._attempts_left -= 1
        work = begin_work(self._work.method, self._work.plan, self._part(units))
        self._compile_part(work)
        if work.not_compiled is not None:
            self._reason = work.not_compiled
            return None
        return work

    def _part(self, units: Sequence[Unit]) -> Partition:
        """Return a partition of ``units`` and the constant calls that they need."""
        whole = self._work.partition
        program = self._work.plan.program
        nodes = reachable(
            chain.from_iterable(units),
            lambda node: [n for n in node.all_input_nodes if n in self._constant],
        )
        used: set[Node] = set()
        for node in nodes:
            used.update(node.all_input_nodes)
        tag = f"{whole.tag}/{len(self.kept) + 1}"
        tags: Tags = {node: (tag,) for node in whole.constants if node in used}
        for node in whole.nodes:  # in graph order
            if node in nodes:
                # None means that the host computes the constant call as well: it is
                # then no output of the part
                tags[node] = (None, tag) if node in self._constant else (tag,)
        result = PartitionResult(program, {tag: whole.spec}, whole.boundary_types)
        return build_partitions(program, result, tags)[tag]

    def _refuse(self, units: Sequence[Unit]) -> None:
        """Add ``units`` to ``refused``, with the reason of the last failed attempt."""
        refused = set(chain.from_iterable(units))
        nodes = [node for node in self._work.partition.nodes if node in refused]
        partition = replace(self._work.partition, nodes=nodes)
        self.refused.append(
            replace(self._work, partition=partition, not_compiled=self._reason)
        )


def _constant_calls(partition: Partition) -> set[Node]:
    """Return the calls of a partition that compute constants.

    Such a call has operands, all of them constants, and draws no random numbers.
    """
    known = set(partition.constants)
    for node in partition.nodes:
        if (
            node.all_input_nodes
            and not draws(node)
            and all(operand in known for operand in node.all_input_nodes)
        ):
            known.add(node)
    return known.difference(partition.constants)

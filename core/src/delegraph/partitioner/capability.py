"""``CapabilityPartitioner``: the partitioner of a backend that can say of each node whether it takes it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from ..backend import CompileSpec
from ..signature import constant_placeholders
from .contract import DelegationSpec, Partitioner, PartitionResult, Refusal
from .levels import connected, groups, levels, limited, sink

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

_CALL_DELEGATE = torch.ops.higher_order.executorch_call_delegate
_NO_OPERATORS = (operator.getitem, _CALL_DELEGATE)


@runtime_checkable
class Support(Protocol):
    """What a backend knows about nodes. ``begin`` is called first, then ``why_not`` once a call, in graph order."""

    def begin(self, exported_program: ExportedProgram) -> None:
        """A new program: forget the last one."""

    def why_not(self, node: Node) -> str | None:
        """Why the backend does not take ``node``, in the user's terms; None if it does."""

    def is_constant(self, node: Node) -> bool:
        """Whether an accepted node computes a constant, so that each partition may have its own."""

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        """Refusals that show only in a finished partition, where all but constants arrives at run time; {} if none.

        What this returns empty for must compile.
        """


class _Predicate:
    """A plain ``why_not(node)`` as ``Support``: a deterministic call on constants alone is constant."""

    def __init__(self, why_not: Callable[[Node], str | None]) -> None:
        self.why_not = why_not
        self._constant: set[Node] = set()

    def begin(self, exported_program: ExportedProgram) -> None:
        self._constant = constant_placeholders(exported_program)

    def is_constant(self, node: Node) -> bool:
        tags = getattr(node.target, "tags", ())
        known = torch.Tag.nondeterministic_seeded not in tags and all(i in self._constant for i in node.all_input_nodes)
        if known:
            self._constant.add(node)
        return known

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        return {}


class CapabilityPartitioner(Partitioner):
    """Gives a backend every node that it takes, in the fewest partitions that leave no cycle.

    ``support`` is ``why_not(node) -> str | None`` or a ``Support``. Constants, and what is computed from constants
    alone, go into every partition that uses them. With ``connected_only`` a partition is a connected piece of the
    graph; ``largest`` limits its number of operators. Every refusal is kept with its reason.
    """

    def __init__(
        self,
        support: Support | Callable[[Node], str | None],
        backend_id: str,
        compile_specs: Sequence[CompileSpec] = (),
        *,
        connected_only: bool = False,
        largest: int | None = None,
        spec: Mapping[Any, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(spec)
        self.support: Support = support if isinstance(support, Support) else _Predicate(support)
        self.delegation_spec = DelegationSpec(backend_id, tuple(compile_specs))
        self.connected_only, self.largest = connected_only, largest

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        calls = [n for n in exported_program.graph.nodes if n.op == "call_function"]
        refused, constant = self._ask(exported_program, calls)
        parts = self._settle(calls, refused, constant)
        placeholders = constant_placeholders(exported_program)
        tags = _tag(parts, constant | placeholders, self.delegation_spec.backend_id)
        refusals = [Refusal(n, why) for n, why in refused.items() if n.target not in _NO_OPERATORS]
        return PartitionResult(exported_program, dict.fromkeys(tags, self.delegation_spec), refusals=refusals)

    def _ask(self, program: ExportedProgram, calls: Iterable[Node]) -> tuple[dict[Node, str], set[Node]]:
        """Refusals in graph order, and the accepted nodes that compute a constant."""
        self.support.begin(program)
        refused: dict[Node, str] = {}
        constant: set[Node] = set()
        for node in calls:
            why = self._why_not(node, refused)
            if why is not None:
                refused[node] = why
            elif self._is_constant(node, constant):
                constant.add(node)
        return refused, constant

    def _why_not(self, node: Node, refused: Mapping[Node, str]) -> str | None:
        if node.target is _CALL_DELEGATE:
            return "a delegate already"
        if node.target is not operator.getitem:
            return self.support.why_not(node)
        producer: Any = node.args[0]
        if producer.op != "call_function" or producer.target is _CALL_DELEGATE:
            return "unpacks a value that the host makes"
        return refused.get(producer)

    def _is_constant(self, node: Node, constant: set[Node]) -> bool:
        if node.target is operator.getitem:
            return node.args[0] in constant
        return self.support.is_constant(node)

    def _settle(self, calls: list[Node], refused: dict[Node, str], constant: set[Node]) -> list[list[Node]]:
        """Group, ask about each group, and group again without what was refused, until nothing is."""
        while True:
            parts = self._group(calls, refused, constant)
            late = {n: why for part in parts for n, why in self._late(part, constant).items()}
            if not late:
                return parts
            refused.update(_with_unpackers(late))
            constant.difference_update(refused)

    def _late(self, part: list[Node], constant: set[Node]) -> Mapping[Node, str]:
        return self.support.partition_why_not(_with_constants(part, constant))

    def _group(self, calls: list[Node], refused: Mapping[Node, str], constant: set[Node]) -> list[list[Node]]:
        accepted = {n for n in calls if n not in refused}
        floating = {n for n in constant if all(u in accepted for u in n.users)}
        level = levels(calls, accepted, floating)
        sink(calls, level, accepted)
        parts = groups(calls, level, accepted)
        if self.connected_only:
            parts = [piece for part in parts for piece in connected(part)]
        if self.largest is not None:
            parts = [piece for part in parts for piece in limited(part, self.largest)]
        return parts


def _with_unpackers(refused: Mapping[Node, str]) -> dict[Node, str]:
    """A node and all that unpacks it, or that it unpacks, are refused together."""
    found: dict[Node, str] = {}
    waiting = list(refused.items())
    while waiting:
        node, why = waiting.pop()
        if node not in found:
            found[node] = why
            waiting += [(u, why) for u in node.users if u.target is operator.getitem]
            if node.target is operator.getitem:
                waiting.append((node.args[0], why))  # type: ignore[arg-type]
    return found


def _with_constants(part: Sequence[Node], constant: set[Node]) -> list[Node]:
    """``part`` preceded by the calls that compute the constants it uses, each before its users."""
    members = set(part)
    found: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(i, False) for n in reversed(part) for i in reversed(n.all_input_nodes)]
    while stack:
        node, ready = stack.pop()
        if node not in constant or node in members or node in found:
            continue
        if ready:
            found[node] = None
        else:
            stack.append((node, True))
            stack += [(i, False) for i in node.all_input_nodes]
    return [*found, *part]


def _tag(parts: Sequence[Sequence[Node]], constant: set[Node], backend_id: str) -> list[str]:
    """Write the tags: a string, or a tuple of them for a constant that several partitions use."""
    tags: dict[Node, list[str]] = {}
    names = [f"{backend_id}_{k}" for k in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        for node in part:
            tags.setdefault(node, []).insert(0, name)
        for node in _with_constants(part, constant)[: -len(part)]:
            tags.setdefault(node, []).append(name)
    for node, listed in tags.items():
        node.meta["delegation_tag"] = listed[0] if len(listed) == 1 else tuple(listed)
    return names

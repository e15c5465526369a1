"""``CapabilityPartitioner``: the partitioner for a backend that can say of each node
whether it takes it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from delegraph_programs import (
    constant_placeholders,
    constant_tensor,
    operator_name,
    placeholders,
    source_of,
    why_no_bytes,
)
from delegraph_programs.exported_program import CALL_DELEGATE, CONSTANT_KINDS
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..backend import CompileSpec
from ..errors import ContractViolation, OptionError
from .contract import DelegationSpec, Partitioner, PartitionResult, Refusal, Support
from .groups import Groups
from .levels import connected_components, flatten, group_by_level, levels, limit, sink

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

WhyNot = Callable[["Node"], str | None]
"""A function that returns why a node is not taken, in the user's terms, or None."""
NodeLists = Callable[["ExportedProgram"], Iterable[Sequence["Node"]]]
"""A function from a program to lists of its nodes."""


class Predicate:
    """A ``Support`` made of a plain ``why_not(node)``. Deterministic calls on constants
    alone count as constant.
    """

    def __init__(self, why_not: WhyNot) -> None:
        """``why_not``: a function that returns why a node is not taken; None if it is.
        ``begin`` gives the program.
        """
        self.why_not = why_not
        self._constant: set[Node] = set()

    def begin(self, exported_program: ExportedProgram) -> None:
        """Begin with a new program, whose constant placeholders are the first
        constants.
        """
        self._constant = constant_placeholders(exported_program)

    def is_constant(self, node: Node) -> bool:
        """Whether ``node`` computes a constant: it draws no random numbers, and all of
        its operands are constants.

        Asked in graph order. Records a constant call, since calls that use it are asked
        about later.
        """
        tags = getattr(node.target, "tags", ())
        is_random = torch.Tag.nondeterministic_seeded in tags
        is_constant = not is_random and all(
            i in self._constant for i in node.all_input_nodes
        )
        if is_constant:
            self._constant.add(node)
        return is_constant

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        """{}: a plain function refuses no partition as a whole."""
        return {}


class CapabilityPartitioner(Partitioner):
    """Gives a backend every node that it takes, in the fewest partitions that leave no
    cycle.

    ``support`` is a function ``why_not(node) -> str | None``, or a ``Support``.
    ``additional_checks`` are more such functions, asked before ``support``; the first
    reason counts. Constants, and calls that compute from constants alone, go into every
    partition that uses them. Every refusal is kept with its reason.

    ``groups(exported_program)`` lists calls that share a partition or all stay on the
    host, for example calls that are fused; groups that overlap count as one. With
    ``connected_only`` a partition is a connected part of the graph. ``largest``: the
    most operators that a partition may have; None for any number. Without
    ``allows_single_node_partition``, an operator alone is no partition unless it is in
    ``allowed_single_node_partition_ops``. Operators in ``non_compute_ops`` do not count
    for that, and a partition that has no others stays on the host. ``spec``: settings
    that users can read as ``Partitioner.spec``.
    """

    def __init__(
        self,
        support: Support | WhyNot,
        backend_id: str,
        compile_specs: Sequence[CompileSpec] = (),
        *,
        groups: NodeLists | None = None,
        additional_checks: Sequence[WhyNot] = (),
        connected_only: bool = False,
        largest: int | None = None,
        allows_single_node_partition: bool = True,
        allowed_single_node_partition_ops: Collection[OpOverload] = (),
        non_compute_ops: Collection[OpOverload] = (),
        spec: Mapping[Any, Any] = MappingProxyType({}),
    ) -> None:
        """The class describes the parameters. Raises OptionError if an operator in one
        of the lists is no overload.
        """
        super().__init__(spec)
        self.support: Support = (
            support if isinstance(support, Support) else Predicate(support)
        )
        self.delegation_spec = DelegationSpec(backend_id, compile_specs)
        self.groups = groups
        self.additional_checks = tuple(additional_checks)
        self.connected_only = connected_only
        self.largest = largest
        self.allows_single_node_partition = allows_single_node_partition
        self.allowed_single_node_partition_ops = _operators(
            allowed_single_node_partition_ops
        )
        self.non_compute_ops = _operators(non_compute_ops)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes that the backend takes, and list the others with reasons.

        A constant call that the host needs as well is tagged and listed.
        """
        search = _Search(self, exported_program)
        parts = search.parts()
        also_on_host = search.copied()  # known once the search for partitions has ended
        constant = search.constant | constant_placeholders(exported_program)
        tags = _write_tags(
            parts, constant, also_on_host, self.delegation_spec.backend_id
        )
        specs = dict.fromkeys(tags, self.delegation_spec)
        return PartitionResult(
            exported_program, specs, refusals=search.refusals(also_on_host)
        )


def _operators(operators: Iterable[Any]) -> frozenset[OpOverload]:
    """The operators that the user lists, as a set. Raises OptionError for anything that
    is no overload.
    """
    unique = frozenset(operators)
    for op in unique:
        if not isinstance(op, OpOverload):
            text = f"operators are named as torch.ops.aten.view.default is, not {op!r}"
            raise OptionError("option-invalid", text)
    return unique


class _Search:
    """The search for the partitions of one program, by ``partitioner``.

    ``refused``: node -> why it stays on the host, as known so far. ``final``: refused
    nodes that are not to be decomposed either. ``constant``: accepted calls that
    compute constants. Each partition has its own copy of a constant that it uses, so
    such calls never tie two partitions together, and belong to no group.
    ``unreadable``: placeholders of constants that cannot be stored -> why.
    """

    def __init__(
        self, partitioner: CapabilityPartitioner, program: ExportedProgram
    ) -> None:
        """Ask the backend about each call of ``program`` by itself; ``parts`` then
        forms partitions of the calls.
        """
        self.partitioner = partitioner
        self.support = partitioner.support
        self.calls = [n for n in program.graph.nodes if n.op == "call_function"]
        self.refused: dict[Node, str] = {}
        self.final: set[Node] = set()
        self.constant: set[Node] = set()
        self.unreadable: dict[Node, str] = {}  # constant that cannot be stored -> why
        for node, spec in placeholders(program):
            if spec.kind in CONSTANT_KINDS and (
                why := why_no_bytes(constant_tensor(program, spec))
            ):
                self.unreadable[node] = f"{spec.target} cannot be stored: {why}"
        self.support.begin(program)
        for node in self.calls:
            reason = self._why_not(node)
            if reason is not None:
                self.refused[node] = reason
            elif self._is_constant(node):
                self.constant.add(node)
        self.groups = (
            [list(group) for group in partitioner.groups(program)]
            if partitioner.groups
            else []
        )

    def parts(self) -> list[list[Node]]:
        """The partitions, each a list of nodes in graph order.

        Groups the accepted calls, asks the backend about each partition, and groups
        again without what it refused, until it refuses nothing.
        """
        # Cheap checks come first. The backend is asked about partitions only when no
        # group changes them any more. A partition is called too small only when the
        # backend refuses nothing that would make another one smaller.
        while True:
            # groups without constant calls, of which each partition gets a copy
            computing = [
                [n for n in group if n not in self.constant] for group in self.groups
            ]
            groups = Groups(computing, self.calls, self.partitioner.largest)
            self._refuse(groups.broken(self.refused), final=True)
            # calls that stay on the host after all, with reasons, by who refuses them
            parts, by_groups = self._group(groups)
            by_backend: dict[Node, str] = {}
            too_small: dict[Node, str] = {}
            if not by_groups:
                for part in parts:
                    by_backend.update(
                        self.support.partition_why_not(
                            _with_constants(part, self.constant)
                        )
                    )
            if not by_groups and not by_backend:
                for part in parts:
                    too_small.update(self._why_too_small(part))
            if not by_groups and not by_backend and not too_small:
                return parts
            self._refuse(by_backend)
            self._refuse({**by_groups, **too_small}, final=True)

    def _group(self, groups: Groups) -> tuple[list[list[Node]], dict[Node, str]]:
        """The partitions of the calls accepted so far; and accepted calls that their
        groups keep on the host -> why.

        If there are such calls, the partitions are not final.
        """
        accepted = {n for n in self.calls if n not in self.refused}
        unplaced = self._unplaced_constants()
        # units: calls that stay together; units of equal level can be one partition
        # (see ``levels``)
        ordered, kept_out = groups.units(
            [n for n in self.calls if n not in unplaced], accepted
        )
        level = levels(ordered, accepted)
        sink(ordered, level, accepted)
        parts = group_by_level(ordered, level, accepted)
        if self.partitioner.connected_only:
            parts = [
                component for part in parts for component in connected_components(part)
            ]
        if self.partitioner.largest is not None:
            parts = [
                piece
                for part in parts
                for piece in limit(part, self.partitioner.largest)
            ]
        return [flatten(part, groups.position) for part in parts], kept_out

    def _why_not(self, node: Node) -> str | None:
        """Why a call stays on the host; None if the backend takes it.

        The refusal of an additional check, or because of a tensor, is recorded as
        final.
        """
        if node.target is CALL_DELEGATE:
            return "a delegate already"
        if node.target is operator.getitem:
            # the call whose results ``node`` unpacks: both go the same way
            producer: Any = node.args[0]
            if producer.op != "call_function" or producer.target is CALL_DELEGATE:
                return "unpacks a value that the host makes"
            return self.refused.get(producer)
        # the first reason that is not None: an empty text is a refusal, too
        reasons = (
            self._checked(node, check(node))
            for check in self.partitioner.additional_checks
        )
        checked = next((why for why in reasons if why is not None), None)
        if checked is not None:
            self.final.add(node)
            return checked
        why = self._checked(node, self.support.why_not(node))
        return self._why_no_bytes(node) if why is None else why

    def _checked(self, node: Node, why: Any) -> str | None:
        """Return ``why``, the answer of a support check. Raises ContractViolation
        unless it is a text or None.
        """
        if why is None or isinstance(why, str):
            return why
        backend_id = self.partitioner.delegation_spec.backend_id
        text = (
            f"the support check of {backend_id} returned {why!r} for"
            f" {operator_name(node)}; it returns the reason for which the backend does"
            " not take the call, or None if it takes the call"
        )
        raise ContractViolation("contract-violation", text, node, source_of(node))

    def _why_no_bytes(self, node: Node) -> str | None:
        """Why a call stays on the host because of a tensor that it reads or returns;
        None if nothing is wrong with any.

        A tensor is wrong if it is a constant that cannot be stored, or a subclass that
        wraps other tensors. The refusal is recorded as final.
        """
        for value in (*node.all_input_nodes, node):
            val = value.meta.get("val")
            # nearly all are plain fake tensors, and comparing the type is much faster
            # than asking torch
            wraps = type(val) is not FakeTensor and is_traceable_wrapper_subclass(val)
            if value in self.unreadable or wraps:
                self.final.add(node)
                default = (
                    f"{value.name} is a {type(val).__name__}, and delegates pass plain"
                    " tensors"
                )
                return self.unreadable.get(value, default)
        return None

    def _is_constant(self, node: Node) -> bool:
        """Whether every partition can compute ``node`` by itself: all of its computed
        operands are constants.

        ``zeros_like(y)`` has a constant value, but cannot be computed without ``y``.
        """
        if node.target is operator.getitem:
            return node.args[0] in self.constant
        computed = (i for i in node.all_input_nodes if i.op == "call_function")
        return all(i in self.constant for i in computed) and self.support.is_constant(
            node
        )

    def _refuse(self, reasons: Mapping[Node, str], final: bool = False) -> None:
        """Refuse the nodes in ``reasons``, each for its reason, with the calls that
        unpack their results.

        If one of the nodes unpacks a result, the call that makes the result is refused
        as well. ``final``: the refused nodes are not to be decomposed either.
        """
        waiting = list(reasons.items())
        seen: set[Node] = set()
        while waiting:
            node, why = waiting.pop()
            if node not in seen:
                seen.add(node)
                self.refused[node] = why
                waiting += [
                    (u, why) for u in node.users if u.target is operator.getitem
                ]
                # the call makes all of its results, so they stay together
                if node.target is operator.getitem:
                    waiting.append((node.args[0], why))  # type: ignore[arg-type]
        self.constant -= seen
        if final:
            self.final |= seen

    def _unplaced_constants(self) -> set[Node]:
        """Constant calls that accepted calls use, with the calls that unpack their
        results.

        They are left out of the search: each partition that is found gets copies of
        those that it uses.
        """
        used = {
            n
            for n in self.constant
            if any(u.op == "call_function" and u not in self.refused for u in n.users)
        }
        return used | {u for n in used for u in n.users if u.target is operator.getitem}

    def copied(self) -> set[Node]:
        """Constant calls in partitions that the host needs as well.

        The host needs one if a refused call, the output, or another such call uses it.
        """
        unplaced = self._unplaced_constants()
        copied: set[Node] = set()
        for node in reversed(self.calls):  # users come first
            if node in unplaced and any(
                u in copied or u in self.refused or u.op == "output" for u in node.users
            ):
                copied.add(node)
        return copied

    def refusals(self, copied: Iterable[Node]) -> list[Refusal]:
        """The refusals in graph order, without calls that only unpack results, and
        without delegates.

        ``copied``: constant calls that the host computes as well; they are listed, too.
        """
        reasons = (
            dict.fromkeys(
                copied, "the host needs this constant too and computes it itself"
            )
            | self.refused
        )
        nodes = [
            n
            for n in self.calls
            if n in reasons and n.target not in (operator.getitem, CALL_DELEGATE)
        ]
        return [Refusal(n, reasons[n], n in self.final) for n in nodes]

    def _why_too_small(self, part: list[Node]) -> dict[Node, str]:
        """Node -> why it stays on the host because its partition is too small; {} if
        the partition is not.
        """
        partitioner = self.partitioner
        if partitioner.allows_single_node_partition and not partitioner.non_compute_ops:
            return {}  # no partition can be too small
        work = [
            n
            for n in part
            if n.target is not operator.getitem
            and n.target not in partitioner.non_compute_ops
        ]
        if not work:
            return dict.fromkeys(part, "nothing in its partition computes")
        alone = (
            len(work) == 1
            and work[0].target not in partitioner.allowed_single_node_partition_ops
        )
        if alone and not partitioner.allows_single_node_partition:
            return dict.fromkeys(
                part, f"{work[0].name} would be the only operator of its partition"
            )
        return {}


def _with_constants(part: Sequence[Node], constant: set[Node]) -> list[Node]:
    """``part``, preceded by those of the calls in ``constant`` that it needs, each
    before its users.
    """
    members = set(part)
    computed: dict[Node, None] = {}
    # Depth first without recursion. A node is visited twice: first its operands are put
    # on the stack, then, when they are done (``ready``), the node itself is listed.
    stack: list[tuple[Node, bool]] = [
        (i, False) for n in reversed(part) for i in reversed(n.all_input_nodes)
    ]
    while stack:
        node, ready = stack.pop()
        if node not in constant or node in members or node in computed:
            continue
        if ready:
            computed[node] = None
        else:
            stack.append((node, True))
            stack += [(i, False) for i in node.all_input_nodes]
    return [*computed, *part]


def _write_tags(
    parts: Sequence[Sequence[Node]],
    constant: set[Node],
    also_on_host: Iterable[Node],
    backend_id: str,
) -> list[str]:
    """Write ``meta["delegation_tag"]`` of every node in a partition; returns the names
    of the partitions, in order.

    ``parts``: the calls of each partition. ``constant``: calls and placeholders that
    are constants, of which each partition gets a copy. A tag is the name of a
    partition. The tag of a constant may be a tuple: the partition that lists it in
    ``parts``, if one does; None if the host computes it too (``also_on_host``); and
    each partition that gets a copy.
    """
    tags: dict[Node, list[str | None]] = {node: [None] for node in also_on_host}
    names = [f"{backend_id}_{k}" for k in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        for node in part:
            tags.setdefault(node, []).insert(0, name)
        # ``_with_constants`` puts the constants that a part uses in front of the part:
        # take these alone
        for node in _with_constants(part, constant)[: -len(part)]:
            tags.setdefault(node, []).append(name)
    for node in tags:
        producer = node  # a ``getitem`` gets the tags of the call that it unpacks
        while producer.target is operator.getitem:
            producer = producer.args[0]  # type: ignore[assignment]
        node_tags = tags[producer]
        node.meta["delegation_tag"] = (
            node_tags[0] if len(node_tags) == 1 else tuple(node_tags)
        )
    return names

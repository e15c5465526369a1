"""``CapabilityPartitioner``, for a backend with a check of single nodes.

It asks the backend about each call, and puts the accepted calls into the fewest
partitions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from delegraph_programs import (
    constant_placeholders,
    constant_tensor,
    is_random,
    operator_name,
    placeholders,
    source_of,
    why_no_bytes,
)
from delegraph_programs.exported_program import CALL_DELEGATE, CONSTANT_KINDS
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..backend import CompileSpec
from ..errors import ContractViolation
from .fewest_groups import (
    Unit,
    connected_components,
    flatten,
    group_by_level,
    levels,
    move_to_users,
    split_by_size,
    units,
)
from .interface import DelegationSpec, Partitioner, PartitionResult, Refusal, Support

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

WhyNot = Callable[["Node"], str | None]
"""A function that returns the reason to refuse a node, in the user's terms, or None."""


class Grouped(NamedTuple):
    """The result of a ``Grouping``: units of calls that must share a partition.

    ``units``: all calls in units, each unit after the units that it needs.
    ``kept_out``: accepted call -> the reason why it must stay on the host, for example
    because a call of its unit is refused. If ``kept_out`` is not empty, ``units`` is
    not read.
    """

    units: Sequence[Unit]
    kept_out: Mapping[Node, str]


Grouping = Callable[[Sequence["Node"], Mapping["Node", str]], Grouped]
"""A function ``(calls, refused) -> Grouped``.

``calls`` are in graph order. ``refused``: refused call -> the reason.
"""


class Predicate:
    """A ``Support`` made of a plain ``why_not(node)``.

    Deterministic calls on constants alone count as constant.
    """

    def __init__(self, why_not: WhyNot) -> None:
        self.why_not = why_not
        self._constant: set[Node] = set()

    def begin(self, exported_program: ExportedProgram) -> None:
        """Begin with a new program. Its constant placeholders are constant."""
        self._constant = constant_placeholders(exported_program)

    def is_constant(self, node: Node) -> bool:
        """Return whether ``node`` computes a constant, and remember constant calls.

        A call computes a constant if it draws no random numbers and each operand is a
        constant. That includes a call without operands. Calls must come in graph order,
        because the answer depends on the remembered calls.
        """
        is_constant = not is_random(node) and self._constant.issuperset(
            node.all_input_nodes
        )
        if is_constant:
            self._constant.add(node)
        return is_constant

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        """Return {}: a plain function refuses no partition as a whole."""
        return {}


class Limits(NamedTuple):
    """Limits for the partitions of a backend.

    ``connected_only``: each partition is a connected part of the graph. ``largest``:
    the maximum number of operators in a partition; None for no limit.
    ``why_too_small``: a function that gets the operators of a partition. It returns the
    reason to leave them to the host, or None. Calls that unpack results are not among
    the operators.
    """

    connected_only: bool = False
    largest: int | None = None
    why_too_small: Callable[[Sequence[Node]], str | None] | None = None


class CapabilityPartitioner(Partitioner):
    """Gives a backend all nodes that it takes, in the fewest partitions without cycles.

    ``support``: a function ``why_not(node) -> str | None``, or a ``Support``.
    ``backend_id`` and ``compile_specs``: the backend of all partitions, and its
    settings. ``additional_checks``: more functions like ``why_not``, called before
    ``support``; the first reason counts. ``limits``: None for no limits. Raises
    ContractViolation for another ``support``.

    Every partition gets a copy of the constants that it uses, and of calls on constants
    alone. Every refusal is kept with its reason.
    """

    def __init__(
        self,
        support: Support | WhyNot,
        backend_id: str,
        compile_specs: Sequence[CompileSpec] = (),
        *,
        additional_checks: Sequence[WhyNot] = (),
        limits: Limits | None = None,
    ) -> None:
        super().__init__()
        # a plain function becomes a ``Support``
        self.support: Support = (
            support if isinstance(support, Support) else Predicate(support)
        )
        if isinstance(self.support, Predicate) and not callable(self.support.why_not):
            text = f"{type(support).__name__} is neither a function nor a Support"
            raise ContractViolation("contract-violation", text)
        self.delegation_spec = DelegationSpec(backend_id, compile_specs)
        self.additional_checks = tuple(additional_checks)
        self.limits = limits or Limits()

    def grouping(self, exported_program: ExportedProgram) -> Grouping:
        """Return a function that groups calls which must share a partition.

        By default, only a call and the calls that unpack its results are grouped.
        ``delegraph_engines.GroupedPartitioner`` overrides this method.
        """
        return lambda calls, refused: Grouped(units(calls), kept_out={})

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes that the backend takes, and list the others with reasons.

        A constant call that the host needs as well is tagged, and is listed too. Raises
        ContractViolation for a wrong answer of the backend.
        """
        search = _Search(self, exported_program)
        # before the other methods of ``search``, because it may refuse more calls
        parts = search.parts()
        for_host = search.constants_for_host()
        constant = search.constant_calls | constant_placeholders(exported_program)
        backend_id = self.delegation_spec.backend_id
        tags = _write_tags(parts, constant, for_host, backend_id)
        specs = dict.fromkeys(tags, self.delegation_spec)
        return PartitionResult(
            exported_program, specs, refusals=search.refusals(for_host)
        )


class _Search:
    """The search for the partitions of one program, by ``partitioner``.

    The search begins with answers about single calls (``__init__``). ``parts`` then
    refuses more calls. The other public methods read the result of ``parts``.

    ``refused``: call -> the reason, as known so far. ``not_decomposed``: refused calls
    that must not be decomposed either. ``constant_calls``: accepted calls that compute
    constants. ``why_not_stored``: placeholder of a constant that cannot be stored ->
    the reason.
    """

    def __init__(
        self, partitioner: CapabilityPartitioner, program: ExportedProgram
    ) -> None:
        """Ask the backend about each call of ``program`` by itself.

        Fills the four collections that the class describes. Raises ContractViolation
        for an answer that is neither a text nor None.
        """
        self.partitioner = partitioner
        self.support = partitioner.support
        self.limits = partitioner.limits
        self.calls = [n for n in program.graph.nodes if n.op == "call_function"]
        self._positions = {node: k for k, node in enumerate(self.calls)}
        self.refused: dict[Node, str] = {}
        self.not_decomposed: set[Node] = set()
        self.constant_calls: set[Node] = set()
        self.why_not_stored: dict[Node, str] = {}
        for node, spec in placeholders(program):
            if spec.kind in CONSTANT_KINDS:
                why = why_no_bytes(constant_tensor(program, spec))
                if why:
                    self.why_not_stored[node] = f"{spec.target} cannot be stored: {why}"
        self.support.begin(program)
        # in graph order: an answer may depend on the answers about the operands
        for node in self.calls:
            reason = self._ask_about(node)
            if reason is not None:
                self.refused[node] = reason
            elif self._is_constant(node):
                self.constant_calls.add(node)
        self.grouping = partitioner.grouping(program)

    def parts(self) -> list[list[Node]]:
        """Return the partitions, each a list of nodes in graph order.

        Adds the calls that cannot be in any partition to ``refused``. Raises
        ContractViolation if the backend gives a wrong answer about a partition.
        """
        # Each refusal may change all partitions, so the search then starts again. It
        # ends when the grouping, the backend and the limit of size refuse no more call.
        # Sizes are checked last: a call that the backend refuses may be decomposed. A
        # call that is refused for the size of its partition may not.
        while True:
            parts, kept_out = self._group()
            if kept_out:
                self._refuse(kept_out, final=True)
                continue
            by_backend: dict[Node, str] = {}
            for part in parts:
                nodes = [*_constants_of(part, self.constant_calls), *part]
                answer = self.support.partition_why_not(nodes)
                if not isinstance(answer, Mapping):
                    raise self._wrong(f"returned {answer!r} for a partition")
                by_backend.update(answer)
            if by_backend:
                self._refuse(by_backend)
                continue
            too_small: dict[Node, str] = {}
            for part in parts:
                too_small.update(self._why_too_small(part))
            if not too_small:
                return parts
            self._refuse(too_small, final=True)

    def _group(self) -> tuple[list[list[Node]], Mapping[Node, str]]:
        """Return the partitions of the calls accepted so far, and an empty mapping.

        If the grouping keeps accepted calls on the host, returns no partitions, and
        these calls with their reasons.
        """
        copied = self._copied_constants()
        calls = [n for n in self.calls if n not in copied]
        ordered, kept_out = self.grouping(calls, self.refused)
        if kept_out:
            return [], kept_out
        # units of equal level can be one partition (see ``fewest_groups``)
        accepted = {n for n in calls if n not in self.refused}
        level = levels(ordered, accepted)
        move_to_users(ordered, level, accepted)  # changes ``level``
        parts = group_by_level(ordered, level, accepted)
        if self.limits.connected_only:
            parts = [piece for part in parts for piece in connected_components(part)]
        if self.limits.largest is not None:
            largest = self.limits.largest
            parts = [piece for part in parts for piece in split_by_size(part, largest)]
        return [flatten(part, self._positions) for part in parts], {}

    def _ask_about(self, node: Node) -> str | None:
        """Return the reason to refuse a call, or None if the backend takes the call.

        Asks the additional checks, then the support check, then ``_ask_about_tensors``.
        A call that the support check refuses may be decomposed. The two others add the
        calls that they refuse to ``not_decomposed``. Calls of delegates are refused. A call that unpacks
        results has the answer of the call that returns them. Ask in graph order, so
        that this answer is known.
        """
        if node.target is CALL_DELEGATE:
            return "it is already a call of a delegate"
        if node.target is operator.getitem:
            # the call that ``node`` unpacks
            producer: Any = node.args[0]
            if producer.op != "call_function" or producer.target is CALL_DELEGATE:
                return f"takes an item of {producer.name}, which is not delegated"
            return self.refused.get(producer)
        for check in self.partitioner.additional_checks:
            why = self._checked(node, check(node), "an additional check")
            if why is not None:  # an empty text is a refusal, too
                self.not_decomposed.add(node)
                return why
        why = self._checked(node, self.support.why_not(node), "the support check")
        return self._ask_about_tensors(node) if why is None else why

    def _checked(self, node: Node, why: Any, check: str) -> str | None:
        """Return ``why``, the answer about ``node``.

        ``check``: the check that gave the answer, in words. Raises ContractViolation
        unless ``why`` is a text or None.
        """
        if why is None or isinstance(why, str):
            return why
        backend_id = self.partitioner.delegation_spec.backend_id
        text = (
            f"{check} of {backend_id} returned {why!r} for"
            f" {operator_name(node)}; it must return the reason to refuse the call, or"
            " None if the backend takes it"
        )
        raise ContractViolation("contract-violation", text, node, source_of(node))

    def _ask_about_tensors(self, node: Node) -> str | None:
        """Return the reason to refuse a call because of its operands or its result.

        No backend takes a constant that cannot be stored, or a tensor subclass that
        wraps other tensors. A call with one of these is added to ``not_decomposed``.
        For other calls, returns None.
        """
        for value in (*node.all_input_nodes, node):
            why = self.why_not_stored.get(value)
            val = value.meta.get("val")
            # nearly all values are plain fake tensors, and comparing the type is much
            # faster than asking torch
            if type(val) is not FakeTensor and is_traceable_wrapper_subclass(val):
                kind = type(val).__name__
                why = (
                    why or f"{value.name} is a {kind}, and delegates pass plain tensors"
                )
            if why is not None:
                self.not_decomposed.add(node)
                return why
        return None

    def _is_constant(self, node: Node) -> bool:
        """Return whether every partition can compute ``node`` by itself.

        The support check must answer that ``node`` computes a constant, and each
        operand that is a call must be a constant call. Both are checked, because
        ``zeros_like(y)`` has a constant value, but a partition needs ``y`` for it.
        """
        if node.target is operator.getitem:
            return node.args[0] in self.constant_calls
        calls = [i for i in node.all_input_nodes if i.op == "call_function"]
        return self.constant_calls.issuperset(calls) and self.support.is_constant(node)

    def _refuse(self, reasons: Mapping[Node, str], final: bool = False) -> None:
        """Refuse the calls in ``reasons``, with the calls that unpack their results.

        If a call unpacks a result, the call that returns the result is refused as well.
        Updates ``refused`` and ``constant_calls``. ``final``: the refused calls must
        not be decomposed either. Raises ContractViolation for a node that is no
        accepted call: without progress, the search would not end.
        """
        for node, why in reasons.items():
            self._expect_refusal(node, why)
        waiting = list(reasons.items())
        seen: set[Node] = set()
        while waiting:
            node, why = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            self.refused[node] = why
            waiting += [(u, why) for u in node.users if u.target is operator.getitem]
            # one call returns all of its results, so all of them are refused
            if node.target is operator.getitem:
                waiting.append((node.args[0], why))  # type: ignore[arg-type]
        self.constant_calls -= seen
        if final:
            self.not_decomposed |= seen

    def _expect_refusal(self, node: Any, why: Any) -> None:
        """Raise ContractViolation unless ``node`` is an accepted call and ``why`` a text."""
        is_accepted = node in self._positions and node not in self.refused
        if is_accepted and isinstance(why, str):
            return
        raise self._wrong(f"refused {node} with {why!r}")

    def _wrong(self, answer: str) -> ContractViolation:
        """Return the error for a wrong ``answer`` about a partition, given in words."""
        backend_id = self.partitioner.delegation_spec.backend_id
        text = (
            f"the support of {backend_id} {answer}; it must map calls of the partition"
            " to reasons, which are texts"
        )
        return ContractViolation("contract-violation", text)

    def _copied_constants(self) -> set[Node]:
        """Return the constant calls that accepted calls use, with the calls that unpack
        their results.

        A partition gets its own copies of the constant calls that it uses. So constant
        calls do not connect partitions, and are left out when calls are grouped.
        """
        used = {
            n
            for n in self.constant_calls
            if any(u.op == "call_function" and u not in self.refused for u in n.users)
        }
        return used | {u for n in used for u in n.users if u.target is operator.getitem}

    def constants_for_host(self) -> set[Node]:
        """Return the constant calls in partitions that the host computes as well.

        The host computes a constant call if one of its users is a refused call, the
        output, or another constant call that the host computes.
        """
        copied = self._copied_constants()
        needed: set[Node] = set()
        for node in reversed(self.calls):  # users come first
            if node in copied:
                used_by_host = any(
                    u in needed or u in self.refused or u.op == "output"
                    for u in node.users
                )
                if used_by_host:
                    needed.add(node)
        return needed

    def refusals(self, constants_for_host: Iterable[Node]) -> list[Refusal]:
        """Return the refusals in graph order.

        Refused calls of delegates, and calls that only unpack results, have none.
        ``constants_for_host``: constant calls in partitions that the host computes as
        well. Each of these has a refusal, too.
        """
        why = "the host needs this constant too and computes it itself"
        reasons = dict.fromkeys(constants_for_host, why) | self.refused
        nodes = [
            n
            for n in self.calls
            if n in reasons and n.target not in (operator.getitem, CALL_DELEGATE)
        ]
        return [Refusal(n, reasons[n], n in self.not_decomposed) for n in nodes]

    def _why_too_small(self, part: list[Node]) -> dict[Node, str]:
        """Return the calls of ``part`` with a reason, if the partition is too small.

        Returns {} if the partition is large enough, or if there is no such limit.
        """
        why_too_small = self.limits.why_too_small
        if why_too_small is None:
            return {}
        why = why_too_small([n for n in part if n.target is not operator.getitem])
        return {} if why is None else dict.fromkeys(part, why)


def _constants_of(part: Sequence[Node], constant: set[Node]) -> list[Node]:
    """Return the nodes in ``constant`` that ``part`` needs, each before its users.

    These are the constant operands of the calls in ``part``, the constant operands of
    these operands, and so on. Nodes in ``part`` are left out.
    """
    members = set(part)
    found: dict[Node, None] = {}  # an ordered set
    # Depth first, without recursion. A constant that is popped for the first time is
    # pushed again, below its operands. Its operands are in ``found`` when it is popped
    # for the second time. Entries are (node, whether it is popped the second time).
    stack: list[tuple[Node, bool]] = [
        (i, False) for n in reversed(part) for i in reversed(n.all_input_nodes)
    ]
    while stack:
        node, is_second_time = stack.pop()
        if node not in constant or node in members or node in found:
            continue
        if is_second_time:
            found[node] = None
        else:
            stack.append((node, True))
            stack += [(i, False) for i in node.all_input_nodes]
    return list(found)


def _write_tags(
    parts: Sequence[Sequence[Node]],
    constant: set[Node],
    for_host: Iterable[Node],
    backend_id: str,
) -> list[str]:
    """Write ``meta["delegation_tag"]`` of every node in a partition, and return the
    names of the partitions in order.

    The tag of a node is the name of its partition. The tag of a constant with several
    copies is a tuple of names, which begins with None if the host has a copy.

    ``parts``: the calls of each partition. ``constant``: calls and placeholders that
    are constants; each partition gets a copy of those that it uses. ``for_host``:
    constant calls that the host computes as well.
    """
    # None in place of a partition's name: the copy of the host
    tags: dict[Node, list[str | None]] = {node: [None] for node in for_host}
    names = [f"{backend_id}_{k}" for k in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        for node in part:
            tags[node] = [name]
        for node in _constants_of(part, constant):
            tags.setdefault(node, []).append(name)
    for node in tags:
        # a ``getitem`` gets the tags of the call that it unpacks
        producer = node
        while producer.target is operator.getitem:
            producer = producer.args[0]  # type: ignore[assignment]
        node_tags = tags[producer]
        node.meta["delegation_tag"] = (
            node_tags[0] if len(node_tags) == 1 else tuple(node_tags)
        )
    return names

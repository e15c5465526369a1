"""``CapabilityPartitioner``: the partitioner for a backend with a check of single nodes."""

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
from .contract import DelegationSpec, Partitioner, PartitionResult, Refusal, Support
from .levels import (
    Unit,
    connected_components,
    flatten,
    group_by_level,
    levels,
    limit,
    sink,
    units,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node

WhyNot = Callable[["Node"], str | None]
"""A function that returns the reason to refuse a node, in the user's terms, or None."""


class Grouped(NamedTuple):
    """Calls in the units that must not be separated.

    ``units``: each after the units that it needs. ``kept_out``: accepted calls that
    stay on the host because of their group -> the reason. If there are any, ``units``
    is not read.
    """

    units: Sequence[Unit]
    kept_out: Mapping[Node, str]


Grouping = Callable[[Sequence["Node"], Mapping["Node", str]], Grouped]
"""A function that groups calls, which come in graph order. The second argument has the
refused calls with their reasons.
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
        """Return whether ``node`` computes a constant.

        It does if all of its operands are constants and it draws no random numbers.
        Calls come in graph order. Remembers a constant call for its users.
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
    """The partitions that a backend can run.

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
    """Gives a backend every node that it takes, in the fewest partitions without cycles.

    ``support``: a function ``why_not(node) -> str | None``, or a ``Support``.
    ``additional_checks``: more functions like ``why_not``, called before ``support``;
    the first reason counts.

    Constants, and calls that compute from constants alone, go into every partition that
    uses them. Every refusal is kept with its reason.
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
        return lambda calls, refused: Grouped(units(calls), {})

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes that the backend takes, and list the others with reasons.

        A constant call that the host needs as well is tagged and listed.
        """
        search = _Search(self, exported_program)
        parts = search.parts()
        # known once the search for partitions has ended
        for_host = search.constants_for_host()
        constant = search.constant | constant_placeholders(exported_program)
        backend_id = self.delegation_spec.backend_id
        tags = _write_tags(parts, constant, for_host, backend_id)
        specs = dict.fromkeys(tags, self.delegation_spec)
        return PartitionResult(
            exported_program, specs, refusals=search.refusals(for_host)
        )


class _Search:
    """The search for the partitions of one program, by ``partitioner``.

    ``refused``: node -> its reason, as known so far. ``final``: refused nodes that must
    not be decomposed either. ``constant``: accepted calls that compute constants. Each
    partition has its own copy of a constant that it uses. So such calls never tie two
    partitions together: those in use are left out of the groups. ``unreadable``: placeholder of a
    constant that cannot be stored -> the reason.
    """

    def __init__(
        self, partitioner: CapabilityPartitioner, program: ExportedProgram
    ) -> None:
        """Ask the backend about each call of ``program`` by itself."""
        self.partitioner = partitioner
        self.support = partitioner.support
        self.limits = partitioner.limits
        self.calls = [n for n in program.graph.nodes if n.op == "call_function"]
        self._positions = {node: k for k, node in enumerate(self.calls)}
        self.refused: dict[Node, str] = {}
        self.final: set[Node] = set()
        self.constant: set[Node] = set()
        self.unreadable: dict[Node, str] = {}
        for node, spec in placeholders(program):
            if spec.kind in CONSTANT_KINDS:
                why = why_no_bytes(constant_tensor(program, spec))
                if why:
                    self.unreadable[node] = f"{spec.target} cannot be stored: {why}"
        self.support.begin(program)
        for node in self.calls:
            reason = self._why_not(node)
            if reason is not None:
                self.refused[node] = reason
            elif self._is_constant(node):
                self.constant.add(node)
        self.grouping = partitioner.grouping(program)

    def parts(self) -> list[list[Node]]:
        """Return the partitions, each a list of nodes in graph order.

        Refuses more calls until no group, no partition of the backend and no limit
        refuses any.
        """
        # A refusal may change all other partitions. So the backend is asked when groups
        # are settled. Sizes come last, because a refusal for its size is final.
        while True:
            parts, kept_out = self._group()
            if kept_out:
                self._refuse(kept_out, final=True)
                continue
            by_backend: dict[Node, str] = {}
            for part in parts:
                nodes = [*_constants_of(part, self.constant), *part]
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
        """Return partitions of the calls accepted so far, and refusals.

        The refusals are accepted calls that their groups keep on the host. If there are
        any, there are no partitions yet.
        """
        unplaced = self._unplaced_constants()
        placed = [n for n in self.calls if n not in unplaced]
        ordered, kept_out = self.grouping(placed, self.refused)
        if kept_out:
            return [], kept_out
        # units of equal level can be one partition (see ``levels``)
        accepted = {n for n in placed if n not in self.refused}
        level = levels(ordered, accepted)
        sink(ordered, level, accepted)
        parts = group_by_level(ordered, level, accepted)
        if self.limits.connected_only:
            parts = [piece for part in parts for piece in connected_components(part)]
        if self.limits.largest is not None:
            largest = self.limits.largest
            parts = [piece for part in parts for piece in limit(part, largest)]
        return [flatten(part, self._positions) for part in parts], {}

    def _why_not(self, node: Node) -> str | None:
        """Return the reason to refuse a call, or None if the backend takes it.

        A refusal by an additional check, or because of a tensor, is recorded as final.
        """
        if node.target is CALL_DELEGATE:
            return "it is already a call of a delegate"
        if node.target is operator.getitem:
            # the call that ``node`` unpacks: both go the same way
            producer: Any = node.args[0]
            if producer.op != "call_function" or producer.target is CALL_DELEGATE:
                return f"takes an item of {producer.name}, which is not delegated"
            return self.refused.get(producer)
        for check in self.partitioner.additional_checks:
            why = self._checked(node, check(node), "an additional check")
            if why is not None:  # an empty text is a refusal, too
                self.final.add(node)
                return why
        why = self._checked(node, self.support.why_not(node), "the support check")
        return self._why_wrapped(node) if why is None else why

    def _checked(self, node: Node, why: Any, check: str) -> str | None:
        """Return ``why``, the answer of ``check``. Raises ContractViolation unless it
        is a text or None.
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

    def _why_wrapped(self, node: Node) -> str | None:
        """Return the reason to refuse a call for a tensor that it reads or returns.

        Such a tensor is a constant that cannot be stored, or a subclass that wraps
        other tensors. The refusal is recorded as final. Returns None if the call has no
        such tensor.
        """
        for value in (*node.all_input_nodes, node):
            val = value.meta.get("val")
            # nearly all are plain fake tensors, and comparing the type is much faster
            # than asking torch
            wraps = type(val) is not FakeTensor and is_traceable_wrapper_subclass(val)
            if value in self.unreadable or wraps:
                self.final.add(node)
                kind = type(val).__name__
                wrapper = f"{value.name} is a {kind}, and delegates pass plain tensors"
                return self.unreadable.get(value, wrapper)
        return None

    def _is_constant(self, node: Node) -> bool:
        """Return whether every partition can compute ``node`` by itself.

        All of its computed operands must be constants. ``zeros_like(y)`` has a constant
        value, but cannot be computed without ``y``.
        """
        if node.target is operator.getitem:
            return node.args[0] in self.constant
        computed = [i for i in node.all_input_nodes if i.op == "call_function"]
        return all(i in self.constant for i in computed) and self.support.is_constant(
            node
        )

    def _refuse(self, reasons: Mapping[Node, str], final: bool = False) -> None:
        """Refuse the nodes in ``reasons``, with the calls that unpack their results.

        If a node unpacks a result, the call that makes the result is refused as well.
        ``final``: the refused nodes must not be decomposed either.
        Raises ContractViolation for a node that is no accepted call: without progress,
        the search would not end.
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
            # the call makes all of its results, so they stay together
            if node.target is operator.getitem:
                waiting.append((node.args[0], why))  # type: ignore[arg-type]
        self.constant -= seen
        if final:
            self.final |= seen

    def _expect_refusal(self, node: Any, why: Any) -> None:
        """Raise ContractViolation unless ``why`` refuses an accepted call."""
        is_accepted = node in self._positions and node not in self.refused
        if is_accepted and isinstance(why, str):
            return
        raise self._wrong(f"refused {node} with {why!r}")

    def _wrong(self, answer: str) -> ContractViolation:
        """Return the error for a wrong answer about a partition."""
        backend_id = self.partitioner.delegation_spec.backend_id
        text = (
            f"the support of {backend_id} {answer}; it must map calls of the partition"
            " to reasons, which are texts"
        )
        return ContractViolation("contract-violation", text)

    def _unplaced_constants(self) -> set[Node]:
        """Return the constant calls that accepted calls use, with the calls that unpack
        their results.

        The search leaves them out: each partition gets copies of those that it uses.
        """
        used = {
            n
            for n in self.constant
            if any(u.op == "call_function" and u not in self.refused for u in n.users)
        }
        return used | {u for n in used for u in n.users if u.target is operator.getitem}

    def constants_for_host(self) -> set[Node]:
        """Return the constant calls in partitions that the host computes as well.

        The host needs one if a refused call, the output, or another such call uses it.
        """
        unplaced = self._unplaced_constants()
        needed: set[Node] = set()
        for node in reversed(self.calls):  # users come first
            if node in unplaced and any(
                u in needed or u in self.refused or u.op == "output" for u in node.users
            ):
                needed.add(node)
        return needed

    def refusals(self, constants_for_host: Iterable[Node]) -> list[Refusal]:
        """Return the refusals in graph order.

        They leave out delegates, and calls that only unpack results. Constant calls
        that the host computes as well are listed, too.
        """
        why = "the host needs this constant too and computes it itself"
        reasons = dict.fromkeys(constants_for_host, why) | self.refused
        nodes = [
            n
            for n in self.calls
            if n in reasons and n.target not in (operator.getitem, CALL_DELEGATE)
        ]
        return [Refusal(n, reasons[n], n in self.final) for n in nodes]

    def _why_too_small(self, part: list[Node]) -> dict[Node, str]:
        """Return the calls of ``part`` with a reason, if the partition is too small."""
        why_too_small = self.limits.why_too_small
        if why_too_small is None:
            return {}
        why = why_too_small([n for n in part if n.target is not operator.getitem])
        return {} if why is None else dict.fromkeys(part, why)


def _constants_of(part: Sequence[Node], constant: set[Node]) -> list[Node]:
    """Return the nodes in ``constant`` that ``part`` needs, each before its users."""
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
    return list(computed)


def _write_tags(
    parts: Sequence[Sequence[Node]],
    constant: set[Node],
    for_host: Iterable[Node],
    backend_id: str,
) -> list[str]:
    """Write ``meta["delegation_tag"]`` of every node in a partition, and return the
    names of the partitions in order.

    ``parts``: the calls of each partition. ``constant``: calls and placeholders that
    are constants; each partition gets a copy of those that it uses. A tag is the name
    of a partition. The tag of a constant that is in no list of ``parts`` may be a
    tuple: None if the host computes it too (``for_host``), and each partition that
    gets a copy.
    """
    tags: dict[Node, list[str | None]] = {node: [None] for node in for_host}
    names = [f"{backend_id}_{k}" for k in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        for node in part:
            tags[node] = [name]
        for node in _constants_of(part, constant):
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

"""Partitioners that need no support check: for everything, or for calls that match
patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from delegraph.backend import CompileSpec
from delegraph.partitioner import (
    CapabilityPartitioner,
    DelegationSpec,
    NodeLists,
    Partitioner,
    PartitionResult,
    WhyNot,
    tag_constant_data,
    tag_mutated_buffer,
)
from delegraph_programs import constant_placeholders
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Graph
from torch.fx.passes.utils.matcher_utils import SubgraphMatcher

if TYPE_CHECKING:
    from torch.fx import Node


class AllNodePartitioner(Partitioner):
    """Gives a backend the whole program as one partition, without asking whether the
    backend takes it.

    The delegate owns the constants, and keeps the buffers that it writes. Operators
    stay whole.
    """

    def __init__(
        self, backend_id: str, compile_specs: Sequence[CompileSpec] = ()
    ) -> None:
        """``backend_id``: the backend's name. ``compile_specs``: the settings for it."""
        super().__init__()
        self.delegation_spec = DelegationSpec(backend_id, compile_specs)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag all calls of the program, its constants, and the buffers that it writes."""
        tag = self.delegation_spec.backend_id
        for node in exported_program.graph.nodes:
            if node.op == "call_function":
                node.meta["delegation_tag"] = tag
        tag_constant_data(exported_program)
        tag_mutated_buffer(exported_program)
        return PartitionResult(exported_program, {tag: self.delegation_spec})

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """All operators of the program, for all nodes."""
        targets = dict.fromkeys(n.target for n in ep.graph.nodes)
        return [op for op in targets if isinstance(op, OpOverload)], None


class PatternPartitioner(CapabilityPartitioner):
    """Gives a backend the calls that ``patterns(exported_program)`` lists, and others
    for which ``why_not`` is None.

    ``patterns`` may be ``matches(...)``, or any function that returns lists of nodes.
    All calls of a list share a partition or all stay on the host; with
    ``grouped=False`` they are accepted one by one. ``options`` are those of
    ``CapabilityPartitioner``.
    """

    def __init__(
        self,
        patterns: NodeLists,
        backend_id: str,
        compile_specs: Sequence[CompileSpec] = (),
        *,
        why_not: WhyNot = lambda node: "it is in none of the patterns",
        grouped: bool = True,
        **options: Any,
    ) -> None:
        """``why_not`` decides about calls in no pattern; by default they all stay on
        the host, for that reason.
        """
        support = _PatternSupport(patterns, why_not)
        # asked for after ``begin`` of the support check, which fills the lists for the
        # same program
        groups = (lambda program: support.lists) if grouped else None
        super().__init__(support, backend_id, compile_specs, groups=groups, **options)


class _PatternSupport:
    """A support check that takes each call that ``patterns`` lists, and others for
    which ``otherwise`` returns None.

    ``lists``: the lists of calls that ``patterns`` returned for the present program.
    """

    def __init__(self, patterns: NodeLists, otherwise: WhyNot) -> None:
        """A check without a program yet; ``begin`` fills the lists of calls that match
        ``patterns``.
        """
        self._patterns = patterns
        self._otherwise = otherwise
        self.lists: list[Sequence[Node]] = []
        self._in_patterns: set[Node] = set()
        self._constant: set[Node] = set()

    def begin(self, exported_program: ExportedProgram) -> None:
        """List the calls of a new program that match the patterns."""
        self._constant = constant_placeholders(exported_program)
        self.lists = [list(nodes) for nodes in self._patterns(exported_program)]
        self._in_patterns = {n for nodes in self.lists for n in nodes}

    def why_not(self, node: Node) -> str | None:
        """Why ``node`` is not taken: None for a call that ``patterns`` lists;
        ``otherwise`` decides about any other.
        """
        return None if node in self._in_patterns else self._otherwise(node)

    def is_constant(self, node: Node) -> bool:
        """Whether ``node`` computes a constant from constants, without random numbers."""
        tags = getattr(node.target, "tags", ())
        is_constant = torch.Tag.nondeterministic_seeded not in tags and all(
            operand in self._constant for operand in node.all_input_nodes
        )
        if is_constant:
            self._constant.add(node)
        return is_constant

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        """{}: no partition is refused as a whole."""
        return {}


def matches(*patterns: Graph | ExportedProgram) -> NodeLists:
    """A function that lists, for a program, the calls at each place where one of
    ``patterns`` occurs.

    A pattern is the graph of an exported module, such as ``torch.export.export(module,
    inputs)``. Its placeholders, which include parameters, match any value; its numbers
    must be equal. Matches of one pattern never overlap, since torch's
    ``SubgraphMatcher`` finds them.
    """
    graphs = [p.graph if isinstance(p, ExportedProgram) else p for p in patterns]

    def find(exported_program: ExportedProgram) -> list[Sequence[Node]]:
        """The calls at each place of the program where a pattern occurs."""
        found: list[Sequence[Node]] = []
        for pattern in graphs:
            for match in SubgraphMatcher(pattern).match(exported_program.graph):
                # ``nodes_map``: node of the pattern -> the node of the program that
                # matches it
                found.append(
                    [
                        node
                        for part, node in match.nodes_map.items()
                        if part.op == "call_function"
                    ]
                )
        return found

    return find

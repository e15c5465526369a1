"""Partition without a support check: everything, or calls that match patterns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from delegraph.backend import CompileSpec
from delegraph.partitioner import DelegationSpec, Partitioner, PartitionResult, WhyNot
from delegraph_engines import (
    GroupedPartitioner,
    NodeLists,
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
    """Gives a backend the whole program as one partition, without a support check.

    The delegate owns the constants, and keeps the buffers that it writes. Operators are
    not decomposed.
    """

    def __init__(
        self, backend_id: str, compile_specs: Sequence[CompileSpec] = ()
    ) -> None:
        """Take the backend's name, and the settings for it."""
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
        """Return all operators of the program, for all nodes."""
        targets = dict.fromkeys(n.target for n in ep.graph.nodes)
        return [op for op in targets if isinstance(op, OpOverload)], None


class PatternPartitioner(GroupedPartitioner):
    """Gives a backend the calls in ``patterns``, and other calls that it supports.

    ``patterns`` may be ``matches(...)``, or any function of the program that returns
    lists of nodes. All calls of a list share a partition, or all stay on the host; with
    ``grouped=False``, each is accepted by itself. ``why_not`` returns why a call in no
    pattern stays on the host, or None. ``options`` are those of
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
        """By default, all calls in no pattern stay on the host."""
        support = _PatternSupport(patterns, why_not)
        # ``groups`` is called after ``begin`` of the support check, which fills the
        # lists for the same program
        super().__init__(
            support,
            backend_id,
            compile_specs,
            groups=lambda program: support.lists if grouped else [],
            **options,
        )


class _PatternSupport:
    """A support check for calls in ``patterns``, and those that ``otherwise`` accepts.

    ``lists``: the lists of calls that ``patterns`` returned for the present program.
    """

    def __init__(self, patterns: NodeLists, otherwise: WhyNot) -> None:
        """Make a check without a program; ``begin`` lists the calls of a program."""
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
        """Return why ``node`` is refused, or None; calls in patterns never are."""
        return None if node in self._in_patterns else self._otherwise(node)

    def is_constant(self, node: Node) -> bool:
        """Return whether ``node`` computes from constants only, without randomness."""
        tags = getattr(node.target, "tags", ())
        if torch.Tag.nondeterministic_seeded in tags:
            return False
        if not all(operand in self._constant for operand in node.all_input_nodes):
            return False
        self._constant.add(node)
        return True

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        """Return {}: no partition is refused as a whole."""
        return {}


def matches(*patterns: Graph | ExportedProgram) -> NodeLists:
    """Return a function that lists the calls at each match of a pattern in a program.

    A pattern is the graph of an exported module, such as ``torch.export.export(module,
    inputs)``. Its placeholders, with parameters, match any value; its numbers must be
    equal. Matches of one pattern never overlap, since torch's ``SubgraphMatcher`` finds
    them.
    """
    graphs = [p.graph if isinstance(p, ExportedProgram) else p for p in patterns]

    def find(exported_program: ExportedProgram) -> list[Sequence[Node]]:
        """Return the calls at each match in the program."""
        found: list[Sequence[Node]] = []
        for pattern in graphs:
            for match in SubgraphMatcher(pattern).match(exported_program.graph):
                # node of the pattern -> the node of the program that matches it
                pairs = match.nodes_map.items()
                found.append(
                    [node for part, node in pairs if part.op == "call_function"]
                )
        return found

    return find

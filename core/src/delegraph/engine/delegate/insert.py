"""Step 6: the parent, rebuilt once for all partitions."""

from __future__ import annotations

import heapq
import itertools
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputSpec
from torch.fx import Graph, Node

from ...errors import ContractViolation
from ...exported_program import (
    CALL_DELEGATE,
    argument_of,
    build_program,
    copy_node,
    output_node,
    output_values,
    placeholders,
    root_call,
)
from ...program.lowered_module import LoweredBackendModule
from ..subgraphs import put_back
from .extract import cast
from .partition import Partition, Plan, Unit, Work
from .random_order import draws
from .state import stored_by_delegates


def order(plan: Plan) -> list[Unit]:
    """Host calls and partitions so that each comes after what it needs, otherwise in graph order.

    What draws random numbers does so in graph order wherever partitions allow it.
    Raises ContractViolation, with the path, if a partition would need its own result.
    """
    random = [n for n in plan.program.graph.nodes if n.op == "call_function" and draws(n)]
    if len(random) > 1:
        try:
            return _Order(plan, random).result()
        except ContractViolation:  # a partition has calls from before and after another's: the report says so
            pass
    return _Order(plan).result()


class _Order:
    """Kahn's algorithm over the graph in which every partition is one node."""

    def __init__(self, plan: Plan, random: Sequence[Node] = ()) -> None:
        self.plan = plan
        self.units: dict[int, Unit] = {}
        self.place: dict[int, int] = {}
        for place, node in enumerate(plan.program.graph.nodes):
            if node.op not in ("placeholder", "output"):
                unit: Unit = plan.provider.get(node, node)
                self.units.setdefault(id(unit), unit)
                self.place.setdefault(id(unit), place)
        self.needs = {k: {id(n) for n in self._needed(u)} for k, u in self.units.items()}
        drawing = list(dict.fromkeys(id(plan.provider.get(n, n)) for n in random))
        for before, after in itertools.pairwise(drawing):
            self.needs[after].add(before)

    def _needed(self, unit: Unit) -> Iterator[Unit]:
        wanted = unit.inputs if isinstance(unit, Partition) else unit.all_input_nodes
        for node in wanted:
            if node.op != "placeholder":
                yield self.plan.provider.get(node, node)

    def result(self) -> list[Unit]:
        waiting = {k: len(needs) for k, needs in self.needs.items()}
        users: dict[int, list[int]] = {k: [] for k in self.units}
        for k, needs in self.needs.items():
            for n in needs:
                users[n].append(k)
        ready = [(self.place[k], k) for k, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        found: list[Unit] = []
        while ready:
            _, k = heapq.heappop(ready)
            found.append(self.units[k])
            for user in users[k]:
                waiting[user] -= 1
                if waiting[user] == 0:
                    heapq.heappush(ready, (self.place[user], user))
        if len(found) < len(self.units):
            raise self._cycle({k for k, count in waiting.items() if count})
        return found

    def _cycle(self, stuck: set[int]) -> ContractViolation:
        """Walk backwards from a stuck unit until one is met again."""
        k = min(stuck, key=self.place.__getitem__)
        path: list[int] = []
        while k not in path:
            path.append(k)
            k = min(self.needs[k] & stuck, key=self.place.__getitem__)
        names = [_name(self.units[p]) for p in reversed([*path[path.index(k) :], k])]
        hint = "nodes on such a path have to be in the partition, or it has to be split"
        return ContractViolation(
            "contract-violation", f"partitions depend on themselves: {' -> '.join(names)}", hint=hint
        )


def _name(unit: Unit) -> str:
    return f"partition {unit.tag}" if isinstance(unit, Partition) else unit.name


def insert_delegates(plan: Plan, work: Sequence[Work], handles: Iterator[int]) -> ExportedProgram:
    """The program with every partition replaced by a call of its module, in subgraphs first.

    The calls get debug handles from ``handles``.
    """
    lowered = [(body, insert_delegates(inner, work, handles)) for body, inner in plan.inner]
    dropped = put_back(plan.program, lowered)
    modules = {w.partition.tag: w.module for w in work if w.plan is plan}
    build = _Parent(plan, modules, handles, dropped)
    for unit in plan.units:
        build.add(unit)
    return build.program()


class _Parent:
    """The new graph of the program, its signature and its root."""

    def __init__(
        self,
        plan: Plan,
        modules: Mapping[str, LoweredBackendModule],
        handles: Iterator[int],
        dropped: Collection[Node],
    ) -> None:
        self.plan, self.modules, self.handles, self.dropped = plan, modules, handles, dropped
        self.root = plan.program.graph_module
        self.graph = Graph(owning_module=self.root)
        self.attached: dict[str, LoweredBackendModule] = {}
        self.taken = [n.target for n in plan.program.graph.nodes if n.op == "get_attr"]
        self.env: dict[Node, Node] = {}
        self.theirs = {n for p in plan.partitions for n in p.state}
        self.inputs = [spec for node, spec in placeholders(plan.program) if self._keep(node)]

    def _keep(self, node: Node) -> bool:
        """A constant that only delegates use goes with them, and so does a buffer that one of them keeps."""
        unused = not node.users and node not in self.dropped
        gone = node in self.theirs or (not unused and all(self._has_own(u, node) for u in node.users))
        if not gone:
            self._copy(node)
        return not gone

    def _has_own(self, user: Node, constant: Node) -> bool:
        theirs = self.plan.tags.get(user, ())
        return bool(theirs) and {*theirs} <= {*self.plan.tags.get(constant, ())}

    def _copy(self, node: Node) -> Node:
        made = copy_node(self.graph, node, lambda n: self.env[n])
        made.meta.pop("delegation_tag", None)
        self.env[node] = made
        return made

    def add(self, unit: Unit) -> None:
        if isinstance(unit, Partition):
            self._call(unit)
        else:
            self._copy(unit)

    def _call(self, partition: Partition) -> None:
        module = self._attach(self.modules[partition.tag])
        args = [self._arriving(n, partition) for n in partition.inputs]
        call = self.graph.call_function(CALL_DELEGATE, (module, *args))
        vals = tuple(_crossing(n, partition) for n in partition.outputs)
        call.meta = {"val": vals, "debug_handle": next(self.handles)}
        for k, node in enumerate(partition.outputs):
            self.env[node] = self._result(call, k, node, partition)

    def _attach(self, module: LoweredBackendModule) -> Node:
        index = len(self.attached)
        while f"lowered_module_{index}" in self.taken:
            index += 1
        name = f"lowered_module_{index}"
        self.taken.append(name)
        self.attached[name] = module
        made = self.graph.create_node("get_attr", name, name=name)
        made.meta["val"] = None
        return made

    def _arriving(self, node: Node, partition: Partition) -> Node:
        dtype = partition.boundary.get(node)
        return self.env[node] if dtype is None else self._cast(self.env[node], dtype)

    def _cast(self, node: Node, dtype: torch.dtype) -> Node:
        made = cast(self.graph, node, dtype)
        made.meta["boundary"] = True
        return made

    def _result(self, call: Node, index: int, node: Node, partition: Partition) -> Node:
        made = self.graph.call_function(operator.getitem, (call, index))
        made.meta = {k: v for k, v in node.meta.items() if k != "delegation_tag"}
        made.meta["val"] = call.meta["val"][index]
        return self._cast(made, node.meta["val"].dtype) if node in partition.boundary else made

    def program(self) -> ExportedProgram:
        stored = stored_by_delegates(self.plan.program, self.theirs)
        kept = [k for k in range(len(self.plan.program.graph_signature.output_specs)) if k not in stored]
        values = self._return(kept)
        specs = [self.plan.program.graph_signature.output_specs[k] for k in kept]
        outputs = [OutputSpec(s.kind, argument_of(v), s.target) for s, v in zip(specs, values, strict=True)]
        own = {str(n.target): getattr(self.root, str(n.target)) for n in self.env if n.op == "get_attr"}
        root = {**own, **self.attached}
        return build_program(root, self.graph, self.inputs, outputs, self.plan.program, root_call(self.plan.program))

    def _return(self, kept: Sequence[int]) -> tuple[Any, ...]:
        """The outputs at the positions ``kept``; the others are stored by delegates."""
        values = output_values(self.plan.program)
        made = torch.fx.map_arg(tuple(values[k] for k in kept), lambda n: self.env[n])
        self.graph.output(made).meta = dict(output_node(self.plan.program.graph).meta)
        return made


def _crossing(node: Node, partition: Partition) -> Any:
    dtype = partition.boundary.get(node)
    return node.meta["val"] if dtype is None else node.meta["val"].to(dtype)

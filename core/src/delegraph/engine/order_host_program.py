"""Orders the host's calls and the partitions.

Each comes after its operands. Random numbers are drawn in the order of eager PyTorch if
partitions allow that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError
from itertools import pairwise

from delegraph_programs import all_nodes, is_random
from delegraph_programs.call_names import handle_of
from delegraph_programs.higher_order_subgraphs import subgraphs_of
from delegraph_programs.inseparable_calls import sort_by_needs
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from ..delegates.find_delegates import DelegateInfo
from ..errors import ContractViolation
from .partition_records import Partition, Plan, Unit


def order(plan: Plan) -> list[Unit]:
    """Return the units of ``plan`` in an order in which the host can run them.

    A unit is a partition, or a node that the host computes. Each unit comes after the
    units that it needs; apart from that, units are in graph order. Calls that draw
    random numbers keep their order, unless a partition makes that impossible. Raises
    ContractViolation, with the path, if a partition needs its own result.
    """
    nodes = plan.program.graph.nodes
    # position of a unit's first node -> the unit
    units: dict[int, Unit] = {}
    # id of a unit -> the position of its first node; by id, because a Partition cannot
    # be a key
    position: dict[int, int] = {}
    for k, node in enumerate(nodes):
        if node.op not in ("placeholder", "output"):
            unit = plan.provider.get(node, node)
            first = position.setdefault(id(unit), k)
            units[first] = unit

    def position_of(node: Node) -> int:
        """Return the position of the unit of ``node``."""
        return position[id(plan.provider.get(node, node))]

    # From here on, the position of its first node stands for a unit. If several units
    # may run next, ``sort_by_needs`` takes the one with the smallest position.
    # ``needs``: unit -> the units that must run before it.
    needs = {
        k: set(map(position_of, _computed_inputs(unit))) for k, unit in units.items()
    }
    # units that draw random numbers, each once; to keep their order, each also needs
    # the one before it
    drawing = dict.fromkeys(
        position_of(n) for n in nodes if n.op == "call_function" and draws(n)
    )
    needs_with_draws = dict(needs)
    for before, after in pairwise(drawing):
        needs_with_draws[after] = needs[after] | {before}
    try:
        positions = sort_by_needs(needs_with_draws)
    except CycleError:
        # no order of whole partitions keeps the order of the draws; ``random_notes``
        # reports the changed order
        positions = _sort_or_raise(needs, units)
    return [units[k] for k in positions]


def _sort_or_raise(
    needs: Mapping[int, set[int]], units: Mapping[int, Unit]
) -> list[int]:
    """Return ``sort_by_needs(needs)``; raise ContractViolation if there is a cycle."""
    try:
        return sort_by_needs(needs)
    except CycleError as e:
        path = [units[k] for k in e.args[1]]  # the second argument is the cycle
        names = [
            f"partition {unit.tag}" if isinstance(unit, Partition) else unit.name
            for unit in path
        ]
        text = f"partitions depend on themselves: {' -> '.join(names)}"
        hint = "put the nodes on this path into the partition, or split the partition"
        raise ContractViolation("contract-violation", text, hint=hint) from None


def _computed_inputs(unit: Unit) -> list[Node]:
    """Return the inputs of ``unit`` that are results of other units."""
    inputs = unit.inputs if isinstance(unit, Partition) else unit.all_input_nodes
    return [node for node in inputs if node.op != "placeholder"]


def draws(node: Node) -> bool:
    """Return whether a call draws random numbers, by itself or in a subgraph."""
    if isinstance(node.target, OpOverload):
        return is_random(node)
    for graph in subgraphs_of(node):
        if any(draws(inner) for inner in all_nodes(graph)):
            return True
    return False


def random_notes(
    programs: Mapping[str, ExportedProgram], delegates: Sequence[DelegateInfo]
) -> Iterator[str]:
    """Yield notes for the report about random numbers that differ from eager's.

    Eager PyTorch draws all numbers from one generator, in the order of its calls. The
    numbers differ if a delegate draws by itself, or if the order of the calls changed.
    """
    for delegate in delegates:
        if any(map(draws, delegate.nodes)):
            yield (
                f"{delegate.name} of {delegate.method} draws random numbers by itself:"
                " a seed does not give those of eager"
            )
    for method, program in programs.items():
        # eager makes its calls in the order of their debug handles
        handles = [handle_of(n) for n in program.graph.nodes if draws(n)]
        if handles != sorted(handles):
            yield (
                f"{method} draws random numbers in another order than eager: a seed"
                " does not give those of eager"
            )

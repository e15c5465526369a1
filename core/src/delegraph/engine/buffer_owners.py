"""Decides who keeps a buffer that a program writes: the host or one delegate.

Only a delegate that has all reads and writes of the buffer can keep it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from delegraph_programs import output_values, placeholders, written_values
from delegraph_programs.exported_program import STATE_WRITES
from torch.export import ExportedProgram
from torch.fx import Node

from .partition_records import Partition, Tags, contract_broken


def give_state(
    program: ExportedProgram, tags: Tags, partitions: Mapping[str, Partition]
) -> None:
    """Let partitions own the written buffers that have their tags.

    Fills ``state`` of the partitions, and adds the buffers to their ``constants``.
    Raises ContractViolation if a written buffer has several tags, or if a node outside
    of the owner reads the buffer or computes its last value.
    """
    for buffer, last in written_values(program).items():
        if buffer not in tags:
            continue
        if len(tags[buffer]) > 1:
            text = (
                f"buffer {buffer.name} is written, so only one delegate can keep it,"
                f" not {tags[buffer]}"
            )
            raise contract_broken(text, buffer)
        partition = partitions[str(tags[buffer][0])]
        own_tags = (partition.tag,)
        outside_uses = [
            f"{u.name} reads it"
            for u in buffer.users
            if u.op == "output" or tags.get(u) != own_tags
        ]
        # no partition computes a placeholder, such as another input of the program
        if tags.get(last) != own_tags or last.op == "placeholder":
            outside_uses.append(f"{last.name} is its last value")
        # each of these needs the buffer's value, which only the delegate would know
        if outside_uses:
            text = (
                f"buffer {buffer.name} is written and tagged with {partition.tag}, but"
                f" outside of that partition {', '.join(outside_uses)}"
            )
            hint = (
                "leave its placeholder untagged: the host then passes it to the"
                " delegate and stores the new value"
            )
            raise contract_broken(text, buffer, hint)
        partition.state[buffer] = last
        if buffer not in partition.constants:
            partition.constants.append(buffer)


def returned_values(program: ExportedProgram, kept: Collection[Node]) -> set[Node]:
    """Return the nodes that the host returns or stores.

    ``kept``: the buffers that delegates keep. Their new values are left out.
    """
    stored = stored_by_delegates(program, kept)
    return {
        value
        for position, value in enumerate(output_values(program))
        if isinstance(value, Node) and position not in stored
    }


def stored_by_delegates(program: ExportedProgram, kept: Collection[Node]) -> set[int]:
    """Return the positions of the program's outputs that delegates store.

    These are the new values of the buffers in ``kept``, which delegates keep.
    """
    if not kept:
        return set()
    targets = {spec.target for node, spec in placeholders(program) if node in kept}
    return {
        position
        for position, spec in enumerate(program.graph_signature.output_specs)
        if spec.kind in STATE_WRITES and spec.target in targets
    }

"""Who keeps a buffer that a program writes: the host, or the one delegate that reads
and writes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import torch
from delegraph_programs import (
    constant_tensor,
    output_values,
    placeholders,
    written_targets,
    written_values,
)
from delegraph_programs.exported_program import (
    CONSTANT_KINDS,
    SHARED_STATE,
    STATE_WRITES,
)
from delegraph_programs.functionalize.aliases import storages
from torch.export import ExportedProgram
from torch.fx import Node

from .partition import Partition, Tags, broken


def give_state(
    program: ExportedProgram, tags: Tags, partitions: Mapping[str, Partition]
) -> None:
    """Let partitions own the written buffers whose placeholders are tagged for them:
    fills their ``state``.

    Raises ContractViolation if a buffer has several tags, or if a node outside of the
    partition reads the buffer or computes its last value.
    """
    for buffer, last in written_values(program).items():
        if buffer not in tags:
            continue
        if len(tags[buffer]) > 1:
            text = (
                f"buffer {buffer.name} is written, so only one delegate can keep it,"
                f" not {tags[buffer]}"
            )
            raise broken(text, buffer)
        partition = partitions[str(tags[buffer][0])]
        own_tags = (partition.tag,)
        outside_uses = [
            f"{u.name} reads it"
            for u in buffer.users
            if u.op == "output" or tags.get(u) != own_tags
        ]
        if tags.get(last) != own_tags or last.op == "placeholder":
            outside_uses.append(f"{last.name} is its last value")
        # each of these needs the buffer's value, which only the delegate would know
        if outside_uses:
            text = (
                f"buffer {buffer.name} is written and tagged with {partition.tag}, but"
                " outside of that partition "
            )
            hint = (
                "leave its placeholder untagged: the host then passes it to the"
                " delegate and stores what comes back"
            )
            raise broken(text + ", ".join(outside_uses), buffer, hint)
        partition.state[buffer] = last
        if buffer not in partition.constants:
            partition.constants.append(buffer)


def mark_shared_state(programs: Mapping[str, ExportedProgram]) -> Iterator[str]:
    """Mark the placeholders of tensors that one method writes and another one uses;
    yields a note for each tensor.

    The host keeps such a tensor in all of these methods, so that a file can have it in
    one place for all. Methods use the same tensor, or equal ones of one name. In this
    process each method has its own copy.
    """
    if len(programs) == 1:
        return
    uses: list[_Use] = []
    for method, program in programs.items():
        written = written_targets(program)
        for node, spec in placeholders(program):
            if spec.kind in CONSTANT_KINDS:
                target = str(spec.target)
                uses.append(
                    _Use(
                        method,
                        node,
                        target,
                        constant_tensor(program, spec),
                        target in written,
                    )
                )
    marked: set[Node] = set()
    for writer in uses:
        if writer.is_written and writer.node not in marked:
            same = [use for use in uses if use.is_same(writer)]
            users = dict.fromkeys(use.method for use in same)
            if len(users) > 1:
                marked.update(use.node for use in same)
                writers = dict.fromkeys(use.method for use in same if use.is_written)
                text = (
                    f"{writer.target} is used by {', '.join(users)} and written by"
                    f" {', '.join(writers)}:"
                )
                yield f"{text} no method sees what another writes"
    for node in marked:
        node.meta[SHARED_STATE] = True


class _Use(NamedTuple):
    """A parameter, buffer or constant of a method."""

    method: str
    node: Node
    target: str
    tensor: torch.Tensor
    is_written: bool

    def is_same(self, other: _Use) -> bool:
        """Whether both are one tensor, share memory, or have the same name and content."""
        if self.node is other.node or not set(storages(self.tensor)).isdisjoint(
            storages(other.tensor)
        ):
            return True
        if self.target != other.target or self.method == other.method:
            return False
        one = self.tensor.detach()
        another = other.tensor.detach()
        return (one.dtype, one.shape) == (another.dtype, another.shape) and torch.equal(
            one, another
        )


def returned_values(program: ExportedProgram, kept: Collection[Node]) -> set[Node]:
    """The nodes whose values the host returns or stores; not new values of buffers
    ``kept`` by delegates.
    """
    stored = stored_by_delegates(program, kept)
    return {
        v
        for k, v in enumerate(output_values(program))
        if isinstance(v, Node) and k not in stored
    }


def stored_by_delegates(program: ExportedProgram, kept: Collection[Node]) -> set[int]:
    """Positions of the program's outputs that are new values of the buffers in
    ``kept``.
    """
    if not kept:
        return set()
    targets = {s.target for n, s in placeholders(program) if n in kept}
    mutations = enumerate(program.graph_signature.output_specs)
    return {k for k, s in mutations if s.kind in STATE_WRITES and s.target in targets}

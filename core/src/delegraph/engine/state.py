"""Who keeps a buffer that a program writes: the host, or the one delegate that reads and writes it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from torch.export import ExportedProgram
from torch.fx import Node

from ..exported.functionalize.aliases import storages
from ..exported_program import (
    CONSTANT_KINDS,
    STATE_WRITES,
    constant_tensor,
    output_values,
    placeholders,
    written_targets,
    written_values,
)
from .partition import Partition, Tags, broken


def give_state(program: ExportedProgram, tags: Tags, partitions: Mapping[str, Partition]) -> None:
    """Let partitions own the written buffers whose placeholders are tagged for them: fills their ``state``.

    Raises ContractViolation if a buffer has several tags, or if a node outside of the partition reads the buffer or
    computes its last value.
    """
    for buffer, last in written_values(program).items():
        if buffer not in tags:
            continue
        if len(tags[buffer]) > 1:
            text = f"buffer {buffer.name} is written, so only one delegate can keep it, not {tags[buffer]}"
            raise broken(text, buffer)
        partition = partitions[str(tags[buffer][0])]
        own_tags = (partition.tag,)
        outside_uses = [f"{u.name} reads it" for u in buffer.users if u.op == "output" or tags.get(u) != own_tags]
        if tags.get(last) != own_tags or last.op == "placeholder":
            outside_uses.append(f"{last.name} is its last value")
        if outside_uses:  # each of these needs the buffer's value, which only the delegate would know
            text = f"buffer {buffer.name} is written and tagged with {partition.tag}, but outside of that partition "
            hint = "leave its placeholder untagged: the host then passes it to the delegate and stores what comes back"
            raise broken(text + ", ".join(outside_uses), buffer, hint)
        partition.state[buffer] = last
        if buffer not in partition.constants:
            partition.constants.append(buffer)


def shared_state_notes(programs: Mapping[str, ExportedProgram]) -> Iterator[str]:
    """A note for each tensor that one method writes and another one uses.

    Each lowered method has its own copy of the tensor, so no method sees what another one writes.
    """
    if len(programs) == 1:
        return
    users: dict[int, dict[str, str]] = {}  # storage -> method -> the tensor's name in that method
    writers: dict[int, dict[str, None]] = {}  # storage -> the methods that write it, in order
    for method, program in programs.items():
        written = written_targets(program)
        for spec in (s for _, s in placeholders(program) if s.kind in CONSTANT_KINDS):
            for storage in storages(constant_tensor(program, spec)):
                users.setdefault(storage, {})[method] = str(spec.target)
                if spec.target in written:
                    writers.setdefault(storage, {})[method] = None
    for storage, by in writers.items():
        if len(users[storage]) > 1:
            name, all_users = next(iter(users[storage].values())), ", ".join(users[storage])
            yield f"{name} is used by {all_users} and written by {', '.join(by)}: no method sees what another writes"


def returned_values(program: ExportedProgram, kept: Collection[Node]) -> set[Node]:
    """The nodes whose values the host returns or stores; not new values of buffers ``kept`` by delegates."""
    stored = stored_by_delegates(program, kept)
    return {v for k, v in enumerate(output_values(program)) if isinstance(v, Node) and k not in stored}


def stored_by_delegates(program: ExportedProgram, kept: Collection[Node]) -> set[int]:
    """Positions of the program's outputs that are new values of the buffers in ``kept``."""
    if not kept:
        return set()
    targets = {s.target for n, s in placeholders(program) if n in kept}
    mutations = enumerate(program.graph_signature.output_specs)
    return {k for k, s in mutations if s.kind in STATE_WRITES and s.target in targets}

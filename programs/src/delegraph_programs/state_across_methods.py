"""Marks tensors that one method of a program writes and another one uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from .exported_program import (
    SHARED_STATE,
    constant_tensors,
    placeholders,
    written_targets,
)
from .functionalize.aliases import have_common_storage


def mark_shared_state(programs: Mapping[str, ExportedProgram]) -> Iterator[str]:
    """Mark the placeholders of tensors that one method writes and another one uses.

    The host keeps such a tensor in all of these methods, so that a file can have it in
    one place for all. In this process each method has its own copy, so no method sees
    the writes of another one. Yields a note about that for each tensor; marks when the
    iteration ends.
    """
    if len(programs) == 1:
        return
    uses: list[_Use] = []
    for method, program in programs.items():
        written = written_targets(program)
        specs = dict(placeholders(program))
        for node, tensor in constant_tensors(program).items():
            target = str(specs[node].target)
            uses.append(_Use(method, node, target, tensor, target in written))
    marked: set[Node] = set()
    for writer in uses:
        if not writer.is_written or writer.node in marked:
            continue
        same = [use for use in uses if use.is_same(writer)]
        users = dict.fromkeys(use.method for use in same)
        if len(users) > 1:
            marked.update(use.node for use in same)
            writers = dict.fromkeys(use.method for use in same if use.is_written)
            yield (
                f"{writer.target} is used by {', '.join(users)} and written by"
                f" {', '.join(writers)}: no method sees what another writes"
            )
    for node in marked:
        node.meta[SHARED_STATE] = True


class _Use(NamedTuple):
    """A tensor that a method uses: its placeholder, name and value.

    ``is_written``: the method writes it.
    """

    method: str
    node: Node
    target: str
    tensor: torch.Tensor
    is_written: bool

    def is_same(self, other: _Use) -> bool:
        """Return whether both are one tensor of the user's model.

        That holds if they share memory. It also holds for two methods if names and
        contents are equal, because each export may copy the model.
        """
        if self.node is other.node or have_common_storage(self.tensor, other.tensor):
            return True
        if self.target != other.target or self.method == other.method:
            return False
        one = self.tensor.detach()
        another = other.tensor.detach()
        same_type = one.dtype is another.dtype and one.shape == another.shape
        return same_type and torch.equal(one, another)

"""Marks tensors that one method of a program writes and another one uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from .exported_program import (
    CONSTANT_KINDS,
    SHARED_STATE,
    constant_tensor,
    placeholders,
    written_targets,
)
from .functionalize.aliases import storages


def mark_shared_state(programs: Mapping[str, ExportedProgram]) -> Iterator[str]:
    """Mark the placeholders of tensors that one method writes and another one uses.

    Yields a note for each tensor, and marks when the iteration ends.
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
        """Return whether both are one tensor.

        That holds if they share memory. It also holds for two methods if names and
        contents are equal.
        """
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

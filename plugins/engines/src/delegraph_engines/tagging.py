"""Tags for the tensors that delegates are to own (names as in ExecuTorch)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delegraph_programs import constant_placeholders, written_values
from delegraph_programs.exported_program import SHARED_STATE

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


def tag_constant_data(program: ExportedProgram) -> None:
    """Tag every constant that is never written for each partition that uses it.

    Call this after calls are tagged. A constant that no delegated call uses stays
    untagged, and so does a buffer that the program writes. The signature shows which
    buffers are written, even if no user of the placeholder shows a write.
    """
    constant = constant_placeholders(program)
    for node in program.graph.nodes:
        if node in constant:
            _tag(node, sorted({tag for user in node.users for tag in tags_of(user)}))


def tag_mutated_buffer(program: ExportedProgram) -> None:
    """Tag each written buffer for the partition that alone reads and writes it.

    That partition has all calls that read the buffer or compute its last value. The
    delegate then keeps the buffer between calls. If there is no such partition, the
    buffer stays with the host, which passes it to delegates and stores their results.
    So does a buffer that several methods use (``SHARED_STATE``).
    """
    for buffer, last in written_values(program).items():
        if SHARED_STATE in buffer.meta:
            continue
        tags = {tags_of(node) for node in (last, *buffer.users)}
        # all nodes that read or compute the buffer have equal tags; if that is one tag,
        # the buffer gets it
        if last.op != "placeholder" and len(tags) == 1:
            (shared,) = tags
            _tag(buffer, shared if len(shared) == 1 else ())


def tags_of(node: Node) -> tuple[str, ...]:
    """Return the tags of a node as a tuple, which may be empty."""
    tag = node.meta.get("delegation_tag")
    if tag is None:
        return ()
    return tuple(tag) if isinstance(tag, (tuple, list)) else (tag,)


def _tag(node: Node, tags: list[str] | tuple[str, ...]) -> None:
    """Set the tags of a node; an empty list leaves it as it is."""
    if tags:
        node.meta["delegation_tag"] = tags[0] if len(tags) == 1 else tuple(tags)

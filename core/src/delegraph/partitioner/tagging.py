"""Tags for the tensors that delegates are to own (names as in ExecuTorch)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..exported_program import constant_placeholders, written_values

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


def tag_constant_data(program: ExportedProgram) -> None:
    """Tag parameters, buffers and constants that are never written for every partition that uses them.

    Call it once the calls are tagged. A constant that no delegated call uses stays untagged, and so does a buffer that
    the program writes. The signature says which those are; the users of the placeholder need not show the write.
    """
    constant = constant_placeholders(program)
    for node in program.graph.nodes:
        if node in constant:
            _tag(node, sorted({tag for user in node.users for tag in tags_of(user)}))


def tag_mutated_buffer(program: ExportedProgram) -> None:
    """Tag each written buffer for the partition that has all its readers and makes its last value, if there is one.

    The delegate then keeps the buffer from call to call. Any other written buffer stays with the host, which passes it
    to delegates and stores what they return.
    """
    for buffer, last in written_values(program).items():
        tags = {tags_of(node) for node in (last, *buffer.users)}
        if last.op != "placeholder" and len(tags) == 1:
            (shared,) = tags
            _tag(buffer, shared if len(shared) == 1 else ())


def tags_of(node: Node) -> tuple[str, ...]:
    """The tags of a node: none, one or several."""
    given = node.meta.get("delegation_tag")
    return tuple(given) if isinstance(given, (tuple, list)) else () if given is None else (given,)


def _tag(node: Node, tags: list[str] | tuple[str, ...]) -> None:
    """Set the tags of a node."""
    if tags:
        node.meta["delegation_tag"] = tags[0] if len(tags) == 1 else tuple(tags)

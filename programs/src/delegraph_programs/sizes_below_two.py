"""Explains errors of calls with sizes of 0 and 1, for which torch did not trace.

torch traces a dynamic size as if it were at least 2. Most operators compute the same
for 0 and 1. ``squeeze`` does not: it drops a dimension of size 1. The value then has
fewer dimensions than recorded. Delegates and decompositions that use the value were
made for the recorded number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from .errors import InputError
from .exported_program import user_inputs
from .operator_schema import overloads
from .source_line import source_of

_SQUEEZES = overloads(
    "squeeze.default squeeze.dim squeeze.dims"
    " squeeze_copy.default squeeze_copy.dim squeeze_copy.dims"
)
_HINT = (
    "call it with a size of at least 2, or export a program of its own for this size"
)


def squeeze_breaks_rank(node: Node, inside: bool) -> bool:
    """Return whether ``node`` is a squeeze that may drop a dimension that is needed.

    ``inside``: the graph is a branch or loop body (see ``_is_rank_relied_on``).
    """
    if node.target not in _SQUEEZES or not _droppable(node):
        return False
    return _is_rank_relied_on(node, inside)


def check_rank(value: torch.Tensor, node: Node) -> torch.Tensor:
    """Return ``value``, the result of the squeeze ``node``.

    Raises InputError if its rank is not the recorded one.
    """
    if value.dim() == node.meta["val"].dim():
        return value
    dims = ", ".join(str(d) for d in _droppable(node))
    text = (
        f"{node.target} drops dimension {dims}, whose size is 1 in this call; the"
        " program was exported for sizes at which it stays, and what follows counts on"
        " it"
    )
    hint = f"{_HINT}; x[0], select and reshape mean the same at all sizes"
    raise InputError("input-invalid", text, node, source_of(node), hint)


def _droppable(node: Node) -> list[int]:
    """Return the dynamic dimensions that the squeeze ``node`` drops if their size is 1.

    They are counted from 0.
    """
    operand: Any = node.args[0]
    shape = operand.meta["val"].shape
    if not shape:
        return []
    # without an argument, a squeeze drops each dimension of size 1
    argument: Any = node.args[1] if len(node.args) > 1 else range(len(shape))
    dims = [argument] if isinstance(argument, int) else argument
    return sorted(d % len(shape) for d in dims if isinstance(shape[d], torch.SymInt))


def _is_rank_relied_on(node: Node, inside: bool) -> bool:
    """Return whether a user of ``node`` relies on the rank of its value.

    Element-wise operators do not, but users of their results may. ``inside``: the graph
    is a branch or loop body, and its outputs must have the recorded rank.
    """
    seen = {node}
    waiting = [node]
    while waiting:
        for user in waiting.pop().users:
            pointwise = (
                isinstance(user.target, OpOverload)
                and torch.Tag.pointwise in user.target.tags
            )
            relies_on_rank = inside if user.op == "output" else not pointwise
            if relies_on_rank:
                return True
            waiting += {user} - seen
            seen.add(user)
    return False


def failed_at(
    program: ExportedProgram, inputs: Sequence[Any], error: Exception
) -> InputError | None:
    """Return an InputError that explains ``error`` by a dynamic size of 0 or 1.

    None if no input has such a size; ``error`` then has another cause. ``inputs``:
    those of the call that raised ``error``.
    """
    for node, value in zip(user_inputs(program), inputs, strict=True):
        recorded = node.meta.get("val")
        shape = recorded.shape if isinstance(recorded, torch.Tensor) else ()
        for dim, size in enumerate(shape):
            if isinstance(size, torch.SymInt) and value.shape[dim] < 2:
                # torch's errors may go on with traces of its own code
                reason = str(error).strip()[:200]
                text = (
                    f"input {node.name} has size {value.shape[dim]} in dimension {dim},"
                    " and torch traced the program for sizes of at least 2 there:"
                    f" {type(error).__name__}: {reason}"
                )
                return InputError("input-invalid", text, hint=_HINT)
    return None

"""Name the events of delegates for a profiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from delegraph.delegates import delegate_calls
from torch.export import ExportedProgram
from torch.fx import GraphModule


@dataclass(frozen=True)
class DelegateDebug:
    """The facts with which a profiler names the events of a delegate.

    ``debug_handle_map``: the backend's debug identifier -> debug handles of operators.
    """

    backend_id: str
    debug_handle_map: dict[Any, tuple[int, ...]]


def delegate_map(program: ExportedProgram | GraphModule) -> dict[int, DelegateDebug]:
    """Return debug handle of a delegate's call -> facts about the delegate.

    Two delegates may use the same debug identifier, so an event belongs to a handle and
    an identifier together.
    """
    return {
        node.meta["debug_handle"]: DelegateDebug(
            module.backend_id, dict(module.meta.get("debug_handle_map") or {})
        )
        for node, module in delegate_calls(program)
    }

"""Map instructions and delegates of a program file to operators and lines of the model.

The map is a file that is saved with the program. A profile has the numbers of
instructions, and in delegates the identifiers of the backend. ``DebugFile`` returns the
source lines of both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph.errors import FormatError
from delegraph.formats import ProgramContents
from delegraph_programs import source_of

if TYPE_CHECKING:
    from .emit.method import DebugHandles

SCHEMA = "delegraph.pte-debug/1"


def collect_debug(
    program: ProgramContents, handles: Mapping[str, DebugHandles]
) -> bytes:
    """Return the content of the debug file."""
    methods = {
        name: _entry(program, name, handles_of_method)
        for name, handles_of_method in handles.items()
    }
    return json.dumps({"schema": SCHEMA, "methods": methods}, indent=1).encode()


def _entry(
    program: ProgramContents, name: str, handles: DebugHandles
) -> dict[str, Any]:
    """Return the entry of a method in the debug file.

    ``instructions``: the debug handle of each. ``delegates``: the backend's identifier
    -> debug handles. ``operators``: debug handle -> operator and source line.
    """
    # Imported here, since reading a debug file needs no torch.
    from .emit.stack_frames import nodes_of

    operators: dict[str, dict[str, str]] = {}
    for node in nodes_of(program.exported_program(name).graph_module):
        handle = node.meta.get("debug_handle")
        if handle is not None and str(handle) not in operators:
            operators[str(handle)] = {
                "operator": str(node.target),
                "source": str(source_of(node) or ""),
            }
    return {
        "instructions": list(handles.instructions),
        "delegates": [
            {str(identifier): list(listed) for identifier, listed in delegate.items()}
            for delegate in handles.delegates
        ],
        "operators": operators,
    }


@dataclass(frozen=True)
class DebugFile:
    """A debug file: ``operator_at`` and ``operators_in`` look up a profile's entries."""

    methods: Mapping[str, Any]

    @staticmethod
    def read(path: str | Path) -> DebugFile:
        """Read a debug file. Raises FormatError for another file."""
        try:
            content = json.loads(Path(path).read_text("utf-8"))
            if content["schema"] != SCHEMA:
                raise ValueError(f"its schema is {content['schema']!r}, not {SCHEMA!r}")
            return DebugFile(dict(content["methods"]))
        except (ValueError, KeyError, TypeError) as e:
            text = f"{path} is not a debug file of a program: {e}"
            raise FormatError("format-invalid", text) from e

    def operator_at(self, method: str, instruction: int) -> str:
        """Return the operator and line of an instruction; "" if it has none."""
        content = self.methods[method]
        return self._describe(content, content["instructions"][instruction])

    def operators_in(
        self, method: str, delegate: int, identifier: int | str
    ) -> list[str]:
        """Return the operators and lines of an identifier in a delegate.

        ``delegate`` is the number of the delegate in the method.
        """
        content = self.methods[method]
        handles = content["delegates"][delegate].get(str(identifier), [])
        return [self._describe(content, handle) for handle in handles]

    @staticmethod
    def _describe(content: Mapping[str, Any], handle: int | None) -> str:
        """Return the operator and line of a debug handle; "" for an unknown one."""
        known = content["operators"].get(str(handle))
        return f"{known['operator']} at {known['source']}" if known else ""

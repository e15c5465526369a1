"""The side file of a program: which operators, and which lines of the model, its
instructions and delegates stand for.

A profile names instructions by position, and inside of delegates the backend's own
identifiers. ``DebugFile`` reads both back to source lines.
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
    """The content of the side file."""
    methods = {
        name: _method(program, name, of_method) for name, of_method in handles.items()
    }
    return json.dumps({"schema": SCHEMA, "methods": methods}, indent=1).encode()


def _method(
    program: ProgramContents, name: str, handles: DebugHandles
) -> dict[str, Any]:
    # with torch, which reading a side file does without
    from .emit.sources import nodes_of

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
            {str(k): list(v) for k, v in of.items()} for of in handles.delegates
        ],
        "operators": operators,
    }


@dataclass(frozen=True)
class DebugFile:
    """A side file that was read: ``operator_at`` and ``operators_in`` say what a
    profile's entries stand for.
    """

    methods: Mapping[str, Any]

    @staticmethod
    def read(path: str | Path) -> DebugFile:
        """Raises FormatError for what is no side file."""
        try:
            content = json.loads(Path(path).read_text("utf-8"))
            if content["schema"] != SCHEMA:
                raise ValueError(f"its schema is {content['schema']!r}")
            return DebugFile(dict(content["methods"]))
        except (ValueError, KeyError, TypeError) as e:
            raise FormatError(
                "format-invalid", f"{path} is no debug file of a program: {e}"
            ) from e

    def operator_at(self, method: str, instruction: int) -> str:
        """The operator and the line that an instruction was emitted for; empty if it
        was emitted for none.
        """
        content = self.methods[method]
        return self._describe(content, content["instructions"][instruction])

    def operators_in(
        self, method: str, delegate: int, identifier: int | str
    ) -> list[str]:
        """The operators and lines that an identifier of a delegate stands for."""
        content = self.methods[method]
        return [
            self._describe(content, h)
            for h in content["delegates"][delegate].get(str(identifier), [])
        ]

    @staticmethod
    def _describe(content: Mapping[str, Any], handle: int | None) -> str:
        known = content["operators"].get(str(handle))
        return f"{known['operator']} at {known['source']}" if known else ""

"""TOSA backend of delegraph: ATen rules, a typed graph and a flatbuffer writer.

The names in ``__all__`` are for plugins that build on this one
(docs/backend-authors.md). Each name is imported when it is first used. Only
``compile_program`` and the names of ``device_backend`` import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import compile_program
    from .device_backend import DevicePartitioner, run_compiler, split_flags
    from .evaluate import Program, materialize
    from .ir import operators
    from .ir.graph import Graph, Operator, Value
    from .ir.types import DType, Type
    from .serialize import TosaFile, convert, read
    from .spec import TosaSpec, narrow
    from .text import parse, render
    from .validate import violations

__all__ = [
    "DType",
    "DevicePartitioner",
    "Graph",
    "Operator",
    "Program",
    "TosaFile",
    "TosaSpec",
    "Type",
    "Value",
    "compile_program",
    "convert",
    "materialize",
    "narrow",
    "operators",
    "parse",
    "read",
    "render",
    "run_compiler",
    "split_flags",
    "violations",
]

_NAMES = {
    "backend": "compile_program",
    "device_backend": "DevicePartitioner run_compiler split_flags",
    "evaluate": "Program materialize",
    "ir.graph": "Graph Operator Value",
    "ir.types": "DType Type",
    "serialize": "TosaFile convert read",
    "spec": "TosaSpec narrow",
    "text": "parse render",
    "validate": "violations",
}
"""Maps a module to the public names in it."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:
    # Hidden from type checkers: a module with __getattr__ accepts any misspelt name.
    def __getattr__(name: str) -> Any:
        if name == "operators":
            return import_module(".ir.operators", __name__)
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Programs of ``torch.export``: their functional form, decomposition on demand,
subgraphs, and calls.

Importing this package does not import torch; the first use of a name that needs torch
does. The names below are public. The modules serve the distributions of delegraph, and
may change in any release.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import DelegraphError, InputError, Unsupported

if TYPE_CHECKING:
    from .assertion_calls import erase, find_checks
    from .call_names import is_operator, operator_name
    from .compute_constant_calls import ConstantValues
    from .decompose.decompose_calls import decompose_calls
    from .decompose.decomposition_tables import to_core
    from .exported_program import (
        add_constant,
        argument_of,
        build_program,
        constant_placeholders,
        constant_tensor,
        copy_node,
        copy_program,
        flat_arguments,
        flat_call,
        name_outputs,
        output_node,
        output_values,
        placeholder_of,
        placeholders,
        root_call,
        user_inputs,
        written_targets,
        written_values,
    )
    from .functionalize.normalize import normalize
    from .higher_order_subgraphs import all_nodes
    from .input_size_conditions import input_names
    from .load_weights import load_weights
    from .operator_schema import bound_arguments, is_random
    from .source_line import Source, line_of, source_of
    from .tensor_bytes import memory_of, why_no_bytes
    from .tracing_lock import TRACING

__version__ = "0.1.0"

_MODULES = {
    "assertion_calls": "erase find_checks",
    "call_names": "is_operator operator_name",
    "compute_constant_calls": "ConstantValues",
    "decompose.decomposition_tables": "to_core",
    "decompose.decompose_calls": "decompose_calls",
    "exported_program": (
        "add_constant argument_of build_program constant_placeholders constant_tensor "
        "copy_node copy_program flat_arguments flat_call name_outputs output_node "
        "output_values placeholder_of placeholders root_call user_inputs "
        "written_targets written_values"
    ),
    "functionalize.normalize": "normalize",
    "input_size_conditions": "input_names",
    "operator_schema": "bound_arguments is_random",
    "source_line": "Source line_of source_of",
    "higher_order_subgraphs": "all_nodes",
    "tensor_bytes": "memory_of why_no_bytes",
    "tracing_lock": "TRACING",
    "load_weights": "load_weights",
}
"""Module -> its public names. A module is imported when one of its names is first used.
"""
_MODULE_OF: dict[str, str] = {}
"""Public name -> its module."""
for _module, _names in _MODULES.items():
    _MODULE_OF.update(dict.fromkeys(_names.split(), _module))

__all__ = [
    "TRACING",
    "ConstantValues",
    "DelegraphError",
    "InputError",
    "Source",
    "Unsupported",
    "__version__",
    "add_constant",
    "all_nodes",
    "argument_of",
    "bound_arguments",
    "build_program",
    "constant_placeholders",
    "constant_tensor",
    "copy_node",
    "copy_program",
    "decompose_calls",
    "erase",
    "find_checks",
    "flat_arguments",
    "flat_call",
    "input_names",
    "is_operator",
    "is_random",
    "line_of",
    "load_weights",
    "memory_of",
    "name_outputs",
    "normalize",
    "operator_name",
    "output_node",
    "output_values",
    "placeholder_of",
    "placeholders",
    "root_call",
    "source_of",
    "to_core",
    "user_inputs",
    "why_no_bytes",
    "written_targets",
    "written_values",
]

if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, and keep it."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

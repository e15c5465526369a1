"""delegraph: lower PyTorch programs to hardware backends that are installed with pip.

Importing this package imports neither torch nor the plugins; both come with the first
name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    BackendNotFound,
    ContractViolation,
    DelegraphError,
    DelegraphWarning,
    FormatError,
    FormatNotFound,
    InputError,
    InternalError,
    NamedDataError,
    NamedDataTypeError,
    NoRuntime,
    NotFullyDelegated,
    OptionError,
    PluginBroken,
    PluginConflict,
    PluginIncompatible,
    PluginUnavailable,
    UnknownMethod,
    Unsupported,
    WriteError,
)

if TYPE_CHECKING:
    from .api import Choices, export, load, lower
    from .discovery.registry import (
        Registry,
        backends,
        default_registry,
        get_backend,
        get_partitioner,
        get_runtime,
        register,
    )
    from .host.verify import Verification
    from .lowered_program import LoweredProgram
    from .partitioner import Refusal
    from .report.model import Report

__version__ = "0.1.0"

__all__ = [
    "BackendNotFound",
    "Choices",
    "ContractViolation",
    "DelegraphError",
    "DelegraphWarning",
    "FormatError",
    "FormatNotFound",
    "InputError",
    "InternalError",
    "LoweredProgram",
    "NamedDataError",
    "NamedDataTypeError",
    "NoRuntime",
    "NotFullyDelegated",
    "OptionError",
    "PluginBroken",
    "PluginConflict",
    "PluginIncompatible",
    "PluginUnavailable",
    "Refusal",
    "Registry",
    "Report",
    "UnknownMethod",
    "Unsupported",
    "Verification",
    "WriteError",
    "__version__",
    "backends",
    "default_registry",
    "export",
    "get_backend",
    "get_partitioner",
    "get_runtime",
    "load",
    "lower",
    "register",
]

_NAMES = {
    "api": "Choices export load lower",
    "discovery.registry": (
        "Registry backends default_registry get_backend get_partitioner get_runtime"
        " register"
    ),
    "host.verify": "Verification",
    "lowered_program": "LoweredProgram",
    "partitioner": "Refusal",
    "report.model": "Report",
}
"""Module -> its public names. A module is imported when one of its names is first used.
"""
_ELSEWHERE = {
    "BucketedProgram": "delegraph_executorch.buckets:BucketedProgram",
    "Comparison": "delegraph_analysis:Comparison",
    "QuantizationErrors": "delegraph_quantize:QuantizationErrors",
    "compare": "delegraph_analysis:compare",
    "lower_buckets": "delegraph_executorch.buckets:lower_buckets",
    "quantization_errors": "delegraph_quantize:quantization_errors",
    "quantize": "delegraph_quantize:quantize",
}
"""Names of delegraph that other distributions of this project have -> their targets
there.
"""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


# hidden from type checkers, which would otherwise accept any name
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, and keep it. Raises
        AttributeError for any other name.
        """
        if name in _ELSEWHERE:
            from .discovery.first_party import provided

            return provided(_ELSEWHERE[name], f"delegraph.{name}")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

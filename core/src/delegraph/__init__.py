"""delegraph: lower PyTorch programs to hardware backends that are installed with pip.

Importing this package imports neither torch nor the plugins; both come with the first name that needs them.
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
    from .api import export, load, lower
    from .buckets import BucketedProgram, lower_buckets
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
    from .quantization.flow import quantize
    from .quantization.layer_errors import QuantizationErrors, quantization_errors
    from .report.model import Report

__version__ = "0.1.0"

__all__ = [
    "BackendNotFound",
    "BucketedProgram",
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
    "QuantizationErrors",
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
    "lower_buckets",
    "quantization_errors",
    "quantize",
    "register",
]

_NAMES = {
    "api": "export load lower",
    "buckets": "BucketedProgram lower_buckets",
    "discovery.registry": "Registry backends default_registry get_backend get_partitioner get_runtime register",
    "host.verify": "Verification",
    "lowered_program": "LoweredProgram",
    "partitioner": "Refusal",
    "quantization.flow": "quantize",
    "quantization.layer_errors": "QuantizationErrors quantization_errors",
    "report.model": "Report",
}
"""Module -> the public names in it, which import it when one is first used."""
_ELSEWHERE = {
    "Comparison": "delegraph_analysis:Comparison",
    "compare": "delegraph_analysis:compare",
}
"""Names of earlier versions -> where another distribution has them now."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # a type checker that saw it would take any name, misspelt or not

    def __getattr__(name: str) -> Any:
        if name in _ELSEWHERE:
            from .discovery.own import provided

            return provided(_ELSEWHERE[name], f"delegraph.{name}")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""delegraph: lower PyTorch programs to hardware backends that are installed with pip.

Importing this package imports neither torch nor the plugins. Both are imported when the
first name that needs torch or a plugin is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .discovery.import_by_name import lazy_names
from .errors import DelegraphError, DelegraphWarning

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
    "Choices",
    "DelegraphError",
    "DelegraphWarning",
    "LoweredProgram",
    "Refusal",
    "Registry",
    "Report",
    "Verification",
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

_IN_OTHER_DISTRIBUTIONS = {
    "BucketedProgram": "delegraph_executorch.buckets:BucketedProgram",
    "Comparison": "delegraph_analysis:Comparison",
    "QuantizationErrors": "delegraph_quantize:QuantizationErrors",
    "compare": "delegraph_analysis:compare",
    "lower_buckets": "delegraph_executorch.buckets:lower_buckets",
    "quantization_errors": "delegraph_quantize:quantization_errors",
    "quantize": "delegraph_quantize:quantize",
}
"""Public name of delegraph -> its target in another distribution of this project."""


if not TYPE_CHECKING:  # hidden from type checkers, which would accept any name
    _import = lazy_names(
        __name__,
        {
            ".api": "Choices export load lower",
            ".discovery.registry": (
                "Registry backends default_registry get_backend get_partitioner"
                " get_runtime register"
            ),
            ".host.verify": "Verification",
            ".lowered_program": "LoweredProgram",
            ".partitioner": "Refusal",
            ".report.model": "Report",
        },
    )

    def __getattr__(name: str) -> Any:
        """Return the object of a public name. Raises AttributeError for other names.

        A name of this distribution is imported when it is first used, and kept. A name
        in ``_IN_OTHER_DISTRIBUTIONS`` is looked up at each use, and raises
        PluginUnavailable if its distribution is not installed.
        """
        if name in _IN_OTHER_DISTRIBUTIONS:
            from .discovery.first_party import provided

            return provided(_IN_OTHER_DISTRIBUTIONS[name], f"delegraph.{name}")
        value = _import(name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

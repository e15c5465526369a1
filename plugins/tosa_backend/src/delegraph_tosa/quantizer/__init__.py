"""``TOSAQuantizer`` for torchao's PT2E flow: ``prepare_pt2e``, ``prepare_qat_pt2e``, ``convert_pt2e``."""

from __future__ import annotations

from delegraph.errors import PluginUnavailable

try:
    import torchao.quantization.pt2e  # noqa: F401
except ModuleNotFoundError as e:
    raise PluginUnavailable(
        "plugin-unavailable",
        "TOSAQuantizer needs torchao, which is not installed",
        hint="pip install 'delegraph-tosa[quantize]'",
    ) from e

from .annotate import TOSAQuantizer
from .settings import Precision

__all__ = ["Precision", "TOSAQuantizer"]

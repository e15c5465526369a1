"""``TOSAQuantizer`` for torchao: ``prepare_pt2e``, QAT and ``convert_pt2e``."""

from __future__ import annotations

from delegraph.errors import PluginUnavailable
from delegraph_engines import quietly

try:
    with quietly():
        import torchao.quantization.pt2e  # noqa: F401
except ModuleNotFoundError as e:
    text = "TOSAQuantizer needs torchao, which is not installed"
    hint = "pip install delegraph-quantize"
    raise PluginUnavailable("plugin-unavailable", text, hint=hint) from e

from .annotate import TOSAQuantizer
from .settings import Precision

__all__ = ["Precision", "TOSAQuantizer"]

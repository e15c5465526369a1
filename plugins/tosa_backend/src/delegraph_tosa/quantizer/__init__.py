"""``TOSAQuantizer`` for torchao's PT2E flow: ``prepare_pt2e``, ``prepare_qat_pt2e``, ``convert_pt2e``."""

from __future__ import annotations

import logging

from delegraph.errors import PluginUnavailable


def _import_torchao() -> None:
    """Without what it logs while it is imported: which of its kernels for GPUs do not load here."""
    levels = {logger: logger.level for logger in map(logging.getLogger, ("torchao", "torch.utils._pytree"))}
    try:
        for logger in levels:
            logger.setLevel(logging.ERROR)
        import torchao.quantization.pt2e  # noqa: F401
    except ModuleNotFoundError as e:
        text, hint = "TOSAQuantizer needs torchao, which is not installed", "pip install 'delegraph-tosa[quantize]'"
        raise PluginUnavailable("plugin-unavailable", text, hint=hint) from e
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


_import_torchao()

from .annotate import TOSAQuantizer  # noqa: E402
from .settings import Precision  # noqa: E402

__all__ = ["Precision", "TOSAQuantizer"]

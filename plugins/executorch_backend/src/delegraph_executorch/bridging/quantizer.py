"""Make ExecuTorch's quantizer for XNNPACK, with the settings of ExecuTorch's own tools."""

from __future__ import annotations

import warnings
from typing import Any


def make_xnnpack_quantizer() -> Any:
    """Return a quantizer to int8.

    Weights are symmetric with a scale for each channel, inputs have one scale each.
    """
    with warnings.catch_warnings():
        # ExecuTorch and torchao warn about their own imports.
        warnings.simplefilter("ignore")
        from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as theirs
    config = theirs.get_symmetric_quantization_config(is_per_channel=True)
    return theirs.XNNPACKQuantizer().set_global(config)

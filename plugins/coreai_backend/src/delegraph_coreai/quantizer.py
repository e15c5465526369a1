"""``CoreAIQuantizer`` for torchao: weights in int8 or int4, values in floats.

Core AI stores such weights as they are, and expands them when it loads a model.
"""

from __future__ import annotations

from typing import Any

import torch
from delegraph.errors import OptionError, PluginUnavailable
from delegraph_engines import quietly
from torch.fx import GraphModule, Node

try:
    with quietly():
        from torchao.quantization.pt2e import PerChannelMinMaxObserver
        from torchao.quantization.pt2e.quantizer import (
            QuantizationAnnotation,
            QuantizationSpec,
            Quantizer,
        )
except ModuleNotFoundError as e:
    text = "CoreAIQuantizer needs torchao, which is not installed"
    hint = "pip install delegraph-quantize"
    raise PluginUnavailable("plugin-unavailable", text, hint=hint) from e

aten = torch.ops.aten
WEIGHTS = {
    aten.linear.default: 1,
    aten.conv1d.default: 1,
    aten.conv2d.default: 1,
    aten.conv3d.default: 1,
    aten.embedding.default: 0,
}
"""Operator -> the position of its weight. The first axis is that of the channels."""


class CoreAIQuantizer(Quantizer):  # type: ignore[misc]
    """Quantizes weights symmetrically, with a scale for each channel."""

    def __init__(self, bits: int = 8) -> None:
        """``bits``: of a weight, 8 or 4. Raises OptionError for others."""
        if bits not in (8, 4):
            raise OptionError(
                "option-invalid", f"Core AI has weights of 8 and of 4 bits, not {bits}"
            )
        most = (1 << bits - 1) - 1
        self._spec = QuantizationSpec(
            torch.int8,
            PerChannelMinMaxObserver,
            -most,
            most,
            torch.per_channel_symmetric,
            ch_axis=0,
        )

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the weights of the layers."""
        for node in model.graph.nodes:
            weight: Any = None
            if node.target in WEIGHTS:
                weight = node.args[WEIGHTS[node.target]]
            if isinstance(weight, Node) and weight.op == "get_attr":
                annotation = QuantizationAnnotation(
                    {weight: self._spec}, _annotated=True
                )
                node.meta["quantization_annotation"] = annotation
        return model

    def validate(self, model: GraphModule) -> None:
        """Accept any model."""

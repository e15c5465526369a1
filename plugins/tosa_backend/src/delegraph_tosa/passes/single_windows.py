"""Sets strides along axes with one window to 1, for readers of TOSA 0.80."""

from __future__ import annotations

from ..ir.graph import Graph, Operator
from ..ir.operators import AVG_POOL2D, CONV2D, DEPTHWISE_CONV2D, MAX_POOL2D
from ..spec import TosaSpec
from .rewriter import Rewrite, sweep, with_operands

WINDOWED = frozenset({CONV2D, DEPTHWISE_CONV2D, AVG_POOL2D, MAX_POOL2D})


def stride_single_windows(graph: Graph, spec: TosaSpec) -> Graph:
    """Set the stride to 1 along an axis with a single window, where it has no effect.

    before: DEPTHWISE_CONV2D of 7x7 pixels (kernel 7,7, stride 7,7)
    after:  DEPTHWISE_CONV2D (kernel 7,7, stride 1,1)

    A mean over an image is lowered to such a convolution. Vela 4.2 supports strides of
    convolutions up to 3; later versions rewrite larger ones themselves.
    """
    return sweep(graph, _with_small_stride)


def _with_small_stride(operator: Operator, _: Rewrite) -> Operator:
    """Return ``operator`` with a stride of 1 along axes with a single window.

    Returns ``operator`` itself if it has this stride already, or no windows.
    """
    if type(operator) not in WINDOWED:
        return operator
    windows = operator.outputs[0].shape[1:3]
    before: tuple[int, ...] = operator.attribute_values()["stride"]
    axes = zip(windows, before, strict=True)
    stride = tuple([1 if count == 1 else step for count, step in axes])
    if stride == before:
        return operator
    return with_operands(operator, operator.inputs, stride=stride)

"""Sets strides along axes with one window to 1, for readers of TOSA 0.80."""

from __future__ import annotations

from ..ir.graph import Graph, Operator
from ..ir.operators import AVG_POOL2D, CONV2D, DEPTHWISE_CONV2D, MAX_POOL2D
from ..spec import TosaSpec
from .rewriter import rebuilt, sweep

WINDOWED = frozenset({CONV2D, DEPTHWISE_CONV2D, AVG_POOL2D, MAX_POOL2D})


def stride_single_windows(graph: Graph, spec: TosaSpec) -> Graph:
    """Set the stride along an axis with a single window to 1.

    There the stride has no effect. before: DEPTHWISE_CONV2D of 7x7 pixels (kernel 7,7,
    stride 7,7) after: DEPTHWISE_CONV2D (kernel 7,7, stride 1,1)

    A mean over an image is lowered to such a convolution. Vela 4.2 takes no convolution
    with a stride above 3; later versions rewrite it themselves.
    """
    return sweep(
        graph,
        lambda operator, _: (
            _with_small_stride(operator) if type(operator) in WINDOWED else operator
        ),
    )


def _with_small_stride(operator: Operator) -> Operator:
    """Return ``operator`` with a stride of 1 along axes with a single window.

    Itself if it has this stride already.
    """
    sizes = operator.outputs[0].shape[1:3]
    before: tuple[int, ...] = operator.stride  # type: ignore[attr-defined]
    stride = tuple(
        [1 if size == 1 else step for size, step in zip(sizes, before, strict=True)]
    )
    if stride == before:
        return operator
    new = rebuilt(
        operator, operator.inputs, [v.type for v in operator.outputs], stride=stride
    )
    new.outputs[0].name = operator.outputs[0].name
    return new

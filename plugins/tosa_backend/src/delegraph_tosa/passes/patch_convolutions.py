"""Makes convolutions of separate patches take small steps, for some NPUs.

These NPUs have no large strides.
"""

from __future__ import annotations

from collections import Counter

from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Graph, Operator, Value
from ..ir.operators import CONV2D, RESCALE
from ..ir.types import Type
from ..spec import TosaSpec
from .rewriter import Rewrite, rebuilt

LARGEST = 3
"""The largest stride of an Ethos-U (docs/decisions/0028).

Vela makes one convolution for each position of others.
"""


def convolve_patches(graph: Graph, spec: TosaSpec) -> Graph:
    """Give a convolution with a stride of its kernel's size a stride of 1.

    It is often the first layer of a vision transformer. before: CONV2D [1,224,224,3] by
    [192,16,16,3], stride 16 - RESCALE after: RESHAPE [14,16,14,48] - CONV2D by
    [192,16,1,48], stride 1 - RESCALE - RESHAPE [1,14,14,192]

    A row of a patch becomes the channels of one pixel, and each row of patches an
    image. Nothing is computed otherwise. On an Ethos-U85-256 this is 14 convolutions in
    place of 196, each of which reads all weights.
    """
    uses = Counter(
        [v for operator in graph.operators for v in operator.inputs] + graph.outputs
    )
    rewrite = Rewrite()
    for operator in graph.operators:
        new = rewrite.renewed(operator)
        steps = (
            _steps(new)
            if isinstance(operator, RESCALE) and uses[operator.inputs[0]] == 1
            else [new]
        )
        if len(steps) > 1 and any(spec.why_not(step) is not None for step in steps):
            steps = [new]
        rewrite.operators += steps[:-1]
        rewrite.put(operator, steps[-1])
    return rewrite.graph(graph)


def _of_patches(convolution: Operator) -> bool:
    """Return whether a CONV2D reads each pixel once, in too large steps."""
    assert isinstance(convolution, CONV2D)
    x, weight = convolution.inputs[:2]
    kernel = weight.shape[1:3]
    size = x.shape[1:3]
    if any(map(is_dynamic, x.shape)) or max(kernel) <= LARGEST or any(convolution.pad):
        return False
    whole = all(n % k == 0 for n, k in zip(size, kernel, strict=True))
    return (
        whole
        and tuple(convolution.stride) == kernel
        and set(convolution.dilation) == {1}
    )


def _steps(rescale: Operator) -> list[Operator]:
    """Return RESHAPE, CONV2D, RESCALE, RESHAPE for ``rescale`` of a convolution.

    For others, returns ``rescale`` alone.
    """
    convolution = rescale.inputs[0].producer
    if not isinstance(convolution, CONV2D) or not _of_patches(convolution):
        return [rescale]
    made = Rewrite()
    source = convolution.source
    x, weight, *others = convolution.inputs
    (n, height, width, channels), (outputs, rows, columns, _) = x.shape, weight.shape
    patches = width // columns
    images = made.reshape(
        x, (n * height // rows, rows, patches, columns * channels), source
    )
    kernel = made.reshape(weight, (outputs, rows, 1, columns * channels), source)
    shape = (images.shape[0], 1, patches, outputs)
    sums = _appended(made, convolution, (images, kernel, *others), shape, stride=(1, 1))
    y = _appended(made, rescale, (sums, *rescale.inputs[1:]), shape)
    last = made.reshape(y, rescale.outputs[0].shape, rescale.source)
    last.name = rescale.outputs[0].name
    return made.operators


def _appended(
    made: Rewrite,
    operator: Operator,
    inputs: tuple[Value, ...],
    shape: tuple[int, ...],
    **new: object,
) -> Value:
    """Return the result of a copy of ``operator`` with other operands."""
    copied = rebuilt(operator, inputs, [Type(shape, operator.outputs[0].dtype)], **new)
    made.operators.append(copied)
    return copied.outputs[0]

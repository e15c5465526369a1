"""Makes convolutions of separate patches take small steps, for some NPUs.

These NPUs have no large strides.
"""

from __future__ import annotations

from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Graph, Operator, Value
from ..ir.operators import CONV2D, RESCALE
from ..ir.types import Type
from ..spec import TosaSpec
from .rewriter import Rewrite, count_uses, rebuilt

LARGEST = 3
"""The largest stride of an Ethos-U (docs/decisions/0028).

Vela makes one convolution for each position of others.
"""


def convolve_patches(graph: Graph, spec: TosaSpec) -> Graph:
    """Give a convolution with a stride of its kernel's size a stride of 1.

    It is often the first layer of a vision transformer.

    before: CONV2D [1,224,224,3] by [192,16,16,3], stride 16 - RESCALE
    after:  RESHAPE [14,16,14,48] - CONV2D by [192,16,1,48], stride 1 - RESCALE
            - RESHAPE [1,14,14,192]

    A row of a patch becomes the channels of one pixel, and each row of patches an
    image. Nothing is computed otherwise. On an Ethos-U85-256 this is 14 convolutions in
    place of 196, each of which reads all weights.
    """
    uses = count_uses(graph)
    rewrite = Rewrite()
    for operator in graph.operators:
        steps = [rewrite.renewed(operator)]
        if isinstance(operator, RESCALE) and uses[operator.inputs[0]] == 1:
            steps = _by_patches(steps[0], spec)
        rewrite.operators += steps[:-1]
        rewrite.put(operator, steps[-1])
    return rewrite.graph(graph)


def _of_patches(convolution: CONV2D) -> bool:
    """Return whether a CONV2D reads each pixel once, in too large steps."""
    x, weight = convolution.inputs[:2]
    if any(map(is_dynamic, x.shape)) or any(convolution.pad):
        return False
    _, height, width, _ = x.shape
    _, rows, columns, _ = weight.shape
    if max(rows, columns) <= LARGEST or height % rows or width % columns:
        return False
    is_dense = set(convolution.dilation) == {1}
    return is_dense and tuple(convolution.stride) == (rows, columns)


def _by_patches(rescale: Operator, spec: TosaSpec) -> list[Operator]:
    """Return RESHAPE, CONV2D, RESCALE, RESHAPE for ``rescale`` of a convolution.

    For others, and if the target lacks one of these, returns ``rescale`` alone.
    """
    convolution = rescale.inputs[0].producer
    if not isinstance(convolution, CONV2D) or not _of_patches(convolution):
        return [rescale]
    steps = _steps(convolution, rescale)
    if any(spec.why_not(step) is not None for step in steps):
        return [rescale]
    return steps


def _steps(convolution: CONV2D, rescale: Operator) -> list[Operator]:
    """Return RESHAPE, CONV2D, RESCALE, RESHAPE for both operators."""
    made = Rewrite()
    source = convolution.source
    x, weight, *others = convolution.inputs
    batch, height, width, channels = x.shape
    outputs, rows, columns, _ = weight.shape
    patches = width // columns
    row_of_patch = columns * channels
    image_shape = (batch * height // rows, rows, patches, row_of_patch)
    images = made.reshape(x, image_shape, source)
    kernel = made.reshape(weight, (outputs, rows, 1, row_of_patch), source)
    shape = (images.shape[0], 1, patches, outputs)
    operands = (images, kernel, *others)
    sums = _appended(made, convolution, operands, shape, stride=(1, 1))
    y = _appended(made, rescale, (sums, *rescale.inputs[1:]), shape)
    last = made.reshape(y, rescale.outputs[0].shape, rescale.source)
    last.name = rescale.outputs[0].name
    return made.operators


def _appended(
    made: Rewrite,
    operator: Operator,
    inputs: tuple[Value, ...],
    shape: tuple[int, ...],
    **attributes: object,
) -> Value:
    """Return the result, of ``shape``, of a copy of ``operator``.

    It has other operands and ``attributes``.
    """
    type = Type(shape, operator.outputs[0].dtype)
    copied = rebuilt(operator, inputs, [type], **attributes)
    made.operators.append(copied)
    return copied.outputs[0]

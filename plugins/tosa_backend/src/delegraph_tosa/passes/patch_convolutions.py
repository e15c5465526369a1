"""Gives convolutions of separate patches a stride of 1, for NPUs with small strides."""

from __future__ import annotations

from ..ir.dynamic_sizes import is_dynamic
from ..ir.graph import Graph, Operator, Value
from ..ir.operators import CONV2D, RESCALE
from ..ir.types import Type
from ..spec import TosaSpec
from .rewriter import Rewrite, count_uses, rebuilt

LARGEST = 3
"""The largest stride of an Ethos-U (docs/decisions/0028).

For a larger one, Vela makes one convolution for each position.
"""


def convolve_patches(graph: Graph, spec: TosaSpec) -> Graph:
    """Give a convolution with a stride of its kernel's size a stride of 1.

    The first layer of a vision transformer is such a convolution.

    before: CONV2D [1,224,224,3] by [192,16,16,3], stride 16 - RESCALE
    after:  RESHAPE [14,16,14,48] - CONV2D by [192,16,1,48], stride 1 - RESCALE
            - RESHAPE [1,14,14,192]

    A row of a patch becomes the channels of one pixel, and each row of patches becomes
    an image. The products and sums stay the same. On an Ethos-U85-256 this is 14
    convolutions instead of 196, each of which reads all weights.
    """
    uses = count_uses(graph)
    rewrite = Rewrite()
    for operator in graph.operators:
        steps = [rewrite.with_new_operands(operator)]
        if isinstance(operator, RESCALE) and uses[operator.inputs[0]] == 1:
            steps = _by_patches(steps[0], spec)
        rewrite.operators += steps[:-1]
        rewrite.put(operator, steps[-1])
    return rewrite.graph(graph)


def _of_patches(convolution: CONV2D) -> bool:
    """Return whether a CONV2D reads each pixel once, with too large a stride."""
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
    """Return RESHAPE, CONV2D, RESCALE, RESHAPE for a convolution and its ``rescale``.

    If ``rescale`` follows no convolution of patches, or the target lacks one of these
    operators, returns ``rescale`` alone.
    """
    convolution = rescale.inputs[0].producer
    if not isinstance(convolution, CONV2D) or not _of_patches(convolution):
        return [rescale]
    steps = _steps(convolution, rescale)
    if any(spec.why_not(step) is not None for step in steps):
        return [rescale]
    return steps


def _steps(convolution: CONV2D, rescale: Operator) -> list[Operator]:
    """Return RESHAPE, CONV2D, RESCALE, RESHAPE that replace both operators."""
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
    """Append a copy of ``operator``, and return its result, of shape ``shape``.

    The copy has other operands ``inputs``, and ``attributes``.
    """
    type = Type(shape, operator.outputs[0].dtype)
    copied = rebuilt(operator, inputs, [type], **attributes)
    made.operators.append(copied)
    return copied.outputs[0]

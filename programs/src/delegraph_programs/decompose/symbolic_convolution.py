"""Decomposes convolutions with symbolic sizes to ``aten.convolution``, without a trace.

torch's trace can fail: to find strides, it compares a symbolic size of the result with
1. It may also write the size in another way than it was recorded. A trace is not
needed, because the operators are the same for all sizes, and the result is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

from ..operator_schema import bound_arguments

aten = torch.ops.aten
_PLAIN: dict[Any, int] = {
    aten.conv1d.default: 1,
    aten.conv1d.padding: 1,
    aten.conv2d.default: 2,
    aten.conv2d.padding: 2,
    aten.conv3d.default: 3,
    aten.conv3d.padding: 3,
}
"""Operator -> the number of dimensions that it convolves."""
_TRANSPOSED: dict[Any, int] = {
    aten.conv_transpose1d.default: 1,
    aten.conv_transpose2d.input: 2,
    aten.conv_transpose3d.input: 3,
}
"""Operator -> the number of dimensions that it convolves."""


class _Settings(NamedTuple):
    """The arguments of ``aten.convolution`` after the bias, and ``extra``.

    ``extra``: zeros to add to the image before the convolution, as
    ``constant_pad_nd`` takes them; empty for none.
    """

    stride: list[int]
    padding: list[int]
    dilation: list[int]
    transposed: bool
    output_padding: list[int]
    groups: int
    extra: list[int]


def convolution_of_any_size(node: Node, mode: Any) -> Graph | None:
    """Return the graph of a convolution's decomposition; None for any other call.

    ``mode``: the fake tensor mode of the recorded values.
    """
    dimensions = _PLAIN.get(node.target) or _TRANSPOSED.get(node.target)
    if dimensions is None:
        return None
    given = bound_arguments(node)
    operands = [given["input"], given["weight"], given["bias"]]
    nodes = [operand for operand in operands if isinstance(operand, Node)]
    recorded = [operand.meta.get("val") for operand in (*nodes, node)]
    if not all(isinstance(val, torch.Tensor) for val in recorded):
        return None
    # each operand needs a placeholder of its own
    if len(set(nodes)) != len(nodes):
        return None
    settings = _settings(node, given, dimensions)
    graph = Graph()
    copies: dict[Any, Any] = {None: None}  # the bias may be None
    for operand in nodes:
        copies[operand] = graph.placeholder(operand.name)
        copies[operand].meta["val"] = operand.meta["val"]
    image, weight, bias = (copies[operand] for operand in operands)
    result = node.meta["val"]
    has_batch = result.dim() == dimensions + 2
    with mode, torch.no_grad():
        if not has_batch:
            image = _add(
                graph,
                aten.unsqueeze.default,
                (image, 0),
                image.meta["val"].unsqueeze(0),
            )
            result = result.unsqueeze(0)
        if any(settings.extra):
            image = _add(
                graph,
                aten.constant_pad_nd.default,
                (image, settings.extra, 0.0),
                _padded(image, settings),
            )
    last = _add(
        graph, aten.convolution.default, (image, weight, bias, *settings[:-1]), result
    )
    if not has_batch:
        last = _add(graph, aten.squeeze.dims, (last, [0]), node.meta["val"])
    graph.output((last,))
    return graph


def _add(
    graph: Graph, op: OpOverload, args: tuple[Any, ...], val: torch.Tensor
) -> Node:
    """Append a call with the recorded value ``val`` to ``graph``."""
    node = graph.create_node("call_function", op, args, {}, op.overloadpacket.__name__)
    node.meta["val"] = val
    return node


def _padded(image: Node, settings: _Settings) -> torch.Tensor:
    """Return a fake tensor of the size of ``image`` after padding by ``extra``.

    Padding the fake tensor of ``image`` itself would fix its sizes.
    """
    val = image.meta["val"]
    # ``extra`` has (before, after) for each dimension, the last dimension first
    behind = reversed(settings.extra[1::2])
    spatial = [size + added for size, added in zip(val.shape[2:], behind, strict=True)]
    padded: torch.Tensor = val.new_empty([*val.shape[:2], *spatial])
    return padded


def _settings(node: Node, given: dict[str, Any], dimensions: int) -> _Settings:
    """Return the settings of a convolution; ``given`` has its arguments by name."""
    dilation = _for_each(given["dilation"], dimensions)
    padding = given["padding"]
    extra: list[int] = []
    if padding == "valid":
        padding = 0
    elif padding == "same":
        # The convolution pads both sides equally. An odd zero is added behind.
        # ``constant_pad_nd`` takes the last dimension first.
        kernel = given["weight"].meta["val"].shape[2:]
        zeros = [step * (size - 1) for step, size in zip(dilation, kernel, strict=True)]
        for count in reversed(zeros):
            extra += [0, count % 2]
        padding = [count // 2 for count in zeros]
    return _Settings(
        _for_each(given["stride"], dimensions),
        _for_each(padding, dimensions),
        dilation,
        node.target in _TRANSPOSED,
        _for_each(given.get("output_padding", 0), dimensions),
        given["groups"],
        extra,
    )


def _for_each(value: Sequence[int] | int, dimensions: int) -> list[int]:
    """Return a setting as a list; a single number is repeated for all dimensions."""
    listed = [value] if isinstance(value, int) else list(value)
    return listed * dimensions if len(listed) == 1 else listed

"""XNNPACK, ExecuTorch's backend for CPUs."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from delegraph.io.quiet import quietly
from torch.fx import Node

from . import bridge
from .constants_by_layer import separate_constants
from .xnnpack_configs import correct

with quietly():
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner as TheirPartitioner,
    )
    from executorch.backends.xnnpack.xnnpack_preprocess import (
        XnnpackBackend as TheirBackend,
    )


aten = torch.ops.aten
_CONVERSIONS = (
    aten.to.dtype,
    aten.to.device,
    aten.to.dtype_layout,
    aten._to_copy.default,
)
_WEIGHTS_AT = {
    "addmm": (0, 2),
    **dict.fromkeys(("mm", "prelu"), (1,)),
    **dict.fromkeys(
        (
            "linear",
            "convolution",
            "conv1d",
            "conv2d",
            "conv_transpose1d",
            "conv_transpose2d",
        ),
        (1, 2),
    ),
}
"""Positions of the constants that XNNPACK's runtime packs when it loads a blob, and
then frees.
"""


def _has_no_dimensions(node: Node) -> str | None:
    """A number among the operands becomes a constant of one dimension in XNNPACK, and
    so does the result.
    """
    val = node.meta.get("val")
    if (
        isinstance(val, torch.Tensor)
        and val.dim() == 0
        and any(isinstance(a, (int, float)) for a in node.args)
    ):
        return (
            "XNNPACK's runtime gives a result without dimensions one, where an operand"
            " is a number"
        )
    return None


def _reads_a_packed_weight(node: Node, constants: Collection[Node]) -> str | None:
    """Another call that reads a weight as it was reads freed memory: the same through
    ExecuTorch itself.
    """
    for value in node.all_input_nodes:
        if (
            value in constants
            and value not in _weights(node)
            and any(value in _weights(user) for user in value.users)
        ):
            return (
                f"XNNPACK's runtime packs {value.name}, a weight of another call, and"
                " frees it as it was"
            )
    return None


_DEQUANTIZES = {
    "torchao.dequantize_affine",
    "quantized_decomposed.dequantize_per_channel",
    "quantized_decomposed.dequantize_per_channel_group",
}
_LAYOUT = {"permute", "t", "transpose", "view", "reshape", "contiguous"}
_ACTIVATION_AT = {"addmm": 1}
"""The position of the operand that a weight is multiplied with, where it is not the
first.
"""


def _dequantizes_for_floats(node: Node, constants: Collection[Node]) -> str | None:
    """Of a quantized weight, XNNPACK's compiler drops the scales unless the other
    operand is quantized, too.
    """
    if (
        _name(node, with_library=True) not in _DEQUANTIZES
        or node.args[0] not in constants
    ):
        return None
    for user in _behind_layout(node):
        activation = (
            user.args[_ACTIVATION_AT.get(_name(user), 0)] if user.args else None
        )
        while isinstance(activation, Node) and _name(activation) in _LAYOUT:
            activation = activation.args[0]
        if not isinstance(activation, Node) or not _name(activation).startswith(
            "dequantize"
        ):
            return (
                "XNNPACK dequantizes weights inside of products of quantized values,"
                f" and {user.name} has floats"
            )
    return None


def _behind_layout(node: Node) -> list[Node]:
    """What uses a value, also by way of calls that only lay it out in another way."""
    users: list[Node] = []
    for user in node.users:
        users += _behind_layout(user) if _name(user) in _LAYOUT else [user]
    return users


def _name(node: Node, with_library: bool = False) -> str:
    """The name of a call's operator without its overload; "" for what is no call of an
    operator.
    """
    packet = getattr(node.target, "overloadpacket", None)
    return "" if packet is None else str(packet) if with_library else packet.__name__


def _weights(node: Node) -> list[Any]:
    """The operands of a call that XNNPACK packs where they are constants."""
    packet = getattr(node.target, "overloadpacket", None)
    positions = _WEIGHTS_AT.get(packet.__name__, ()) if packet is not None else ()
    return [node.args[k] for k in positions if k < len(node.args)]


def _is_prelu_of_no_image(node: Node) -> str | None:
    """The partitioner takes it whatever its rank; compiling it fails."""
    if node.target is aten.prelu.default and node.meta["val"].dim() != 4:
        return "XNNPACK takes prelu of images [N, C, H, W] only"
    return None


def _is_approximate_gelu(node: Node) -> str | None:
    if node.target is aten.gelu.default and _argument(node, "approximate") not in (
        None,
        "none",
    ):
        return (
            "XNNPACK computes gelu by its exact form, not with"
            f" approximate={_argument(node, 'approximate')!r}"
        )
    return None


def _is_scaled_product(node: Node) -> str | None:
    if node.target is aten.addmm.default and any(
        _argument(node, k) not in (None, 1) for k in ("beta", "alpha")
    ):
        return "XNNPACK leaves out beta and alpha of addmm"
    return None


def _is_resized_by_a_scale(node: Node) -> str | None:
    """XNNPACK is told the sizes only; eager steps by the scale that the user gave,
    unless corners are aligned.
    """
    if node.target not in (
        aten.upsample_bilinear2d.vec,
        aten.upsample_bilinear2d.default,
    ):
        return None
    scales = _argument(node, "scale_factors") or (
        _argument(node, "scales_h"),
        _argument(node, "scales_w"),
    )
    if _argument(node, "align_corners") or not any(scales):
        return None
    image: Any = node.all_input_nodes[0].meta["val"]
    for size, scale, out in zip(
        image.shape[2:], scales, node.meta["val"].shape[2:], strict=True
    ):
        exact = (
            scale is None
            or float(scale).is_integer()
            or (isinstance(size, int) and size * scale == out)
        )
        if not exact:
            return (
                f"XNNPACK resizes by the ratio of the sizes, {out} to {size}, and not"
                f" by the scale factor {scale}"
            )
    return None


def _is_clamped_by_nan(node: Node) -> str | None:
    bounds = (
        [_argument(node, name) for name in ("min", "max")]
        if node.target is aten.clamp.default
        else []
    )
    if any(isinstance(bound, float) and math.isnan(bound) for bound in bounds):
        return "XNNPACK leaves out a bound that is NaN, of which eager's result is NaN"
    return None


def _converts(node: Node) -> str | None:
    """Its partitioner takes the call without dimension orders for a copy, and its
    compiler drops it.
    """
    if node.target in _CONVERSIONS:
        given, returned = node.args[0].meta["val"].dtype, node.meta["val"].dtype  # type: ignore[union-attr]
        if given is not returned:
            return f"XNNPACK does not convert {given} to {returned}"
    return None


_ONE_AXIS = {"conv1d", "conv_transpose1d", "convolution"}


def _quantizes_a_float_convolution(node: Node) -> str | None:
    """Its compiler makes a convolution along one axis one of images, and takes it for
    quantized as its result is.
    """
    if _name(node) != "quantize_per_tensor":
        return None
    convolution = node.args[0]
    if not isinstance(convolution, Node) or _name(convolution) not in _ONE_AXIS:
        return None
    given = convolution.args[0]
    of_floats = not isinstance(given, Node) or not _name(given).startswith("dequantize")
    if of_floats and convolution.meta["val"].dim() == 3:
        return (
            f"XNNPACK quantizes the result of {convolution.name} only where its input"
            " is quantized"
        )
    return None


def _argument(node: Node, name: str) -> Any:
    """An argument by its name in the schema, None if it is not given."""
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return given.get(name)


_CHECKS = (
    _has_no_dimensions,
    _is_prelu_of_no_image,
    _is_approximate_gelu,
    _is_scaled_product,
    _is_resized_by_a_scale,
    _is_clamped_by_nan,
    _converts,
    _quantizes_a_float_convolution,
)
"""Of arguments that the partitioner does not look at, or that the compiler drops."""


def _refuses(node: Node, constants: Collection[Node]) -> str | None:
    reasons = (why for check in _CHECKS if (why := check(node)) is not None)
    return (
        next(reasons, None)
        or _reads_a_packed_weight(node, constants)
        or _dequantizes_for_floats(node, constants)
    )


def _partitioner(**options: Any) -> TheirPartitioner:
    partitioner = TheirPartitioner(**options)
    correct(partitioner.target_partitioner_configs.items())
    return partitioner


XnnpackBackend, XnnpackPartitioner, XnnpackRuntime = bridge(
    TheirBackend,
    _partitioner,
    _refuses,
    cached=True,
    prepare=separate_constants,
    loads=True,
)

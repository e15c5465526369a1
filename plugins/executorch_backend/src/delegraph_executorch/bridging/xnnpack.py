"""Bridge XNNPACK, ExecuTorch's backend for CPUs."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from delegraph_engines import fewest_partitions, quietly
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.passes.infra.partitioner import Partition

from . import bridge
from .constants_by_layer import separate_constants
from .edge import calls_of, pieces_of
from .xnnpack_configs import correct
from .xnnpack_equivalents import MOVED, express_by_slices_and_views, shape_for_prelu

with quietly():
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner as TheirPartitioner,
    )
    from executorch.backends.xnnpack.utils.quant_utils import IS_IMPLICIT_Q_DQ_TAG
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
"""Operator -> positions of constants that XNNPACK's runtime packs and frees on loading.
"""


def _why_scalar_with_number(node: Node) -> str | None:
    """Return why a call with a scalar result and a number as operand is refused, or None."""
    # XNNPACK stores a number among the operands as a constant with one dimension. The
    # numbers of select and squeeze are a dim or an index, and not stored.
    if node.target in (aten.select.int, aten.squeeze.dim):
        return None
    val = node.meta.get("val")
    is_scalar = isinstance(val, torch.Tensor) and val.dim() == 0
    if is_scalar and any(isinstance(a, (int, float)) for a in node.args):
        return (
            "XNNPACK's runtime returns a tensor of one dimension for scalar results"
            " with a number as operand"
        )
    return None


def _why_packed_weight(node: Node, constants: Collection[Node]) -> str | None:
    """Return why a call cannot read a constant that another call packs, or None."""
    # XNNPACK frees a constant after packing, so the call would read freed memory.
    # ExecuTorch's own lowering has this fault, too.
    for value in node.all_input_nodes:
        if value not in constants or value in _weights(node):
            continue
        if any(value in _weights(user) for user in value.users):
            return (
                f"XNNPACK's runtime packs {value.name}, a weight of another call, and"
                " frees the original"
            )
    return None


_DEQUANTIZES = {
    "torchao.dequantize_affine",
    "quantized_decomposed.dequantize_per_channel",
    "quantized_decomposed.dequantize_per_channel_group",
}
_LAYOUT = {"permute", "t", "transpose", "view", "reshape", "contiguous"}
_ACTIVATION_AT = {"addmm": 1}
"""The position of the operand that a weight is multiplied with, by default 0."""


def _why_dequantized_for_floats(node: Node, constants: Collection[Node]) -> str | None:
    """Return why a weight cannot be dequantized for a product of floats, or None."""
    # XNNPACK's compiler drops a weight's scales if the other operand is a float.
    if _qualified_name(node) not in _DEQUANTIZES or node.args[0] not in constants:
        return None
    for user in _users_through_layout(node):
        activation = None
        if user.args:
            # the operand that the weight is multiplied with
            activation = user.args[_ACTIVATION_AT.get(_name(user), 0)]
        while isinstance(activation, Node) and _name(activation) in _LAYOUT:
            activation = activation.args[0]
        if not _is_dequantize(activation):
            return (
                "XNNPACK multiplies quantized weights by quantized values only, and"
                f" {user.name} has floats"
            )
    return None


def _is_dequantize(value: Any) -> bool:
    """Return whether an argument is the result of a dequantize."""
    return isinstance(value, Node) and _name(value).startswith("dequantize")


def _users_through_layout(node: Node) -> list[Node]:
    """Return the users of a value, also through calls that only change its layout."""
    users: list[Node] = []
    for user in node.users:
        if _name(user) in _LAYOUT:
            users += _users_through_layout(user)
        else:
            users.append(user)
    return users


def _qualified_name(node: Node) -> str:
    """Return a call's operator with its library, such as "aten.mm"; "" for other nodes."""
    packet = getattr(node.target, "overloadpacket", None)
    return "" if packet is None else str(packet)


def _name(node: Node) -> str:
    """Return a call's operator without its library, such as "mm"; "" for other nodes."""
    packet = getattr(node.target, "overloadpacket", None)
    return "" if packet is None else str(packet.__name__)


def _edge_name(node: Node) -> str:
    """Return the operator of a call in edge dialect, such as aten.view_copy.default."""
    return getattr(node.target, "__name__", "")


def _weights(node: Node) -> list[Any]:
    """Return the operands that XNNPACK packs if they are constants."""
    positions = _WEIGHTS_AT.get(_name(node), ())
    return [node.args[k] for k in positions if k < len(node.args)]


def _why_prelu_of_no_image(node: Node) -> str | None:
    """Return why a prelu of a tensor that cannot be viewed as an image is refused."""
    # The partitioner ignores the rank, and the compiler then fails.
    if node.target is not aten.prelu.default:
        return None
    shape = node.meta["val"].shape
    if len(shape) == 4 or shape_for_prelu(shape) is not None:
        return None
    return "XNNPACK computes prelu for images [N, C, H, W] only"


def _why_approximate_gelu(node: Node) -> str | None:
    """Return why an approximate gelu is refused, or None."""
    if node.target is not aten.gelu.default:
        return None
    approximate = _argument(node, "approximate")
    if approximate in (None, "none"):
        return None
    return f"XNNPACK computes gelu exactly, not with approximate={approximate!r}"


def _why_scaled_product(node: Node) -> str | None:
    """Return why an addmm with factors is refused, or None."""
    if node.target is not aten.addmm.default:
        return None
    if all(_argument(node, name) in (None, 1) for name in ("beta", "alpha")):
        return None
    return "XNNPACK ignores beta and alpha of addmm"


def _why_resized_by_scale(node: Node) -> str | None:
    """Return why a resize by a scale factor is refused, or None."""
    # XNNPACK computes the factor from the sizes. Eager PyTorch uses the given factor,
    # unless corners are aligned.
    resizes = (aten.upsample_bilinear2d.vec, aten.upsample_bilinear2d.default)
    if node.target not in resizes or _argument(node, "align_corners"):
        return None
    factors = _argument(node, "scale_factors") or (
        _argument(node, "scales_h"),
        _argument(node, "scales_w"),
    )
    if not any(factors):
        return None
    image: Any = node.all_input_nodes[0].meta["val"]
    sizes = image.shape[2:]
    results = node.meta["val"].shape[2:]
    for size, factor, result in zip(sizes, factors, results, strict=True):
        # A whole factor is the exact ratio of the sizes.
        if factor is None or float(factor).is_integer():
            continue
        if not isinstance(size, int) or size * factor != result:
            return (
                f"XNNPACK scales by the ratio of the sizes, {result} to {size}, not by"
                f" the scale factor {factor}"
            )
    return None


def _why_clamped_by_nan(node: Node) -> str | None:
    """Return why a clamp by NaN is refused, or None."""
    if node.target is not aten.clamp.default:
        return None
    for name in ("min", "max"):
        bound = _argument(node, name)
        if isinstance(bound, float) and math.isnan(bound):
            return "XNNPACK ignores a bound that is NaN; in eager PyTorch the result is NaN"
    return None


def _why_converted(node: Node) -> str | None:
    """Return why a cast to another type is refused, or None."""
    # The partitioner treats the call as a copy, which the compiler drops.
    if node.target not in _CONVERSIONS:
        return None
    given = node.all_input_nodes[0].meta["val"].dtype
    returned = node.meta["val"].dtype
    if given is returned:
        return None
    return f"XNNPACK does not convert {given} to {returned}"


_CONVOLUTIONS_ALONG_ONE_AXIS = {"conv1d", "conv_transpose1d", "convolution"}


def _why_quantized_float_convolution(node: Node) -> str | None:
    """Return why the result of a float convolution cannot be quantized, or None."""
    # The compiler turns a convolution along one axis into a convolution of images. If
    # the result is quantized, the compiler assumes a quantized input, too.
    if _name(node) != "quantize_per_tensor":
        return None
    convolution = node.args[0]
    if not isinstance(convolution, Node) or _name(convolution) not in (
        _CONVOLUTIONS_ALONG_ONE_AXIS
    ):
        return None
    has_one_axis = convolution.meta["val"].dim() == 3
    if has_one_axis and not _is_dequantize(convolution.args[0]):
        return (
            f"XNNPACK quantizes the result of {convolution.name} only if its input is"
            " quantized"
        )
    return None


def _argument(node: Node, name: str) -> Any:
    """Return an argument by its name in the schema; None if it is not given."""
    names = [a.name for a in node.target._schema.arguments]  # type: ignore[union-attr]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return given.get(name)


_CHECKS = (
    _why_scalar_with_number,
    _why_prelu_of_no_image,
    _why_approximate_gelu,
    _why_scaled_product,
    _why_resized_by_scale,
    _why_clamped_by_nan,
    _why_converted,
    _why_quantized_float_convolution,
)
"""Functions that return why a call is refused, or None.

They refuse arguments that ExecuTorch's partitioner ignores, or its compiler drops.
"""


def _refuses(node: Node, constants: Collection[Node]) -> str | None:
    """Return the reason why a call must not be offered to XNNPACK, or None."""
    for check in _CHECKS:
        why = check(node)
        if why is not None:
            return why
    why = _why_packed_weight(node, constants)
    return why or _why_dequantized_for_floats(node, constants)


def _prepare(edge: ExportedProgram) -> ExportedProgram:
    """Change a partition so that ExecuTorch's compiler makes a correct blob of it."""
    express_by_slices_and_views(edge)
    _unmark_conversions_at_borders(edge)
    return separate_constants(edge)


def _unmark_conversions_at_borders(edge: ExportedProgram) -> None:
    """Remove marks from the quantizes and dequantizes at the border of a partition.

    The partitioner marks a quantize to compile it as part of the call before it, and a
    dequantize to compile it as part of the call after it. If the partition was divided,
    the call before or after may be outside. Without a mark, the node is compiled alone.
    """
    for node in edge.graph.nodes:
        name = _name(node)
        if name == "quantize_per_tensor":
            neighbours = node.all_input_nodes[:1]
        elif name == "dequantize_per_tensor":
            neighbours = list(node.users)
        else:
            continue
        scale = node.args[1]
        if isinstance(scale, Node):
            # The scale is computed at run time: such calls are never divided.
            continue
        if any(neighbour.op in ("placeholder", "output") for neighbour in neighbours):
            node.meta.pop(IS_IMPLICIT_Q_DQ_TAG, None)


_MOVES = (
    "aten.clone.default",
    "aten.slice_copy.Tensor",
    "aten.unsqueeze_copy.default",
    "aten.view_copy.default",
)
"""Operators that only move values. Alone, they are not worth the call of a delegate."""


class _Partitioner(TheirPartitioner):  # type: ignore[misc]
    """ExecuTorch's partitioner, changed to form the fewest partitions.

    ExecuTorch merges partitions pair by pair. A merge may prevent a better one, and the
    time grows with the square of the number of calls.
    """

    def partition(self, exported_program: ExportedProgram) -> Any:
        express_by_slices_and_views(exported_program)
        return super().partition(exported_program)

    def generate_partitions(self, ep: ExportedProgram) -> list[Partition]:
        if self.per_op_mode:
            # The user asked for a partition for each operator.
            return super().generate_partitions(ep)  # type: ignore[no-any-return]
        # A match is a list of nodes, with their constants, to compile together.
        matches = self.get_matched_nodes_from_configs(ep)
        matched = {n for match in matches for n in match if n.op == "call_function"}
        accepted = _worthwhile(matched - _moves_at_borders(ep, matched))
        # The pieces of a call share a partition.
        groups = [*matches, *pieces_of(ep).values()]
        parts = fewest_partitions(calls_of(ep), accepted, groups)
        if parts is None:
            # A path leaves a match and returns to it, so no partition can contain it.
            # Use ExecuTorch's partitions: those on cycles are split later.
            return super().generate_partitions(ep)  # type: ignore[no-any-return]
        part_of = {node: part for part in parts for node in part}
        for match in matches:
            # Constants of a layer are tagged like the layer.
            layer = next((node for node in match if node in part_of), None)
            if layer is not None:
                constants = [node for node in match if node.op != "call_function"]
                part_of[layer] += constants
        return [Partition(number, part) for number, part in enumerate(parts)]


def _moves_at_borders(program: ExportedProgram, matched: set[Node]) -> set[Node]:
    """Return the replacements of moves that can run on the host without cutting anything.

    A call on the host cuts a partition if computing calls are before and after it.
    """
    calls = calls_of(program)
    computing = {node for node in matched if _edge_name(node) not in _MOVES}
    after: set[Node] = set()
    for node in calls:
        if any(i in computing or i in after for i in node.all_input_nodes):
            after.add(node)
    before: set[Node] = set()
    for node in reversed(calls):
        if any(user in computing or user in before for user in node.users):
            before.add(node)
    return {n for n in matched - (after & before) if MOVED in n.meta}


def _worthwhile(accepted: Collection[Node]) -> set[Node]:
    """Return the accepted calls that compute, and the moves that are next to them.

    A move is also next to a computing call if only moves are between them.
    """
    waiting = [node for node in accepted if _edge_name(node) not in _MOVES]
    found: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in accepted and node not in found:
            found.add(node)
            waiting += [*node.all_input_nodes, *node.users]
    return found


_Partitioner.__name__ = TheirPartitioner.__name__  # reasons of refusals name it


def _partitioner(**options: Any) -> TheirPartitioner:
    """Return the partitioner with corrected configurations."""
    partitioner = _Partitioner(**options)
    correct(partitioner.target_partitioner_configs.items())
    return partitioner


XnnpackBackend, XnnpackPartitioner, XnnpackRuntime = bridge(
    TheirBackend,
    _partitioner,
    _refuses,
    cached=True,
    prepare=_prepare,
    loads=True,
)

"""Prepares batch norms after convolutions and linears for torchao's folding."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Node


def unshare_weights(module: GraphModule) -> None:
    """Give each convolution with a shared weight and a batch norm its own weight.

    torchao folds the batch norm into the weight in place. The other convolutions would
    then use the folded weight as well.
    """
    for shared in module.graph.find_nodes(op="get_attr"):
        if len(shared.users) < 2:
            continue
        for layer in list(shared.users):
            if not any("batch_norm" in str(user.target) for user in layer.users):
                continue
            name = f"{shared.target}_of_{layer.name}".replace(".", "_")
            tensor = attrgetter(str(shared.target))(module)
            module.register_parameter(
                name, torch.nn.Parameter(tensor.detach(), requires_grad=False)
            )
            with module.graph.inserting_before(layer):
                own = module.graph.get_attr(name)
            own.meta = dict(shared.meta)
            layer.replace_input_with(shared, own)


BETWEEN = torch.ops.aten.alias.default
"""A call between a layer and its batch norm, which keeps torchao from folding them."""


def keep_batch_norms(module: GraphModule) -> None:
    """Put an alias before each batch norm that torchao would try to fold and cannot.

    torchao's fold reads tensors of the model, which such a norm does not have.
    """
    for node in list(module.graph.nodes):
        if follows_layer(node) and not is_folded(node):
            with module.graph.inserting_before(node):
                between = module.graph.call_function(BETWEEN, (node.args[0],))
            between.meta = {
                key: value
                for key, value in node.args[0].meta.items()
                if key != "custom"
            }
            node.replace_input_with(node.args[0], between)


def follows_layer(node: Node) -> bool:
    """Return whether a call is a batch norm of the result of a convolution or linear."""
    made = node.args[0] if node.op == "call_function" and node.args else None
    return (
        "batch_norm" in str(node.target)
        and isinstance(made, Node)
        and any(name in str(made.target) for name in ("aten.conv", "aten.linear."))
    )


def is_folded(norm: Node) -> bool:
    """Return whether a batch norm can become part of the layer before it.

    ``norm``: a call for which ``follows_layer`` is true. It needs running statistics,
    and must be the only user of the layer. No weight of the norm or the layer may be
    computed.
    """
    layer: Any = norm.args[0]
    running_mean = norm.args[3]
    if len(layer.users) > 1 or running_mean is None or _normalizes_by_batch(norm):
        return False
    # ``_fold`` reads the arguments of this operator
    is_plain_norm = norm.target is torch.ops.aten.batch_norm.default
    if _is_grouped_transposed(layer) and not is_plain_norm:
        return False
    # the norm's weight, bias, mean and variance; the layer's weight and bias
    tensors = [*norm.args[1:5], *layer.args[1:3]]
    return all(
        t is None or (isinstance(t, Node) and t.op == "get_attr") for t in tensors
    )


def _normalizes_by_batch(norm: Node) -> bool:
    """Return whether a batch norm uses statistics of the batch, as in training."""
    return norm.target is torch.ops.aten.batch_norm.default and norm.args[5] is True


def fold_grouped_transposed(module: GraphModule) -> None:
    """Fold batch norms into the transposed convolutions with groups before them.

    torchao folds these wrongly: it scales the second axis of the weight by all output
    channels, but this axis has the output channels of one group only.
    """
    for norm in list(module.graph.nodes):
        if not follows_layer(norm) or not is_folded(norm):
            continue
        layer: Any = norm.args[0]
        if _is_grouped_transposed(layer):
            _fold(module, layer, norm)
    module.graph.eliminate_dead_code()
    module.recompile()


_TRANSPOSED = (
    torch.ops.aten.conv_transpose1d.default,
    torch.ops.aten.conv_transpose2d.input,
    torch.ops.aten.conv_transpose3d.input,
)


def _is_grouped_transposed(layer: Node) -> bool:
    """Return whether ``layer`` is a transposed convolution with groups."""
    if layer.target not in _TRANSPOSED or len(layer.args) < 7:
        return False
    groups: Any = layer.args[6]
    return bool(groups > 1)


def _fold(module: GraphModule, layer: Node, norm: Node) -> None:
    """Fold a batch norm into ``layer``, a transposed convolution with groups.

    The model keeps its tensors: the layer gets a weight and a bias of its own.
    """

    def tensor_of(node: Any) -> torch.Tensor | None:
        return None if node is None else attrgetter(str(node.target))(module).detach()

    # layer: (input, weight, bias, stride, padding, output padding, groups, dilation);
    # norm: (input, weight, bias, mean, variance, training, momentum, eps, ...)
    groups: Any = layer.args[6]
    weight = tensor_of(layer.args[1])
    bias = tensor_of(layer.args[2])
    factor, shift, mean, variance = map(tensor_of, norm.args[1:5])
    eps: Any = norm.args[7]
    assert weight is not None and mean is not None and variance is not None
    scale = torch.rsqrt(variance + eps)
    if factor is not None:
        scale = scale * factor
    # weight [groups * inputs, outputs, *kernel], where inputs and outputs are those of
    # one group
    by_group = weight.reshape(groups, -1, *weight.shape[1:])
    scale_by_group = scale.reshape(groups, 1, -1, *[1] * (weight.dim() - 2))
    folded_weight = (by_group * scale_by_group).flatten(0, 1)
    folded_bias = ((0.0 if bias is None else bias) - mean) * scale
    if shift is not None:
        folded_bias = folded_bias + shift
    with module.graph.inserting_before(layer):
        added = [
            _add_parameter(module, f"{layer.name}_{name}_folded", value, norm)
            for name, value in (("weight", folded_weight), ("bias", folded_bias))
        ]
    layer.args = (layer.args[0], *added, *layer.args[3:])
    norm.replace_all_uses_with(layer)


def _add_parameter(
    module: GraphModule, name: str, value: torch.Tensor, norm: Node
) -> Node:
    """Give ``module`` the parameter ``name``, and return a node that reads it."""
    module.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
    node = module.graph.get_attr(name)
    node.meta["val"] = norm.meta["val"].fake_mode.from_tensor(value, static_shapes=True)
    return node

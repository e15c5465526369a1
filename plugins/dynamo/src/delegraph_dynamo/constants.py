"""Which inputs of a graph are constants: Dynamo passes parameters, buffers and the
inputs of the user alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule


def constant_inputs(graph: GraphModule, example_inputs: Sequence[Any]) -> list[int]:
    """Positions of inputs that belong to the model and that the graph does not write,
    to be lowered as constants.

    The others stay inputs: what the user gives, buffers that the graph writes, whatever
    shares memory with these, and tensors made in inference mode, for which torch does
    not count writes.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    values = [node.meta.get("example_value") for node in placeholders]
    # Dynamo ran the graph on these fake tensors: the count of writes of those that the
    # graph writes is no longer 0
    written = {_memory(value) for value in values if _is_written(value)}
    return [
        k
        for k, (node, value, given) in enumerate(
            zip(placeholders, values, example_inputs, strict=True)
        )
        if _is_of_the_model(node)
        and isinstance(given, torch.Tensor)
        and not given.is_inference()
        if value is not None and _memory(value) not in written
    ]


def _is_of_the_model(node: torch.fx.Node) -> bool:
    """Whether Dynamo marked the input as a parameter, buffer or attribute of a module."""
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def _is_written(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not value.is_inference()
        and value._version > 0
    )


def _memory(value: torch.Tensor) -> Any:
    """A key that is equal for tensors that share memory. Those without memory of their
    own have none to share.
    """
    try:
        return value.untyped_storage()._cdata
    except NotImplementedError:  # sparse tensors, and wrappers of others
        return id(value)

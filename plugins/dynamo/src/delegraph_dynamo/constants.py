"""Finds the inputs of a graph that are constants.

Dynamo passes parameters and buffers as inputs, as it does the user's inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule


def constant_inputs(graph: GraphModule, example_inputs: Sequence[Any]) -> list[int]:
    """Return the positions of inputs that belong to the model and are never written.

    They are lowered as constants. The others stay inputs: the user's inputs, buffers
    that the graph writes, and tensors that share memory with these. Tensors made in
    inference mode stay inputs, too, because torch does not count writes to them.
    """
    placeholders = graph.graph.find_nodes(op="placeholder")
    values = [node.meta.get("example_value") for node in placeholders]
    # Dynamo ran the graph on these fake tensors. If the graph writes one, its count of
    # writes is no longer 0.
    written = {_memory(value) for value in values if _is_written(value)}
    positions: list[int] = []
    for k, given in enumerate(example_inputs):
        is_tensor = isinstance(given, torch.Tensor) and not given.is_inference()
        if not is_tensor or not _is_of_the_model(placeholders[k]):
            continue
        if values[k] is not None and _memory(values[k]) not in written:
            positions.append(k)
    return positions


def _is_of_the_model(node: torch.fx.Node) -> bool:
    """Return whether Dynamo marked the input as belonging to a module."""
    return "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})


def _is_written(value: Any) -> bool:
    """Return whether Dynamo's run of the graph wrote a fake tensor."""
    return (
        isinstance(value, torch.Tensor)
        and not value.is_inference()
        and value._version > 0
    )


def _memory(value: torch.Tensor) -> Any:
    """Return a key that is equal for tensors that share memory.

    Tensors without memory of their own share none.
    """
    try:
        return value.untyped_storage()._cdata
    except NotImplementedError:  # sparse tensors, and wrappers of others
        return id(value)

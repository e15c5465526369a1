"""Add the results of calls to the outputs of a model, to compare them with eager."""

from __future__ import annotations

from typing import NamedTuple

import onnx
from delegraph_engines import calls_in

from .format import DTYPES


class Observed(NamedTuple):
    """A value inside of a model: the number of its call, and its type."""

    call: int
    dtype: str
    rank: int


def add_outputs(model: onnx.ModelProto) -> list[Observed]:
    """Append the result of each call to the outputs of ``model``; return them in order.

    Calls with several results are left out, and those in branches and loop bodies.
    """
    graph = model.graph
    types = {info.name: info for info in graph.value_info}
    last_node = {}
    for node in graph.node:
        for call in calls_in(node.name)[:1]:
            last_node[call] = node
    observed = []
    for call, node in last_node.items():
        info = types.get(node.output[0])
        if info is None or len(node.output) != 1:
            continue
        tensor = info.type.tensor_type
        if tensor.elem_type in DTYPES and tensor.HasField("shape"):
            graph.output.append(info)
            dtype = DTYPES[tensor.elem_type]
            observed.append(Observed(call, dtype, len(tensor.shape.dim)))
    return observed

"""Finds recurrent layers that integers ruin, because errors of a state add up.

The steps of ``nn.LSTM`` are calls of their own in a program to quantize. The state after
one step is rounded, and the next step takes it. After 160 steps, little may be left of
the result. So each layer is run with all of its values rounded. If that ruins its
result, the layer is run again with integers in its matrix products only, and then the
other calls stay in floats. If that ruins the result, too, the whole layer does.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from delegraph_programs import TRACING
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from .calibration import Batch
from .float_calls import layer_of, place_of
from .sensitivity import Rounder, Rounding, without_rounding
from .signal_to_noise import is_ruined, signal_to_noise
from .unscaled import observer_calls

RECURRENT = {"GRU", "GRUCell", "LSTM", "LSTMCell", "RNN", "RNNCell"}
"""Classes of ``torch.nn``."""
PRODUCTS = {
    torch.ops.aten.linear.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.matmul.default,
    torch.ops.aten.mm.default,
}


class CoarseLayer(NamedTuple):
    """A recurrent layer that integers ruin.

    ``path``: its module. ``in_floats``: the names of the calls that have to stay in
    floats. ``is_whole``: these are all of its calls.
    """

    path: str
    in_floats: set[str]
    is_whole: bool

    def describe(self) -> str:
        """Return ``lstm``, or ``lstm except its matrix products``."""
        return self.path if self.is_whole else f"{self.path} except its matrix products"


def recurrent_layers(exported: ExportedProgram) -> dict[str, set[str]]:
    """Return the names of the calls of each recurrent layer, by the path of its module."""
    found: dict[str, set[str]] = {}
    for node in exported.graph.nodes:
        stack = [*(node.meta.get("nn_module_stack") or {}).values()]
        if node.op == "call_function" and stack:
            _, kind = stack[-1]
            name = kind.__qualname__ if isinstance(kind, type) else str(kind)
            if name.rpartition(".")[2] in RECURRENT:
                found.setdefault(place_of(node).module, set()).add(node.name)
    return found


def coarse_layers(
    prepared: GraphModule, exported: ExportedProgram, batches: Sequence[Batch]
) -> list[CoarseLayer]:
    """Return the recurrent layers of a calibrated program that integers ruin."""
    names_by_path = recurrent_layers(exported)
    if not names_by_path or not batches:
        return []
    module = without_rounding(prepared)
    found = []
    with TRACING, torch.no_grad():
        expected = [_values(module, batch) for batch in batches]
        for path, names in names_by_path.items():
            layer = _Layer(module, names)
            if is_ruined(layer.ratios(layer.calls, batches, expected)):
                products = {n for n in layer.calls if n.target in PRODUCTS}
                is_whole = is_ruined(layer.ratios(products, batches, expected))
                left = layer.calls if is_whole else layer.calls - products
                in_floats = {layer_of(call) for call in left}
                found.append(CoarseLayer(path, in_floats, is_whole))
    return found


class _Layer:
    """The calls of a recurrent layer in a program in floats."""

    def __init__(self, module: GraphModule, names: set[str]) -> None:
        self._module = module
        self.calls = {
            node
            for node in module.graph.nodes
            if node.op == "call_function" and layer_of(node) in names
        }

    def ratios(
        self,
        in_integers: set[Node],
        batches: Sequence[Batch],
        expected: Sequence[Mapping[Node, Any]],
    ) -> list[float]:
        """Return the lowest ratio of a result, in dB, for each batch.

        The operands of the calls ``in_integers`` are rounded. ``expected``: the values
        of the batches in floats.
        """
        rounders = []
        for call in observer_calls(self._module):
            rounder = self._module.get_submodule(str(call.target))
            if isinstance(rounder, Rounder) and not in_integers.isdisjoint(call.users):
                rounders.append(rounder)
        found = []
        for batch, values in zip(batches, expected, strict=True):
            with Rounding(rounders):
                rounded = _values(self._module, batch)
            found.append(
                min(signal_to_noise(rounded[n], values[n]) for n in self._results())
            )
        return found

    def _results(self) -> list[Node]:
        """Return the calls whose tensors are used outside of the layer."""
        found = []
        for call in self.calls:
            users = [*call.users]
            for user in users:
                if user.op == "call_module":
                    users += user.users
            is_used = any(u.op != "call_module" and u not in self.calls for u in users)
            if is_used and isinstance(call.meta.get("val"), torch.Tensor):
                found.append(call)
        return found


class _Recorder(Interpreter):
    """Runs a program and keeps the values of its calls."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.values: dict[Node, Any] = {}

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self.values[n] = value
        return value


def _values(module: GraphModule, batch: Batch) -> dict[Node, Any]:
    """Return the values of all nodes for a batch."""
    recorder = _Recorder(module)
    recorder.run(*copy.deepcopy(pytree.tree_leaves((batch.args, batch.kwargs))))
    return recorder.values

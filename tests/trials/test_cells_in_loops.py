"""Recurrent cells in loop bodies are quantized, and TOSA computes the quantized values."""

from __future__ import annotations

from typing import Any

import delegraph
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

pytest.importorskip("torchao")
from delegraph_quantize import quantize

pytestmark = pytest.mark.filterwarnings("ignore")  # of torchao
CELLS = {
    "LSTM": nn.LSTMCell,
    "GRU": nn.GRUCell,
    "RNN, tanh": nn.RNNCell,
    "RNN, relu": nn.RNNCell,
}
SPEC = {"tosa": {"spec": "TOSA-1.0+FP+INT+controlflow"}}


class Loop(nn.Module):
    """A cell that is called in a loop body."""

    def __init__(self, name: str) -> None:
        super().__init__()
        more: Any = {"nonlinearity": "relu"} if name == "RNN, relu" else {}
        self.cell = CELLS[name](4, 4, **more)

    def step(self, x: Tensor, hidden: Tensor) -> Tensor:
        if isinstance(self.cell, nn.LSTMCell):
            result, _ = self.cell(x, (hidden, hidden))
            return result  # type: ignore[no-any-return]
        return self.cell(x, hidden)  # type: ignore[no-any-return]


class While(Loop):
    """Three steps of ``while_loop``."""

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        def goes_on(count: Tensor, hidden: Tensor) -> Tensor:
            return count < 3

        def body(count: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
            return count + 1, self.step(x[0], hidden)

        start = torch.zeros((), dtype=torch.int32)
        return while_loop(goes_on, body, (start, hidden))[1]  # type: ignore[no-any-return]


class Scan(Loop):
    """A step for each row of ``x``."""

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        def body(hidden: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            result = self.step(row, hidden)
            return result, result.clone()

        return scan(body, hidden, x)[1]  # type: ignore[no-any-return]


def signal_to_noise(result: Tensor, wanted: Tensor) -> float:
    noise = (result - wanted).square().sum()
    return float(10 * torch.log10(wanted.square().sum() / noise.clamp_min(1e-20)))


FAST = [(While, "GRU"), (Scan, "LSTM")]
ROWS = [
    pytest.param(
        kind,
        name,
        marks=[pytest.mark.slow] * ((kind, name) not in FAST),
        id=f"{kind.__name__}, {name}",
    )
    for kind in (While, Scan)
    for name in CELLS
]


@pytest.mark.parametrize(("kind", "name"), ROWS)
def test_cells_in_loop_bodies_are_quantized(kind: type[Loop], name: str) -> None:
    torch.manual_seed(0)
    model = kind(name).eval()
    batches = [(torch.randn(3, 2, 4), torch.randn(2, 4).tanh()) for _ in range(8)]
    program = quantize(model, batches, backend="tosa")
    bodies = [
        m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)
    ]
    names = [[str(node.target) for node in body.graph.nodes] for body in bodies]
    called = {target for targets in names for target in targets}
    assert called.isdisjoint(["aten.lstm_cell.default", "aten.gru_cell.default"])
    assert called.isdisjoint(
        ["aten.rnn_tanh_cell.default", "aten.rnn_relu_cell.default"]
    )

    [inside] = [targets for targets in names if "aten.linear.default" in targets]
    assert sum("quantize_per_tensor" in target for target in inside) > 4

    inputs = batches[0]
    expected = program.module()(*inputs)
    assert signal_to_noise(expected, model(*inputs)) > 25

    lowered = delegraph.lower(program, inputs, backends=["tosa"], options=SPEC)
    assert signal_to_noise(lowered(*inputs), expected) > 35
    assert lowered.delegates

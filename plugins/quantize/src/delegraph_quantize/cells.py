"""Writes cells of recurrent networks as products, sums and gates.

Quantizers can set a scale between these operators.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from delegraph_programs import to_core
from torch import Tensor
from torch.nn.functional import linear

aten = torch.ops.aten


def _rnn_tanh_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    return torch.tanh(linear(input, w_ih, b_ih) + linear(hx, w_hh, b_hh))


def _rnn_relu_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    return torch.relu(linear(input, w_ih, b_ih) + linear(hx, w_hh, b_hh))


CELLS: dict[Any, Callable[..., Any] | None] = {
    aten.lstm_cell.default: to_core(aten.lstm_cell.default),
    aten.gru_cell.default: to_core(aten.gru_cell.default),
    aten.rnn_tanh_cell.default: _rnn_tanh_cell,
    aten.rnn_relu_cell.default: _rnn_relu_cell,
}
"""Operator -> a function that computes it by operators that quantizers know."""

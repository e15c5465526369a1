"""Cells of recurrent networks as products, sums and gates, between which there can be scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

aten = torch.ops.aten


def _lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    hidden, cell = hx
    gates = linear(input, w_ih, b_ih) + linear(hidden, w_hh, b_hh)
    in_gate, forget_gate, new, out_gate = gates.chunk(4, 1)
    cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(in_gate) * torch.tanh(new)
    return torch.sigmoid(out_gate) * torch.tanh(cell), cell


def _gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    of_input = linear(input, w_ih, b_ih).chunk(3, 1)
    of_hidden = linear(hx, w_hh, b_hh).chunk(3, 1)
    reset_gate = torch.sigmoid(of_input[0] + of_hidden[0])
    update_gate = torch.sigmoid(of_input[1] + of_hidden[1])
    new = torch.tanh(of_input[2] + reset_gate * of_hidden[2])
    return (hx - new) * update_gate + new


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


CELLS: dict[Any, Callable[..., Any]] = {
    aten.lstm_cell.default: _lstm_cell,
    aten.gru_cell.default: _gru_cell,
    aten.rnn_tanh_cell.default: _rnn_tanh_cell,
    aten.rnn_relu_cell.default: _rnn_relu_cell,
}
"""Operator -> a function that computes it by operators that quantizers know."""

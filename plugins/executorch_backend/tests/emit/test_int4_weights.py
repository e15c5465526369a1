"""Weights of four bits that the host dequantizes: a byte each, which the kernels of
ExecuTorch's runtime read.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..support.judge import check_in_both_runtimes

ROWS = 64
COLUMNS = 128


class Layer(nn.Module):
    """A weight of integers that the host turns into floats."""

    def __init__(self) -> None:
        super().__init__()
        numbers = torch.arange(ROWS * COLUMNS) % 16 - 8
        self.register_buffer("weight", numbers.to(torch.int8).reshape(ROWS, COLUMNS))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.float() * 0.5).t()


def test_four_bits_take_a_byte_and_no_shifts() -> None:
    emitted = check_in_both_runtimes(
        Layer(), [(torch.linspace(-2, 3, 3 * COLUMNS).reshape(3, COLUMNS),)]
    )
    assert ROWS * COLUMNS <= len(emitted.file) < ROWS * COLUMNS + 3000
    kernels = {
        str(operator) for plan in emitted.program.plans for operator in plan.operators
    }
    assert not any("shift" in kernel for kernel in kernels)

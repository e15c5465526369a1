"""``.pte`` files of the host avoid kernels of ExecuTorch that compute wrong values."""

import delegraph
import pytest
import torch
from torch import inf, nan

from plugins.executorch_backend.tests.support.both_runtimes import save_and_expect_right

FLOATS = torch.tensor([nan, inf, -inf, -0.0, 0.0, 1.5, -2.0])
DIVISORS = torch.tensor([0.0, 2.0, 2.0, 0.0, -0.0, nan, 0.0])
INTEGERS = torch.tensor([-(2**31), 2**31 - 1, 5, -5, 7, -8, 1], dtype=torch.int32)
BY = torch.tensor([-1, -1, 2, 2, -3, 3, -1], dtype=torch.int32)
COUNTS = torch.tensor([1, 33, 2, 31, -1, 32, 40], dtype=torch.int32)
BYTES = torch.tensor([255, 128, 1, 3, 0, 7, 64], dtype=torch.uint8)
ROWS = torch.arange(12.0).reshape(3, 4)
NOTHING = torch.full((3, 3), nan)

PROGRAMS = {
    "sign of NaN": (torch.sign, FLOATS),
    "sgn of NaN": (torch.sgn, FLOATS),
    "sign of NaN in half precision": (torch.sign, FLOATS.half()),
    "addmm without its first operand": (
        lambda c, x: torch.addmm(c, x, x.T, beta=0),
        NOTHING,
        ROWS,
    ),
    "addmm of infinities without its first operand": (
        lambda c, x: torch.addmm(c, x, x.T, beta=0, alpha=2),
        NOTHING * 0 + inf,
        ROWS,
    ),
    "addmv without its first operand": (
        lambda c, x: torch.addmv(c[0], x, x[0], beta=0),
        NOTHING,
        ROWS,
    ),
    "baddbmm without its first operand": (
        lambda c, x: torch.baddbmm(c[None], x[None], x.T[None], beta=0),
        NOTHING,
        ROWS,
    ),
    "addbmm without its first operand": (
        lambda c, x: torch.addbmm(c, x[None], x.T[None], beta=0),
        NOTHING,
        ROWS,
    ),
    "addmm with its first operand": (
        lambda c, x: torch.addmm(c, x, x.T),
        NOTHING,
        ROWS,
    ),
    "floor of zero by zero": (
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        FLOATS,
        DIVISORS,
    ),
    "floor_divide of zero by zero": (torch.floor_divide, FLOATS, DIVISORS),
    "floor of floats by the number zero": (
        lambda a: torch.div(a, 0.0, rounding_mode="floor"),
        FLOATS,
    ),
    "the least integer by -1, floor": (
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        INTEGERS,
        BY,
    ),
    "the least integer by -1, floor_divide": (torch.floor_divide, INTEGERS, BY),
    "the least integer by the number -1": (lambda a: a // -1, INTEGERS),
    "the least long integer by -1": (
        torch.floor_divide,
        torch.tensor([-(2**63), 7]),
        torch.tensor([-1, -2]),
    ),
    "remainder by -1": (torch.remainder, INTEGERS, BY),
    "towards zero": (
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        INTEGERS[1:],
        BY[1:],
    ),
    "left shifts by any count": (torch.bitwise_left_shift, INTEGERS, COUNTS),
    "right shifts by any count": (torch.bitwise_right_shift, INTEGERS, COUNTS),
    "left shift of bytes": (
        torch.bitwise_left_shift,
        BYTES,
        COUNTS.clamp(0, 9).to(torch.uint8),
    ),
    "right shift of bytes": (
        torch.bitwise_right_shift,
        BYTES,
        COUNTS.clamp(0, 9).to(torch.uint8),
    ),
    "left shift by a number": (lambda a: a << 3, INTEGERS),
    "right shift by a large number": (lambda a: a >> 40, INTEGERS),
    "narrow_copy": (lambda x: torch.narrow_copy(x, 1, -3, 2), ROWS),
    "a decomposed operator of a view": (
        lambda x: torch.hypot(x, x[:, :1]),
        ROWS[:, 1:],
    ),
}


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_special_values_in_a_host_pte_equal_eager(name, tmp_path):
    function, *inputs = PROGRAMS[name]
    inputs = tuple(inputs)
    program = delegraph.lower(Model(function), inputs, backends=[])
    save_and_expect_right(program, function, inputs, folder=tmp_path)

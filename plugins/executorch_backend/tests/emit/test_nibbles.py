"""Weights of four bits in a file: two in a byte, taken apart by kernels of ExecuTorch's own runtime."""

from __future__ import annotations

import io
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import OptionError
from delegraph_executorch.emit import EmitOptions, nibbles
from delegraph_executorch.kernels import kernel_set
from torch import Tensor, nn

from ..support.judge import check_numbers, emit, lower

ROWS, COLUMNS = 64, 128
CALLS = [(torch.linspace(-2, 3, 3 * COLUMNS).reshape(3, COLUMNS),), (torch.full((3, COLUMNS), float("nan")),)]


class Layer(nn.Module):
    """A weight of integers that the host turns into floats."""

    def __init__(self, weight: Tensor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.to(self.dtype) * 0.5).to(x.dtype).reshape(-1, COLUMNS).t()


class Twice(Layer):
    """The second time in a branch."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return torch.cond(x.sum() > 0, lambda v: v @ self.weight.float().t(), lambda v: v[:, :ROWS] * 2, (x,)) + y


def weight(*shape: int, low: int = -8, high: int = 7) -> Tensor:
    """Every number from ``low`` to ``high``, in one half otherwise than in the other."""
    count = torch.Size(shape).numel()
    numbers = torch.arange(count) * 7 + torch.arange(count) // 16 + torch.arange(count) // 1000
    return (numbers % (high - low + 1) + low).to(torch.int8).reshape(shape)


def kernels(emitted: Any) -> set[str]:
    return {str(operator) for plan in emitted.program.plans for operator in plan.operators}


@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (2, ROWS // 2, COLUMNS)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_two_in_a_byte(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    emitted = check_numbers(Layer(weight(*shape), dtype), CALLS)
    assert ROWS * COLUMNS // 2 <= len(emitted.file) < ROWS * COLUMNS // 2 + 3000
    assert "aten::bitwise_left_shift.Tensor_Scalar_out" in kernels(emitted)


def test_a_byte_each_where_it_is_asked_for() -> None:
    emitted = check_numbers(Layer(weight(ROWS, COLUMNS)), CALLS, options=EmitOptions(pack_int4=False))
    assert ROWS * COLUMNS <= len(emitted.file)
    assert "aten::bitwise_left_shift.Tensor_Scalar_out" not in kernels(emitted)
    with pytest.raises(OptionError, match="pack_int4 is True or False, not 4"):
        EmitOptions(pack_int4=4)  # type: ignore[arg-type]


def test_a_weight_that_is_read_in_a_branch_too() -> None:
    emitted = check_numbers(Twice(weight(ROWS, COLUMNS)), [*CALLS, (-torch.ones(3, COLUMNS),)])
    assert len(emitted.file) < ROWS * COLUMNS // 2 + 5000


@pytest.mark.parametrize(
    "kept",
    [
        weight(ROWS, COLUMNS, high=8),
        weight(ROWS, COLUMNS, low=-9),
        weight(ROWS - 1, COLUMNS),
        weight(2, COLUMNS),
        weight(ROWS, COLUMNS).to(torch.int16),
    ],
)
def test_other_integers_stay_as_they_are(kept: Tensor) -> None:
    emitted = emit(lower(Layer(kept), CALLS[0]))
    assert len(emitted.file) > kept.nbytes and "aten::cat.out" not in kernels(emitted)


def test_without_the_kernels_it_stays_as_it_is() -> None:
    known = [name for name in kernel_set(None).names if "shift" not in name]
    options = EmitOptions(kernels=type(kernel_set(None))("few", frozenset(known)))
    assert len(emit(lower(Layer(weight(ROWS, COLUMNS)), CALLS[0]), options).file) > ROWS * COLUMNS


def test_methods_share_it() -> None:
    model = Layer(weight(ROWS, COLUMNS)).eval()
    inputs = {"one": (torch.ones(1, COLUMNS),), "three": (torch.ones(3, COLUMNS),)}
    programs = {name: torch.export.export(model, given) for name, given in inputs.items()}
    assert len(emit(delegraph.lower(programs, backends=[])).file) < ROWS * COLUMNS // 2 + 4000


@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
def test_bytes_do_not_depend_on_how_many_are_packed_at_once(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = weight(ROWS, COLUMNS)
    monkeypatch.setattr(nibbles, "_PIECE", piece)
    for laid_out in (given, given.t().contiguous().t()):
        blob, file = nibbles.Nibbles(laid_out), io.BytesIO()
        blob.write_to(file)
        packed = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.int8).reshape(ROWS // 2, COLUMNS)
        assert len(blob) == packed.numel()
        assert torch.equal(torch.cat([(packed << 4) >> 4, packed >> 4]), given)

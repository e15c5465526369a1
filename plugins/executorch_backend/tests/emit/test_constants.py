"""Calls on constants alone that no kernel computes: their results are constants of the
file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from delegraph.errors import Unsupported
from delegraph_executorch.emit import EmitOptions, EmittedProgram
from torch import Tensor, nn

from ..support import programs as p
from ..support.judge import check_in_both_runtimes, emit, lower

ROWS = 64
COLUMNS = 32


def rotated(x: Tensor) -> Tensor:
    """By angles of numbers alone: `polar` makes complex ones, which kernels of the
    runtime do not.
    """
    angles = torch.outer(
        torch.arange(ROWS).float(), 1e4 ** -torch.linspace(0, 1, COLUMNS)
    )
    turn = torch.view_as_real(torch.polar(torch.ones_like(angles), angles))
    return x * turn[..., 0] - x * turn[..., 1]


def windowed(x: Tensor) -> Tensor:
    return x * torch.kaiser_window(x.shape[-1])


def in_a_branch(x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, windowed, torch.relu, (x,))


def returned(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    window = torch.kaiser_window(COLUMNS)
    return x + 1, window, window.flip(0)


class OfWeights(nn.Module):
    """Several results, one of them of other than C order, of a weight that is used
    otherwise too.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(COLUMNS, COLUMNS))
        self.register_buffer("many", torch.randn(3000))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, r = torch.linalg.qr(self.weight)
        values, places = self.many.sort()
        return x @ q + x @ r.t(), (x @ self.weight).sum() * values + places


def kernels_of(emitted: EmittedProgram) -> set[str]:
    (plan,) = emitted.program.plans
    return {op.name for op in plan.operators}


@pytest.mark.parametrize(
    "function", [rotated, windowed, in_a_branch, returned], ids=lambda f: f.__name__
)
def test_results_are_those_of_eager(function: Callable[..., Any]) -> None:
    x = torch.linspace(-1, 2, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    check_in_both_runtimes(p.Function(function), [(x,), (-x,)])


def test_results_of_weights_several_at_once() -> None:
    x = torch.linspace(-1, 2, 3 * COLUMNS).reshape(3, COLUMNS)
    check_in_both_runtimes(OfWeights(), [(x,), (x + 1,)])


def test_operators_used_only_for_constants_are_not_emitted() -> None:
    emitted = emit(lower(p.Function(rotated), (torch.ones(ROWS, COLUMNS),)))
    assert not kernels_of(emitted) & {
        "aten::arange",
        "aten::pow",
        "aten::cos",
        "aten::full",
    }
    assert len(emitted.file.join()) < 2 * ROWS * COLUMNS * 4 + 8192, (
        "cosines and sines, once"
    )


def test_large_constants_are_folded_in_the_file() -> None:
    x = torch.ones(2**22 + 2)
    lowered = lower(p.Function(windowed), (x,))
    assert lowered.report.host == {
        "forward": {"aten.kaiser_window.default": 1, "aten.mul.Tensor": 1}
    }
    assert len(emit(lowered).file.join()) > x.nbytes


def test_a_constant_in_a_data_file_may_change() -> None:
    lowered = lower(OfWeights(), (torch.ones(3, COLUMNS),))
    with pytest.raises(Unsupported, match=r"no kernel that computes aten.linalg_qr"):
        emit(lowered, EmitOptions(external_constants=True))


def test_written_and_random_values_are_no_constants() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.eye(3))

        def forward(self, x: Tensor) -> Tensor:
            y = x @ torch.linalg.qr(self.state)[0]
            self.state += 1
            return y

    for module in (
        Written(),
        p.Function(lambda x: x @ torch.linalg.qr(torch.rand(3, 3))[0]),
    ):
        with pytest.raises(
            Unsupported, match=r"no kernel that computes aten.(linalg_qr|rand)"
        ):
            emit(lower(module, (torch.ones(3),)))


def test_refused_expert_kernels_have_a_hint() -> None:
    with pytest.raises(
        Unsupported, match=r"no kernel that computes aten.histc"
    ) as raised:
        emit(lower(p.Function(lambda x: torch.histc(x, 4, 0, 3)), (torch.ones(3),)))
    assert 'set_experts_implementation("batched_mm")' in raised.value.hint


def checked(x: Tensor) -> Tensor:
    torch._check_tensor_all(x.abs() < 100, lambda: "large")
    torch._assert_async((x == x).all(), "not a number")
    return x * 2


def test_checks_are_left_out_of_files() -> None:
    x = torch.linspace(-1, 1.5, 12)
    check_in_both_runtimes(p.Function(checked), [(x,), (-x,)])


class TiedHead(nn.Module):
    """An embedding whose weight is that of the head, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, COLUMNS)
        self.bias = nn.Parameter(torch.linspace(-1, 1, ROWS))

    def forward(self, ids: Tensor) -> Tensor:
        return torch.addmm(self.bias, self.table(ids), self.table.weight.t())


def test_a_tied_head_keeps_its_bias_and_is_there_once() -> None:
    emitted = check_in_both_runtimes(TiedHead(), [(torch.tensor([1, 2, ROWS - 1]),)])
    assert len(emitted.file) < 1.5 * ROWS * COLUMNS * 4
    names = {
        str(operator) for plan in emitted.program.plans for operator in plan.operators
    }
    assert any("linear" in name for name in names)

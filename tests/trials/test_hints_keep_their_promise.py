"""Following a hint of the report delegates as many operators as it promises."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import delegraph
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

IDS = torch.tensor([1, 2, 3])
MASK = torch.tensor([[1, 1, 0]])
X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


class Program(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.function = function
        self.table = nn.Embedding(50, 8)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Row(NamedTuple):
    """A program and its input."""

    function: Callable[[Any, Tensor], Tensor]
    x: Tensor


INTEGERS = {
    "ids by a remainder": Row(lambda m, i: m.table(i * 2 % 50), IDS),
    "sums": Row(lambda m, i: m.table((i.cumsum(0) - 1).clamp(0, 49)), IDS),
    "arithmetic": Row(lambda m, i: i * 2 + 1, IDS),
    "a comparison": Row(lambda m, i: (i > 1).float() * 2, IDS),
    "a mask": Row(lambda m, i: (1 - i) * -10000.0, MASK),
    "products of a mask": Row(lambda m, i: (i * i * i * i).sum(1) + 1, MASK),
    "squares": Row(lambda m, i: m.table((i * i + i) % 50), IDS),
    "differences": Row(lambda m, i: (i[:, None] - i[None]).abs() * 1000000, IDS),
}
DOUBLES = {
    "a float64 input": Row(lambda m, x: torch.sin(x) * 2, X.double()),
    "a float64 inside": Row(lambda m, x: torch.sin(x.double()) * 2, X),
}
FLOATS = {
    "softplus": Row(lambda m, x: F.softplus(m.linear(x)), X),
    "mish": Row(lambda m, x: F.mish(m.linear(x)), X),
    "glu": Row(lambda m, x: F.glu(m.linear(x)), X),
    "silu": Row(lambda m, x: F.silu(m.linear(x)), X),
    "gelu": Row(lambda m, x: F.gelu(m.linear(x)), X),
    "addcmul": Row(lambda m, x: torch.addcmul(m.linear(x), x, x), X),
    "lerp": Row(lambda m, x: torch.lerp(m.linear(x), x, 0.5), X),
    "softmax": Row(lambda m, x: m.linear(x).softmax(-1), X),
    "channel shuffle": Row(
        lambda m, x: F.channel_shuffle(m.linear(x)[..., None, None], 2), X
    ),
    "hard shrink": Row(lambda m, x: F.softshrink(m.linear(x)), X),
}


def lower(program: nn.Module, x: Tensor, spec: str = "", promised: str = "") -> Any:
    options: dict[str, Any] = {"spec": spec} if spec else {}
    if promised:
        options["int32_inputs"] = [promised]
    return delegraph.lower(
        program.eval(),
        (x,),
        backends=["tosa"],
        options={"tosa": options} if options else {},
    )


def count_delegated(report: Any) -> int:
    """Return how many operators of the user are delegated."""
    return int(report.delegated_operators)


def follow_hint(hint: str, program: nn.Module, x: Tensor, spec: str) -> Any:
    """Change the program or the options as the hint says, and lower again."""
    if named := re.search(r'"int32_inputs": \["([^"]+)"\]', hint):
        return lower(program, x, spec, named.group(1))
    if "be int32 from the start" in hint:
        return lower(program, x.int(), spec)
    assert "float32 from the start" in hint, hint
    return lower(program, x.float(), spec)


@pytest.mark.parametrize("spec", ["", "TOSA-1.0+INT", "TOSA-1.0+FP"])
@pytest.mark.parametrize("name", [*INTEGERS, "a float64 input"])
def test_following_a_hint_delegates_the_promised_operators(name, spec):
    row = (INTEGERS | DOUBLES)[name]
    program = Program(row.function)
    report = lower(program, row.x, spec).report
    promising = [cause for cause in report.causes if cause.frees and cause.hint]
    for cause in promising:
        again = follow_hint(cause.hint, program, row.x, spec)
        assert count_delegated(again.report) >= count_delegated(report) + cause.frees
    if not spec:
        assert promising or report.host_operators == 0


def test_ids_of_a_remainder_are_delegated_with_a_range():
    row = INTEGERS["ids by a remainder"]
    [cause] = lower(Program(row.function), row.x).report.causes
    assert "=0..32767" in cause.hint
    assert cause.frees == 2
    assert (
        count_delegated(
            follow_hint(cause.hint, Program(row.function), row.x, "").report
        )
        == 3
    )


@pytest.mark.parametrize("name", FLOATS)
def test_floats_for_an_integer_target_get_the_hint_to_quantize(name):
    pytest.importorskip("delegraph_quantize")
    from delegraph_quantize import quantize

    row = FLOATS[name]
    program = Program(row.function).eval()
    report = lower(program, row.x, "TOSA-1.0+INT").report
    assert "no TOSA lowering" not in str(report)
    assert "quantize" in str(report)

    quantized = quantize(program, [(row.x,)], backend="tosa")
    again = delegraph.lower(
        quantized, backends=["tosa"], options={"tosa": {"spec": "TOSA-1.0+INT"}}
    )
    # the host quantizes the input and dequantizes the result
    assert again.report.host_operators <= 2

"""Whole networks with XNNPACK through the bridge, saved, in ExecuTorch's own runtime,
beside eager PyTorch.
"""

from __future__ import annotations

import copy
from typing import Any

import delegraph
import pytest
import torch
from torch import nn

from ..support.cases import STATIC
from ..support.judge import assert_equal, check_in_both_runtimes, emit, stock_runtime
from ..support.models import MODELS
from ..support.programs import Function

# whatever ExecuTorch warns of at import and at compile time
pytestmark = pytest.mark.filterwarnings("ignore")
FEW = ["mlp", "dynamic batch"]
"""What the default run looks at; ``test_bridge.py`` has one of the larger networks."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in FEW else pytest.mark.slow) for n in MODELS],
)
def test_xnnpack_networks_compute_as_eager_in_both_runtimes(name: str) -> None:
    torch.manual_seed(0)
    module, calls, shapes = MODELS[name]()
    check_in_both_runtimes(module, calls, shapes, backends=["xnnpack"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "branch",
        "loop",
        "branch in loop",
        "counter",
        "cache",
        "running",
        "rows",
        "images",
    ],
)
def test_control_flow_and_state(name: str) -> None:
    module, calls = STATIC[name]
    check_in_both_runtimes(module, calls, backends=["xnnpack"])


def test_xnnpack_refuses_unsupported_types() -> None:
    """Ints, bools and doubles stay on the host, beside floats and halves that do not."""

    def mixed(x: Any, i: Any, b: Any, h: Any) -> Any:
        return (
            torch.relu(x) * 2,
            i + 1,
            b & (i > 1),
            torch.sigmoid(h * 2),
            x.double() * 2,
            torch.where(b, x, -x),
        )

    half = torch.tensor([1.0, 2.0, -3.0], dtype=torch.half)
    call = (
        torch.randn(3),
        torch.tensor([1, 2, 3]),
        torch.tensor([True, False, True]),
        half,
    )
    check_in_both_runtimes(Function(mixed).eval(), [call], backends=["xnnpack"])


class TwoMethods(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Linear(16, 64)
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.shared(x)))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.shared(x))


def test_two_methods_that_share_weights() -> None:
    runtime = stock_runtime()
    torch.manual_seed(0)
    module = TwoMethods().eval()
    x = torch.randn(2, 16)
    encode = copy.copy(module)
    encode.forward = module.encode  # type: ignore[method-assign]
    programs = {
        "forward": torch.export.export(module, (x,)),
        "encode": torch.export.export(encode, (x,)),
    }
    lowered = delegraph.lower(programs, backends=["xnnpack"])
    content = emit(lowered).file.join()
    weight = module.shared.weight.detach().numpy().tobytes()
    assert content.count(weight[:256]) == 1, (
        "XNNPACK names weights by content, and the file has each once"
    )
    program = runtime.load_program(content)
    with torch.no_grad():
        assert_equal(program.load_method("forward").execute([x]), [module(x)])
        assert_equal(program.load_method("encode").execute([x]), [module.encode(x)])

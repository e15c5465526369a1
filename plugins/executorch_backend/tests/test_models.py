"""Whole networks as program files: in ExecuTorch's runtime and in torch, with and
without delegates.
"""

from __future__ import annotations

import copy

import pytest
import torch
from delegraph_executorch.memory.verify import find_conflicts
from delegraph_executorch.run.calls import split_delegate_calls
from torch.utils import _pytree as pytree

from .support.judge import (
    assert_equal,
    check_in_both_runtimes,
    emit,
    lower,
    run_on_host,
)
from .support.models import MODELS

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes")
FEW = ["mobilenet-v3", "lstm", "bert-tiny", "llama", "dynamic batch"]
"""What the default run looks at; the others are of the same kinds."""


def _parameters(few: list[str]) -> list[object]:
    return [
        pytest.param(name, marks=() if name in few else pytest.mark.slow)
        for name in MODELS
    ]


@pytest.mark.parametrize("name", _parameters(FEW))
def test_in_the_stock_runtime(name: str) -> None:
    torch.manual_seed(0)
    module, calls, shapes = MODELS[name]()
    check_in_both_runtimes(module, calls, shapes)


@pytest.mark.parametrize("name", _parameters(["llama", "dynamic batch"]))
def test_in_the_stock_runtime_with_delegates_in_between(name: str) -> None:
    torch.manual_seed(0)
    module, calls, shapes = MODELS[name]()
    check_in_both_runtimes(module, calls, shapes, backends=["compiler-demo"])


@pytest.mark.parametrize(
    "backends", [[], ["compiler-demo"]], ids=["host", "compiler-demo"]
)
@pytest.mark.parametrize("name", _parameters(FEW))
def test_models_compute_as_eager_when_torch_runs_the_file(
    name: str, backends: list[str]
) -> None:
    torch.manual_seed(0)
    module, calls, shapes = MODELS[name]()
    emitted = emit(lower(module, calls[0], shapes, backends=backends))
    plan = emitted.program.plans[0]
    assert find_conflicts(plan, split_delegate_calls(plan)) == []
    program = run_on_host(emitted)
    eager = copy.deepcopy(module)
    for call in calls:
        with torch.no_grad():
            assert_equal(
                pytree.tree_leaves(program(*call)), pytree.tree_leaves(eager(*call))
            )

"""Program files of whole networks compute as eager, in ExecuTorch's runtime and torch."""

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
FAST_MODELS = ["mobilenet-v3", "lstm", "bert-tiny", "llama", "dynamic batch"]
"""The models of the default run; the others are similar, and marked as slow."""


def _all_models(fast: list[str]) -> list[object]:
    """Return all models as parameters; those that are not ``fast`` are marked as slow."""
    return [
        pytest.param(name, marks=() if name in fast else pytest.mark.slow)
        for name in MODELS
    ]


@pytest.mark.parametrize("name", _all_models(FAST_MODELS))
def test_models_compute_as_eager_in_the_stock_runtime(name: str) -> None:
    torch.manual_seed(0)
    module, calls, shapes = MODELS[name]()
    check_in_both_runtimes(module, calls, shapes)


@pytest.mark.parametrize("name", _all_models(["llama", "dynamic batch"]))
def test_partly_delegated_models_compute_as_eager_in_the_stock_runtime(
    name: str,
) -> None:
    torch.manual_seed(0)
    module, calls, shapes = MODELS[name]()
    check_in_both_runtimes(module, calls, shapes, backends=["compiler-demo"])


@pytest.mark.parametrize(
    "backends", [[], ["compiler-demo"]], ids=["host", "compiler-demo"]
)
@pytest.mark.parametrize("name", _all_models(FAST_MODELS))
def test_models_compute_as_eager_when_torch_runs_the_file(
    name: str, backends: list[str]
) -> None:
    torch.manual_seed(0)
    module, calls, shapes = MODELS[name]()
    emitted = emit(lower(module, calls[0], shapes, backends=backends))
    program = run_on_host(emitted)
    eager = copy.deepcopy(module)

    for call in calls:
        with torch.no_grad():
            actual = pytree.tree_leaves(program(*call))
            expected = pytree.tree_leaves(eager(*call))
        assert_equal(actual, expected)

    # no two tensors of the memory plan overlap
    plan = emitted.program.plans[0]
    assert find_conflicts(plan, split_delegate_calls(plan)) == []

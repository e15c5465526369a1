"""Program files, read back and run in torch, give eager's numbers; no ExecuTorch is needed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from delegraph_executorch.emit import EmitOptions
from torch import nn
from torch.utils import _pytree as pytree

from ..support.cases import DYNAMIC, STATIC, randn
from ..support.judge import emit, expect_equal, lower, run_on_host

GIVEN = EmitOptions(plan_inputs=False, plan_outputs=False)


def check(module: nn.Module, calls: list[tuple[Any, ...]], shapes: Any = None, options: Any = None) -> None:
    program = run_on_host(emit(lower(module, calls[0], shapes), options))
    eager = copy.deepcopy(module)
    for call in calls:
        got = program(*copy.deepcopy(call))
        with torch.no_grad():
            wanted = eager(*copy.deepcopy(call))
        expect_equal(pytree.tree_leaves(got), pytree.tree_leaves(wanted))


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize(
    "options", [None, EmitOptions(plan_inputs=False, plan_outputs=False)], ids=["planned", "given"]
)
@pytest.mark.parametrize("name", STATIC)
def test_static(name: str, options: EmitOptions | None) -> None:
    module, calls = STATIC[name]
    check(module, calls, options=options)


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_batch(name: str) -> None:
    module, shapes = DYNAMIC[name]
    check(module, [(randn(3, 4),), (randn(16, 4),), (randn(2, 4),)], shapes)

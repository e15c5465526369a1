"""Program files, read back and run in torch, give eager's numbers; no ExecuTorch is
needed.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from delegraph.errors import FormatError, InputError, Unsupported
from delegraph_executorch.emit import EmitOptions
from delegraph_executorch.program.pte_tables import Int
from delegraph_executorch.serialize.reader import read_program
from torch import nn
from torch.utils import _pytree as pytree

from ..support import programs as p
from ..support.cases import DYNAMIC, STATIC, randn
from ..support.judge import assert_equal, emit, host_program, lower, run_on_host

GIVEN = EmitOptions(plan_inputs=False, plan_outputs=False)


def assert_host_equals_eager(
    module: nn.Module,
    calls: list[tuple[Any, ...]],
    shapes: Any = None,
    options: Any = None,
) -> None:
    program = run_on_host(emit(lower(module, calls[0], shapes), options))
    eager = copy.deepcopy(module)
    for call in calls:
        actual = program(*copy.deepcopy(call))
        with torch.no_grad():
            expected = eager(*copy.deepcopy(call))
        assert_equal(pytree.tree_leaves(actual), pytree.tree_leaves(expected))


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize(
    "options",
    [None, EmitOptions(plan_inputs=False, plan_outputs=False)],
    ids=["planned", "given"],
)
@pytest.mark.parametrize("name", STATIC)
def test_host_runs_static_programs_as_eager(
    name: str, options: EmitOptions | None
) -> None:
    module, calls = STATIC[name]
    assert_host_equals_eager(module, calls, options=options)


@pytest.mark.parametrize("name", DYNAMIC)
def test_host_runs_dynamic_batches_as_eager(name: str) -> None:
    module, shapes = DYNAMIC[name]
    assert_host_equals_eager(
        module, [(randn(3, 4),), (randn(16, 4),), (randn(2, 4),)], shapes
    )


@pytest.mark.parametrize("operator", ["add", "sub", "rsub"])
def test_a_number_times_a_factor_is_added_or_subtracted(operator: str) -> None:
    scalar = getattr(torch.ops.aten, operator).Scalar
    assert_host_equals_eager(p.Function(lambda x: scalar(x, 2, 3)), [(randn(3),)])


def test_files_cannot_allocate_more_memory_than_declared() -> None:
    emitted = emit(lower(p.Function(lambda x: x + torch.full((8,), 2.0)), (randn(8),)))
    file = read_program(emitted.file.join())
    plan = file.program.plans[0]
    huge = [
        replace(value, value=Int(1 << 40)) if value.value == Int(8) else value
        for value in plan.values
    ]
    wrong = replace(
        file, program=replace(file.program, plans=(replace(plan, values=tuple(huge)),))
    )
    with pytest.raises(
        FormatError, match=r"is computed as torch.float32 of sizes \[1099511627776\]"
    ):
        host_program(wrong)(randn(8))


def test_a_loop_that_does_not_end_is_ended() -> None:
    module = p.Function(
        lambda x: torch.while_loop(lambda x: x.sum() < 1e9, lambda x: (x * 1.0,), (x,))
    )
    program = run_on_host(emit(lower(module, (randn(3, 4),))), max_iterations=20)
    with pytest.raises(Unsupported, match="ran 20 rounds"):
        program(randn(3, 4))


def test_planned_memory_is_bounded() -> None:
    emitted = emit(lower(p.Function(lambda x: x.exp().sin()), (randn(64, 64),)))
    with pytest.raises(
        Unsupported, match="plans 32768 bytes of memory, and 1000 are allowed"
    ):
        run_on_host(emitted, max_memory=1000)(randn(64, 64))


@pytest.mark.parametrize(
    "wrong",
    [(), (randn(2, 4),), (randn(3, 4).double(),), (3,)],
    ids=["none", "rows", "type", "int"],
)
def test_inputs_that_do_not_fit(wrong: tuple[Any, ...]) -> None:
    program = run_on_host(emit(lower(p.Function(torch.sin), (randn(3, 4),))))
    with pytest.raises(InputError):
        program(*wrong)

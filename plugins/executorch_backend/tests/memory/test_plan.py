"""The memory plan: no overlap of what is in use at one time, as an independent proof
over the finished file finds.
"""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from delegraph.errors import DelegraphError
from delegraph_executorch.memory import (
    Home,
    Lifetime,
    Storage,
    find_lifetimes,
    plan_memory,
)
from delegraph_executorch.memory.verify import find_conflicts
from delegraph_executorch.program.pte_tables import (
    EValue,
    ExecutionPlan,
    KernelCall,
    Tensor,
    TensorList,
)
from delegraph_executorch.run.calls import split_delegate_calls
from delegraph_executorch.serialize.check import nbytes
from delegraph_executorch.serialize.reader import ProgramFile, read_program
from torch.utils import _pytree as pytree

from ..support.cases import DYNAMIC, STATIC, randn
from ..support.judge import emit, host_program, lower


def conflicts_in(plan: ExecutionPlan) -> list[Any]:
    return find_conflicts(plan, split_delegate_calls(plan))


@pytest.mark.filterwarnings("ignore:The tensor attributes")
@pytest.mark.parametrize("backends", [[], ["tosa"]], ids=["host", "tosa"])
@pytest.mark.parametrize("name", STATIC)
def test_no_value_is_overwritten_before_it_is_read(
    name: str, backends: list[str]
) -> None:
    module, calls = STATIC[name]
    for plan in emit(lower(module, calls[0], backends=backends)).program.plans:
        assert conflicts_in(plan) == []


@pytest.mark.parametrize("name", DYNAMIC)
def test_plans_of_dynamic_programs(name: str) -> None:
    module, shapes = DYNAMIC[name]
    lowered = lower(module, (randn(3, 4),), shapes)
    assert conflicts_in(emit(lowered).program.plans[0]) == []


@pytest.mark.parametrize(
    "name", ["convolution", "branch", "loop", "counter", "branch in loop", "several"]
)
def test_a_wrong_plan_that_changes_a_result_is_found(name: str) -> None:
    """Tensors are put where others are. Whenever that changes what the program
    computes, the proof says so.
    """
    module, calls = STATIC[name]
    file = read_program(emit(lower(module, calls[0])).file.join())
    expected = _outputs(file, calls)
    changed = 0
    for position, place in _misplacements(file.program.plans[0], 40):
        plan = _moved(file.program.plans[0], position, place)
        wrong = replace(file, program=replace(file.program, plans=(plan,)))
        if not _equal(_outputs(wrong, calls), expected):
            changed += 1
            assert conflicts_in(plan), f"value {position} at {place}"
    assert changed


def _misplacements(plan: ExecutionPlan, count: int) -> list[tuple[int, Any]]:
    """(tensor, another one's place); only tensors without views, which the file does
    not tell from their sources.
    """
    tensors = {
        k: e.value
        for k, e in enumerate(plan.values)
        if isinstance(e.value, Tensor) and e.value.allocation
    }
    written = _results(plan) | {*plan.inputs}
    lonely = [k for k in tensors if k in written and _neighbours(tensors, k) <= written]
    fitting = [
        (k, place)
        for k in lonely
        for place in {t.allocation for t in tensors.values()} - {tensors[k].allocation}
        if place.offset + nbytes(tensors[k]) <= plan.memory_sizes[place.memory_id]
    ]
    fitting.sort(key=lambda pair: (pair[0], pair[1].offset))
    return random.Random(0).sample(fitting, min(count, len(fitting)))


def _results(plan: ExecutionPlan) -> set[int]:
    """Values that kernels compute."""
    last = [
        i.call.args[-1]
        for i in plan.chains[0].instructions
        if isinstance(i.call, KernelCall)
    ]
    values = [plan.values[k].value for k in last]
    return {*last} | {i for v in values if isinstance(v, TensorList) for i in v.items}


def _neighbours(tensors: dict[int, Tensor], position: int) -> set[int]:
    """The tensors at a tensor's place."""
    place = tensors[position].allocation
    return {k for k, t in tensors.items() if t.allocation == place}


def _moved(plan: ExecutionPlan, position: int, place: Any) -> ExecutionPlan:
    values = list(plan.values)
    values[position] = EValue(replace(values[position].value, allocation=place))
    return replace(plan, values=tuple(values))


def _outputs(file: ProgramFile, calls: list[Any]) -> list[Any]:
    program = host_program(file, max_iterations=50)
    try:
        return [pytree.tree_leaves(program(*copy.deepcopy(call))) for call in calls]
    except DelegraphError:  # such as a loop that does not end
        return []


def _equal(ours: list[Any], theirs: list[Any]) -> bool:
    pairs = zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=False)
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs
    )


def _random_lifetimes(seed: int, count: int) -> list[Lifetime]:
    source = random.Random(seed)
    made = []
    for _ in range(count):
        first = source.randrange(50)
        made.append(
            Lifetime(
                Storage(source.choice([1, 16, 48, 100, 1000]), Home.PLANNED),
                first,
                first + source.randrange(9),
            )
        )
    return made


@pytest.mark.parametrize("seed", range(20))
def test_nothing_overlaps(seed: int) -> None:
    lifetimes = _random_lifetimes(seed, 60)
    offsets, sizes = plan_memory(lifetimes)
    for k, one in enumerate(lifetimes):
        start = offsets[one.storage]
        end = offsets[one.storage] + one.storage.nbytes
        assert start % 16 == 0
        assert end <= sizes[1]
        for other in lifetimes[:k]:
            if one.first <= other.last and other.first <= one.last:
                other_start = offsets[other.storage]
                assert end <= other_start or other_start + other.storage.nbytes <= start


def test_memories_are_planned_one_by_one() -> None:
    here = Storage(100, Home.PLANNED)
    there = Storage(200, Home.PLANNED, memory_id=3)
    offsets, sizes = plan_memory([Lifetime(here, 0, 1), Lifetime(there, 0, 1)])
    assert offsets == {here: 0, there: 0}
    assert sizes == [0, 100, 0, 200]


def test_values_before_a_loop_live_until_its_end() -> None:
    before = Storage(4, Home.PLANNED)
    inside = Storage(4, Home.PLANNED)
    found = find_lifetimes(
        [[before], [before], [inside], [inside], []], [], [], [(1, 4)]
    )
    assert [(t.storage, t.first, t.last) for t in found] == [
        (before, 0, 4),
        (inside, 2, 3),
    ]

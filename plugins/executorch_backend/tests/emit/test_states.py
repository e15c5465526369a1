"""Buffers that methods write: shared by methods, or each method's own; written where
they lie.
"""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import OptionError, Unsupported
from delegraph_executorch.edge import EdgeProgramManager, to_edge
from delegraph_executorch.emit import EmitOptions, emit_program
from delegraph_executorch.memory.verify import find_conflicts
from delegraph_executorch.program.pte_tables import (
    KernelCall,
    NonConstBufferDevice,
    Tensor,
)
from delegraph_executorch.program.shared_memory import MEMORY, sharing_methods
from delegraph_executorch.run.calls import split_delegate_calls
from delegraph_executorch.run.stock import StockProgram
from torch import nn

from ..support.judge import assert_equal, stock_runtime

# whatever ExecuTorch warns of at import
pytestmark = [pytest.mark.filterwarnings("ignore")]
X = torch.linspace(-1, 1, 16).view(1, 2, 2, 4)
ROWS = torch.tensor([3, 4])
CACHE = (1, 2, 8, 4)


class Kept(nn.Module):
    """A cache and a count, which methods made by ``of`` have in common."""

    def __init__(self, rows: int = 8) -> None:
        super().__init__()
        self.register_buffer("cache", torch.full((1, 2, rows, 4), 0.5))
        self.register_buffer("count", torch.full((1,), 3))
        self.register_buffer("nothing", torch.empty(0))

    def of(self, kind: type[nn.Module]) -> Any:
        made: Any = kind()
        for name, buffer in self.named_buffers():
            made.register_buffer(name, buffer)
        return made.eval()


class Put(nn.Module):
    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> Any:
        self.cache.index_copy_(2, rows, x)
        self.count.add_(1)
        return self.cache.sum(2)


class Get(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return self.cache + x, self.count.clone()


class Reset(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        self.cache.copy_(x.expand(CACHE))
        return x * 2


ONE = torch.ones(1)
INPUTS = {"put": (X, ROWS), "get": (ONE,), "reset": (ONE,)}
KINDS: dict[str, type[nn.Module]] = {"put": Put, "get": Get, "reset": Reset}


def modules_sharing_state(*names: str) -> dict[str, Any]:
    kept = Kept()
    return {name: kept.of(KINDS[name]) for name in names or KINDS}


def export_methods(**methods: nn.Module) -> dict[str, torch.export.ExportedProgram]:
    return {
        name: torch.export.export(module, INPUTS[name])
        for name, module in methods.items()
    }


def emit_plans(program: Any, **options: Any) -> Any:
    return emit_program(program, EmitOptions(**options)).program.plans


def rows_from(k: int) -> torch.Tensor:
    return torch.tensor([k, k + 1])


def assert_methods_share_state(program: Any, eager: dict[str, Any]) -> None:
    """Methods of a program find what others of it have written."""
    calls = [
        ("put", (X, rows_from(0))),
        ("get", (ONE,)),
        ("put", (-X, rows_from(5))),
        ("put", (2 * X, rows_from(1))),
    ]
    calls += [
        ("get", (ONE,)),
        ("reset", (ONE,)),
        ("get", (ONE,)),
        ("put", (X, rows_from(2))),
        ("get", (ONE,)),
    ]
    for name, inputs in calls:
        actual = program.method(name)(*inputs)
        expected = eager[name](*inputs)
        assert_equal(
            *(
                [
                    list(r) if isinstance(r, (tuple, list)) else [r]
                    for r in (actual, expected)
                ]
            )
        )


def test_methods_share_buffers_here_and_in_executorchs_runtime(tmp_path: Path) -> None:
    path = tmp_path / "kept.pte"
    to_edge(export_methods(**modules_sharing_state())).save(
        path, share_mutable_buffers=True
    )
    assert_methods_share_state(delegraph.load(path), modules_sharing_state())
    stock_runtime()
    assert_methods_share_state(StockProgram(path), modules_sharing_state())


def test_shared_buffers_get_the_offsets_of_executorch(
    tmp_path: Path,
) -> None:
    stock_runtime()
    from executorch import exir
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass

    planning = MemoryPlanningPass(share_mutable_buffers=True)
    config = exir.ExecutorchBackendConfig(
        memory_planning_pass=planning,
        emit_mutable_buffer_names=True,
        passes=[InitializedMutableBufferPass(["cache", "count"])],
    )
    theirs = exir.to_edge(export_methods(**modules_sharing_state())).to_executorch(
        config
    )
    named = {}
    for plan in theirs.executorch_program.execution_plan:
        tensors = [
            value.val
            for value in plan.values
            if getattr(
                getattr(value.val, "extra_tensor_info", None),
                "fully_qualified_name",
                "",
            )
        ]
        placed = [
            t
            for t in tensors
            if t.allocation_info is not None and t.allocation_info.memory_id == MEMORY
        ]
        named[plan.name] = {
            t.extra_tensor_info.fully_qualified_name: (
                t.allocation_info.memory_offset_low
            )
            for t in placed
        }
    made = emit_plans(
        to_edge(export_methods(**modules_sharing_state())),
        share_mutable_buffers=True,
        emit_mutable_buffer_names=True,
    )
    ours = {
        p.name: {t.extra.fully_qualified_name: t.allocation.offset for t in states(p)}
        for p in made
    }
    # theirs keep what none reads
    assert {**ours, "reset": {**ours["reset"], "count": ours["get"]["count"]}} == named
    sizes = {
        p.name: p.non_const_buffer_sizes[MEMORY]
        for p in theirs.executorch_program.execution_plan
    }
    assert {p.name: p.memory_sizes[MEMORY] for p in made} == sizes
    path = tmp_path / "theirs.pte"
    path.write_bytes(theirs.buffer)
    assert_methods_share_state(delegraph.load(path), modules_sharing_state())


def states(plan: Any) -> list[Any]:
    values = [value.value for value in plan.values if isinstance(value.value, Tensor)]
    return [
        v
        for v in values
        if v.allocation is not None and v.allocation.memory_id == MEMORY and v.extra
    ]


def test_buffers_of_methods_are_separate_by_default(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kept.pte"
    to_edge(export_methods(**modules_sharing_state("put", "reset"))).save(path)
    stock_runtime()
    for program in (delegraph.load(path), StockProgram(path)):
        put, reset = (
            copy.deepcopy(modules_sharing_state(name)[name])
            for name in ("put", "reset")
        )
        for k in (0, 4, 2):
            assert_equal(
                [program.method("put")(X, rows_from(k))], [put(X, rows_from(k))]
            )
            assert_equal([program.method("reset")(ONE * k)], [reset(ONE * k)])
    assert not sharing_methods(
        emit_plans(to_edge(export_methods(**modules_sharing_state())))
    )


def test_single_methods_plan_buffers_with_other_tensors() -> None:
    (plan,) = emit_plans(to_edge(export_methods(put=modules_sharing_state()["put"])))
    assert len(plan.memory_sizes) == 2


def test_the_plan_is_proven_and_all_methods_state_the_memory() -> None:
    stateless = {
        "twice": torch.export.export(nn.Softmax(0), (ONE,)),
        **export_methods(**modules_sharing_state()),
    }
    for options in ({}, {"share_mutable_buffers": True}):
        made = emit_plans(to_edge(stateless), **options)
        assert len({p.memory_sizes[MEMORY] for p in made}) == 1
        assert [find_conflicts(p, split_delegate_calls(p)) for p in made] == [[]] * len(
            made
        )
    assert sharing_methods(made) == list(KINDS)


def test_memory_of_different_sizes_or_devices_is_not_shared() -> None:
    from dataclasses import replace

    put, get = emit_plans(
        to_edge(export_methods(**modules_sharing_state("put", "get"))),
        share_mutable_buffers=True,
    )
    assert sharing_methods([put, get]) == ["put", "get"]
    larger = replace(
        get, memory_sizes=(*get.memory_sizes[:MEMORY], get.memory_sizes[MEMORY] + 1)
    )
    on_device = replace(get, memory_devices=(NonConstBufferDevice(1, 1, 0),))
    for other in (
        larger,
        on_device,
        replace(get, memory_sizes=get.memory_sizes[:MEMORY]),
    ):
        assert not sharing_methods([put, other])


def test_calls_from_threads_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "kept.pte"
    to_edge(export_methods(**modules_sharing_state())).save(
        path, share_mutable_buffers=True
    )
    program = delegraph.load(path)
    threads = [
        threading.Thread(target=program.method("put"), args=(X, ROWS)) for _ in range(8)
    ]
    threads += [
        threading.Thread(target=program.method("get"), args=(ONE,)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert program.method("get")(ONE)[1].tolist() == [3 + 8]


def test_buffers_that_cannot_be_shared_are_refused() -> None:
    other = {"put": Kept().of(Put), "get": Kept(rows=9).of(Get)}
    with pytest.raises(
        Unsupported,
        match="put and get cannot share the buffer cache: its sizes, type or first values differ",
    ):
        emit_plans(to_edge(export_methods(**other)), share_mutable_buffers=True)
    other["get"] = Kept().of(Get)
    other["get"].cache.fill_(-0.5)
    with pytest.raises(Unsupported, match="sizes, type or first values differ"):
        emit_plans(to_edge(export_methods(**other)), share_mutable_buffers=True)
    with pytest.raises(OptionError, match="memory_of exclude each other"):
        EmitOptions(share_mutable_buffers=True, memory_of=lambda node: 1)
    with pytest.raises(OptionError, match="which alloc_mutable_buffers=False excludes"):
        EmitOptions(
            share_mutable_buffers=True,
            alloc_mutable_buffers=False,
            emit_mutable_buffer_names=True,
        )
    with pytest.raises(
        OptionError, match="share_mutable_buffers must be True or False"
    ):
        EmitOptions(share_mutable_buffers="cache")  # type: ignore[arg-type]


def test_a_delegate_that_has_the_buffer_in_itself_is_refused(tmp_path: Path) -> None:
    """Methods that were lowered apart do not know of each other; an EdgeProgramManager
    may have such.
    """
    found = modules_sharing_state("reset", "get")
    edges = {
        name: (
            to_edge({name: export_methods(**found)[name]}).to_backend(
                delegraph.get_partitioner("tosa")
            )
        )
        for name in found
    }
    both = EdgeProgramManager(
        {name: edge.exported_program(name) for name, edge in edges.items()}
    )
    with pytest.raises(
        Unsupported,
        match=(
            "of method get contains the buffer cache, so it does not see the values that .*"
            " reset"
        ),
    ):
        both.save(tmp_path / "kept.pte", share_mutable_buffers=True)
    both.save(tmp_path / "kept.pte")


def kernels(module: nn.Module, *inputs: torch.Tensor) -> list[str]:
    (plan,) = emit_plans(to_edge(torch.export.export(module, inputs)))
    assert not find_conflicts(plan, split_delegate_calls(plan))
    return [
        str(plan.operators[c.call.op_index])
        for c in plan.chains[0].instructions
        if isinstance(c.call, KernelCall)
    ]


class Writes(nn.Module):
    """Writes its cache as ``how`` says; ``shape`` with sizes of 1, whose order in
    memory is anybody's guess.
    """

    def __init__(self, how: str, shape: tuple[int, ...] = (1, 1, 8, 4)) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("cache", torch.zeros(shape))

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> Any:
        old = self.cache
        if self.how == "reads the old value":
            read = self.cache * 1
            self.cache.index_copy_(2, rows, x)
            return read.sum(2), self.cache.sum(2)
        if self.how == "reads a view of the old value":
            read = self.cache.view(-1)
            new = self.cache.index_copy(2, rows, x)
            result = read.clone().sum(), new.sum(2)
            self.cache.copy_(new)
            return result
        if self.how == "writes its own rows":
            self.cache.index_copy_(2, rows, old[:, :, :2] + x)
        elif self.how == "by a mask":
            self.cache[
                :, :, torch.zeros(8, dtype=torch.bool).index_fill(0, rows, True)
            ] = x
        elif self.how == "adds":
            torch.ops.aten.index_put_(self.cache, [None, None, rows], x, True)
        elif self.how == "counts from the end":
            torch.ops.aten.index_put_(self.cache, [None, None, rows - 8], x)
        elif self.how == "writes one row twice":
            self.cache.index_copy_(2, rows[:1].expand(2) * 1, x[:, :, :1].expand_as(x))
        elif self.how == "by a copy":
            self.cache.copy_(self.cache.clone().index_copy(2, rows, x))
        else:
            self.cache.index_copy_(2, rows, x)
        return self.cache, self.cache.sum(2)


IN_PLACE = ["in place", "writes one row twice", "by a copy"]
OTHERWISE = [
    "reads the old value",
    "reads a view of the old value",
    "writes its own rows",
    "by a mask",
    "adds",
]
OTHERWISE += ["counts from the end"]


@pytest.mark.parametrize("shape", [(1, 1, 8, 4), (1, 2, 8, 4)], ids=str)
@pytest.mark.parametrize("how", [*IN_PLACE, *OTHERWISE])
def test_updates_of_few_rows_are_written_in_place(
    how: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    module = Writes(how, shape).eval()
    path = tmp_path / "cache.pte"
    x = torch.randn(1, shape[1], 2, 4)
    calls = [[0, 1], [7, 1], [1, 4], [1, 0]]
    called = kernels(module, x, torch.tensor(calls[0]))
    assert ("aten::index_put_" in called) == (how in IN_PLACE)
    if how in IN_PLACE:
        assert "aten::copy_" not in called
    to_edge(torch.export.export(module, (x, torch.tensor(calls[0])))).save(path)
    stock_runtime()
    for program in (delegraph.load(path), StockProgram(path)):
        eager = copy.deepcopy(module)
        for k, rows in enumerate(calls):
            inputs = x * (k + 1), torch.tensor(rows)
            assert_equal(list(program(*inputs)), list(eager(*inputs)))

"""Options of ``.pte`` files that ExecuTorch has as well, beside the files that it
writes with them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph.errors import DelegraphError, InputError, OptionError
from delegraph_executorch.edge import to_edge
from delegraph_executorch.emit import EmitOptions, emit_program
from delegraph_executorch.program.pte_tables import Location, Tensor
from delegraph_executorch.run.stock import StockProgram
from torch import nn

from ..support import programs as p
from ..support.judge import assert_equal, stock_runtime

# whatever ExecuTorch warns of at import
pytestmark = [pytest.mark.filterwarnings("ignore")]
X = torch.linspace(-1, 1, 12).view(3, 4)


class Attributes(nn.Module):
    """A constant of each kind: parameters, a buffer, an attribute, and what export
    lifts out of the code.
    """

    def __init__(self, value: float = 3.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.attribute = torch.full((4,), 2.0)
        self.value = value
        self.register_buffer("scale", torch.full((4,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (
            self.linear(x) * self.scale
            + self.attribute
            + torch.tensor([self.value] * 4)
        )


class Training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> Any:
        predicted = self.linear(x)
        return nn.functional.cross_entropy(predicted, label), predicted.detach().argmax(
            1
        )


def export(module: nn.Module, *inputs: torch.Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(module, inputs or (X,))


def their_program(
    program: torch.export.ExportedProgram, planning: Any = None, **config: Any
) -> Any:
    """ExecuTorch's file of the same program."""
    from executorch import exir
    from executorch.exir.passes import MemoryPlanningPass

    planned = (
        {}
        if planning is None
        else {"memory_planning_pass": MemoryPlanningPass(**planning)}
    )
    return exir.to_edge(program).to_executorch(
        exir.ExecutorchBackendConfig(**config, **planned)
    )


def their_named_locations(plan: Any) -> dict[str, int]:
    """Name -> location of the tensors that a plan of theirs names."""
    values = [value.val for value in plan.values]
    extras = [
        extra
        for v in values
        if (extra := getattr(v, "extra_tensor_info", None))
        and extra.fully_qualified_name
    ]
    return {extra.fully_qualified_name: int(extra.location) for extra in extras}


def our_named_locations(plan: Any) -> dict[str, int]:
    """Name -> location of the tensors that a plan of ours names."""
    tensors = [value.value for value in plan.values if isinstance(value.value, Tensor)]
    return {t.extra.fully_qualified_name: t.extra.location for t in tensors if t.extra}


def choose(node: torch.fx.Node) -> str | None:
    return "weights" if "weight" in node.name else None


@pytest.mark.parametrize(
    ("option", "files"),
    [(True, ["_default_external_constant.ptd"]), (choose, ["weights.ptd"])],
)
def test_constants_in_data_files_are_those_of_executorch(
    option: Any, files: list[str], tmp_path: Path
) -> None:
    stock_runtime()
    manager = their_program(export(Attributes()), external_constants=option)
    program = to_edge(export(Attributes())).to_executorch(
        {"external_constants": option}
    )
    assert (
        program.data_files == files == [f"{name}.ptd" for name in manager._tensor_data]
    )
    program.write_tensor_data_to_file(tmp_path)
    path = tmp_path / "net.pte"
    path.write_bytes(program.buffer)
    assert_equal(
        [StockProgram(path, [tmp_path / name for name in files])(X)], [Attributes()(X)]
    )
    program.save(path)
    assert_equal([delegraph.load(path)(X)], [Attributes()(X)])
    facts = to_edge(export(Attributes()))
    plan = emit_program(facts, EmitOptions(external_constants=option)).program.plans[0]
    assert our_named_locations(plan) == their_named_locations(
        manager.executorch_program.execution_plan[0]
    )


def test_lifted_constants_stay_in_the_program_file(
    tmp_path: Path,
) -> None:
    """Its number means something else in each method."""
    methods = {"one": export(Attributes(1.0)), "two": export(Attributes(2.0))}
    to_edge(methods).save(tmp_path / "net.pte", external_constants="weights")
    loaded = delegraph.load(tmp_path / "net.pte")
    for name, value in (("one", 1.0), ("two", 2.0)):
        assert_equal([loaded.method(name)(X)], [Attributes(value)(X)])


@pytest.mark.parametrize("given", ["../x", lambda node: "../x", lambda node: 3, 3])
def test_wrong_names_of_data_files(given: Any) -> None:
    with pytest.raises(OptionError, match="external_constants must .+ a file name"):
        to_edge(export(Attributes())).to_executorch({"external_constants": given})


def test_weights_that_are_trained_in_a_data_file() -> None:
    from torch.export.experimental import _export_forward_backward

    inputs = (torch.randn(1, 4), torch.ones(1, dtype=torch.int64))
    joint = _export_forward_backward(torch.export.export(Training(), inputs))
    emitted = emit_program(to_edge(joint), EmitOptions(external_mutable_weights=True))
    assert set(our_named_locations(emitted.program.plans[0])) == {
        "linear.weight",
        "linear.bias",
    }
    assert list(emitted.data_files) == ["_default_external_constant"]
    emitted = emit_program(
        to_edge(export(Attributes())), EmitOptions(external_mutable_weights=True)
    )
    assert not emitted.data_files
    assert not our_named_locations(emitted.program.plans[0])


def buffers(plan: Any) -> Iterator[Tensor]:
    yield from (
        value.value
        for value in plan.values
        if isinstance(value.value, Tensor) and value.value.extra
    )


def test_names_of_written_buffers(tmp_path: Path) -> None:
    counter = export(p.Counter(), torch.ones(3))
    plan = emit_program(
        to_edge(counter), EmitOptions(emit_mutable_buffer_names=True)
    ).program.plans[0]
    expected = dict.fromkeys(("total", "count"), Location.SEGMENT)
    assert our_named_locations(plan) == expected
    assert all(t.allocation and t.data_buffer_idx for t in buffers(plan))
    path = tmp_path / "counter.pte"
    to_edge(counter).save(path, emit_mutable_buffer_names=True)
    forward = stock_runtime().load_program(path).load_method("forward")
    module = p.Counter()
    for _ in range(2):
        assert_equal(forward.execute([torch.ones(3)]), list(module(torch.ones(3))))
    assert (
        their_named_locations(
            their_program(
                counter, emit_mutable_buffer_names=True
            ).executorch_program.execution_plan[0]
        )
        == expected
    )


def test_written_buffers_may_have_memory_of_the_caller() -> None:
    counter = export(p.Counter(), torch.ones(3))
    options = {"alloc_mutable_buffers": False, "emit_mutable_buffer_names": True}
    plan = emit_program(to_edge(counter), EmitOptions(**options)).program.plans[0]
    assert all(t.allocation is None and not t.data_buffer_idx for t in buffers(plan))
    stock_runtime()
    manager = their_program(
        counter, {"alloc_mutable_buffers": False}, emit_mutable_buffer_names=True
    )
    plan_of_theirs = manager.executorch_program.execution_plan[0]
    assert (
        our_named_locations(plan)
        == their_named_locations(plan_of_theirs)
        == dict.fromkeys(("total", "count"), Location.SEGMENT)
    )
    with pytest.raises(OptionError, match="emit_mutable_buffer_names=True"):
        to_edge(counter).to_executorch({"alloc_mutable_buffers": False})


def test_files_without_memory_for_buffers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "counter.pte"
    counter = to_edge(export(p.Counter(), torch.ones(3)))
    counter.save(path, alloc_mutable_buffers=False, emit_mutable_buffer_names=True)
    with pytest.raises(InputError, match=r"buffer .total. has no memory in the file"):
        delegraph.load(path)(torch.ones(3))


def _memory(plan: Any, side: str) -> list[bool]:
    return [plan.values[k].value.allocation is not None for k in getattr(plan, side)]


def test_memory_of_inputs_and_outputs_by_method(tmp_path: Path) -> None:
    programs = {"one": export(Attributes()), "two": export(Attributes())}
    options = {
        "alloc_graph_input": {"one": False},
        "alloc_graph_output": {"two": False, "one": True},
    }
    path = tmp_path / "net.pte"
    to_edge(programs).to_executorch(options).save(path)
    program = stock_runtime().load_program(path)
    for name in programs:
        assert_equal(program.load_method(name).execute([X]), [Attributes()(X)])
    plans = emit_program(
        to_edge(programs), EmitOptions(plan_inputs={"one": False}, plan_outputs=False)
    ).program.plans
    assert [_memory(plan, "inputs") for plan in plans] == [[False], [True]]
    assert [_memory(plan, "outputs") for plan in plans] == [[False], [False]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"alloc_graph_input": {"three": False}},
            "plan_inputs names the method 'three'; the program has forward",
        ),
        (
            {"alloc_graph_input": {"forward": 1}},
            "plan_inputs must be True or False, or a mapping",
        ),
        (
            {"alloc_graph_input": True, "plan_inputs": True},
            "alloc_graph_input and plan_inputs are the same option",
        ),
        (
            {"alloc_mutable_buffers": None},
            "alloc_mutable_buffers must be True or False",
        ),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        to_edge(export(Attributes())).to_executorch(options)


class Inner(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * 2)


def test_instructions_carry_all_frames_of_the_stack_as_executorchs_do() -> None:
    stock_runtime()
    program = export(Outer())
    [ours] = (
        emit_program(to_edge(program), EmitOptions(stack_traces=True))
        .program.plans[0]
        .chains
    )
    [chain] = (
        their_program(program, emit_stacktrace=True)
        .executorch_program.execution_plan[0]
        .chains
    )
    stacks = [
        tuple((f.filename, f.line, f.name, f.context) for f in frames.items)
        for frames in ours.stacktrace
    ]
    expected = [
        tuple((f.filename, f.lineno, f.name, f.context) for f in frames.items)
        for frames in chain.stacktrace
    ]
    assert [len(stack) for stack in stacks] == [1, 2, 2]
    # theirs fetches the numbers 2 and 1 by instructions of their own
    assert [*dict.fromkeys(stacks)] == [*dict.fromkeys(expected)]


@pytest.mark.parametrize("loop", ["map", "scan"])
def test_loops_over_rows_of_a_number_without_a_minimum(
    loop: str, tmp_path: Path
) -> None:
    from torch._higher_order_ops.map import map as over_rows
    from torch._higher_order_ops.scan import scan

    functions = {
        "map": lambda x, y: over_rows(lambda row, y: row.sin() + y, x, y),
        "scan": lambda x, y: scan(lambda carry, row: (carry + row, carry * row), y, x),
    }
    module = p.Function(functions[loop])
    shapes = {"inputs": ({0: torch.export.Dim("n", max=6)}, None)}
    program = torch.export.export(
        module, (torch.ones(3, 4), torch.ones(4)), dynamic_shapes=shapes
    )
    path = tmp_path / "rows.pte"
    to_edge(program).save(path)
    forward = stock_runtime().load_program(path).load_method("forward")
    for count in (1, 3, 6):
        inputs = (torch.linspace(-1, 1, 4 * count).view(count, 4), torch.ones(4))
        expected = torch.utils._pytree.tree_leaves(module(*inputs))
        assert_equal(forward.execute(list(inputs)), expected)
        assert_equal(
            torch.utils._pytree.tree_leaves(delegraph.load(path)(*inputs)), expected
        )
    none = [torch.ones(0, 4), torch.ones(4)]  # eager refuses it too
    with pytest.raises(RuntimeError):
        forward.execute(none)
    with pytest.raises(DelegraphError):
        delegraph.load(path)(*none)


def test_programs_are_written_to_streams_and_paths(tmp_path: Path) -> None:
    program = to_edge(export(Attributes())).to_executorch()
    stream = io.BytesIO()
    program.write_to_file(stream)
    assert stream.getvalue() == program.buffer
    assert program.data_files == []
    with pytest.raises(
        OptionError, match=r"writes \.pte files; the file name is net\.pt"
    ):
        program.save(tmp_path / "net.pt")
    program.save(tmp_path / "net.pte")
    assert (tmp_path / "net.pte").read_bytes() == program.buffer

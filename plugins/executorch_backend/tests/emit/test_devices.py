"""Delegates of other devices: copies to and from their memory, beside the files that
ExecuTorch writes of the programs.

No runtime that is distributed has memory of such a device, so the host stands in for it
where numbers are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.errors import OptionError
from delegraph.partitioner import DelegationSpec, Partitioner, PartitionResult
from delegraph.runtime import BackendRuntime
from delegraph_executorch.edge import to_edge
from delegraph_executorch.emit import EmitOptions, emit_program
from delegraph_executorch.memory.verify import find_conflicts
from delegraph_executorch.program.pte_tables import DelegateCall, KernelCall, Tensor
from delegraph_executorch.run.calls import split_delegate_calls

from ..support.judge import assert_equal, stock_runtime
from ..support.programs import Function

# whatever ExecuTorch warns of at import
pytestmark = [pytest.mark.filterwarnings("ignore")]
X = torch.linspace(-1, 1, 4)
Y = torch.full((4,), 2.0)
GPU = "cuda:0"
OTHER = "cuda:1"


class AddingDevice(BackendDetails):
    """Adds what it is given; its blob says nothing."""

    @staticmethod
    def preprocess(
        edge_program: torch.export.ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        return PreprocessResult(b"")


class AddingRuntime(BackendRuntime):
    @staticmethod
    def load(
        processed_bytes: bytes, compile_specs: Any, named_data: Any
    ) -> Callable[..., Any]:
        return lambda x, y: (x + y,)


def specs_of(device: str | None, spec: Any) -> list[Any]:
    return [] if device is None else [spec("target_device", device.encode())]


def tag_calls(program: Any, devices: Sequence[Any]) -> dict[str, str | None]:
    """Tag the calls of a program one by one: a device, ``"host"`` for a delegate
    without one, or no delegate.
    """
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    tags: dict[str, str | None] = {}
    for k, (node, device) in enumerate(zip(calls, devices, strict=True)):
        if device is not None:
            node.meta["delegation_tag"] = f"tag{k}"
            tags[f"tag{k}"] = None if device == "host" else device
    return tags


class Devices(Partitioner):
    def __init__(self, devices: Sequence[Any]) -> None:
        super().__init__()
        self.devices = devices

    def partition(
        self, exported_program: torch.export.ExportedProgram
    ) -> PartitionResult:
        tags = tag_calls(exported_program, self.devices)
        specs = {
            t: DelegationSpec("AddingDevice", specs_of(d, CompileSpec))
            for t, d in tags.items()
        }
        return PartitionResult(exported_program, specs)


def our_tables(function: Any, devices: Sequence[Any], **options: Any) -> Any:
    """The tables of our file."""
    program = torch.export.export(Function(function), (X, Y.clone()))
    with delegraph.register(AddingDevice):
        manager = to_edge(program).to_backend(Devices(devices))
        return emit_program(manager, EmitOptions(**options)).program.plans[0]


def their_tables(
    function: Any, devices: Sequence[Any], planning: dict[str, Any], **options: Any
) -> Any:
    """The tables of ExecuTorch's file of the same program."""
    from executorch import exir
    from executorch.exir.backend import backend_details, partitioner
    from executorch.exir.backend.compile_spec_schema import CompileSpec as TheirSpec
    from executorch.exir.passes import MemoryPlanningPass
    from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig

    class AddingTwin(backend_details.BackendDetails):
        @staticmethod
        def preprocess(edge_program: Any, compile_specs: Any) -> Any:
            return backend_details.PreprocessResult(b"")

    class DevicesTwin(partitioner.Partitioner):
        def partition(self, exported_program: Any) -> Any:
            tags = tag_calls(exported_program, devices)
            named = {
                t: partitioner.DelegationSpec("AddingTwin", specs_of(d, TheirSpec))
                for t, d in tags.items()
            }
            return partitioner.PartitionResult(exported_program, named)

    program = exir.to_edge(
        torch.export.export(Function(function), (X, Y.clone()))
    ).to_backend(DevicesTwin())
    config = exir.ExecutorchBackendConfig(
        propagate_device_config=PropagateDeviceConfig(**options),
        memory_planning_pass=MemoryPlanningPass(**planning),
    )
    return program.to_executorch(config).executorch_program.execution_plan[0]


Row = tuple[str, list[tuple[int, int, "tuple[int, int] | None"]]]


def our_rows(plan: Any) -> list[Row]:
    """Of each instruction what it calls, and of each tensor its device and the device
    of its memory.
    """
    owners = {
        d.buffer_idx: (int(d.device_type), d.device_index) for d in plan.memory_devices
    }

    def row(position: int) -> Any:
        value = plan.values[position].value
        extra = value.extra
        memory = value.allocation and owners.get(value.allocation.memory_id, (0, 0))
        return (
            (int(extra.device_type), extra.device_index, memory)
            if extra
            else (0, 0, memory)
        )

    rows = []
    for call in (i.call for i in plan.chains[0].instructions):
        assert isinstance(call, KernelCall | DelegateCall)
        name = (
            "delegate"
            if isinstance(call, DelegateCall)
            else plan.operators[call.op_index].name
        )
        rows.append(
            (
                name,
                [row(k) for k in call.args if isinstance(plan.values[k].value, Tensor)],
            )
        )
    return rows


def their_rows(plan: Any) -> list[Row]:
    owners = {
        d.buffer_idx: (int(d.device_type), d.device_index)
        for d in plan.non_const_buffer_device or ()
    }

    def row(position: int) -> Any:
        value = plan.values[position].val
        extra = value.extra_tensor_info
        place = value.allocation_info
        memory = place and owners.get(place.memory_id, (0, 0))
        return (
            (int(extra.device_type), extra.device_index, memory)
            if extra
            else (0, 0, memory)
        )

    rows = []
    for call in (i.instr_args for i in plan.chains[0].instructions):
        name = (
            plan.operators[call.op_index].name
            if hasattr(call, "op_index")
            else "delegate"
        )
        rows.append(
            (
                name,
                [
                    row(k)
                    for k in call.args
                    if hasattr(plan.values[k].val, "scalar_type")
                ],
            )
        )
    return rows


def addition(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def sine_between_additions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y).sin() + y


def two_additions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y) + y


def addition_used_twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    first = x + y
    return first + y, first


PROGRAMS: dict[str, tuple[Any, list[Any]]] = {
    "a delegate": (addition, [GPU]),
    "a delegate of the host": (addition, ["host"]),
    "around the host's call": (sine_between_additions, [GPU, None, GPU]),
    "one after the other": (two_additions, [GPU, GPU]),
    "of two devices": (two_additions, [GPU, OTHER]),
    "of a device and of the host": (two_additions, [GPU, "host"]),
    "used by both": (addition_used_twice, [GPU, GPU]),
}


@pytest.mark.parametrize("case", PROGRAMS)
def test_copies_and_memories_are_those_of_executorch(case: str) -> None:
    stock_runtime()
    plan = our_tables(*PROGRAMS[case])
    assert our_rows(plan) == their_rows(their_tables(*PROGRAMS[case], {}))
    assert find_conflicts(plan, split_delegate_calls(plan)) == []


def test_inputs_and_outputs_that_stay_on_the_device() -> None:
    stock_runtime()
    skipped = {"skip_h2d_for_method_inputs": True, "skip_d2h_for_method_outputs": True}
    expected = their_tables(
        addition,
        [GPU],
        {"alloc_graph_input": False, "alloc_graph_output": False},
        **skipped,
    )
    plan = our_tables(addition, [GPU], plan_inputs=False, plan_outputs=False, **skipped)
    assert our_rows(plan) == their_rows(expected) == [("delegate", [(1, 0, None)] * 3)]
    by_method = {name: {"forward": True} for name in skipped}
    assert our_rows(
        our_tables(addition, [GPU], plan_inputs=False, plan_outputs=False, **by_method)
    ) == our_rows(plan)
    # what is returned twice has to be copied, which the host does
    assert (
        our_rows(our_tables(lambda x, y: (x + y,) * 2, [GPU], **skipped))[1][0]
        == "et_copy::_d2h_copy"
    )


def test_without_memory_of_devices_tensors_are_only_named_as_theirs() -> None:
    plan = our_tables(
        sine_between_additions, [GPU, None, GPU], enable_non_cpu_memory_planning=False
    )
    assert [name for name, _ in our_rows(plan)] == [
        "delegate",
        "aten::sin",
        "delegate",
    ]
    assert not plan.memory_devices
    assert our_rows(plan)[0][1] == [(1, 0, (0, 0))] * 3


@pytest.mark.parametrize(
    ("function", "devices", "options", "said"),
    [
        (
            two_additions,
            [GPU, GPU],
            {"skip_h2d_for_method_inputs": True},
            "the input .* cannot stay on the device",
        ),
        (
            addition,
            ["tpu:0"],
            {},
            "target_device is b'tpu:0'; a program file supports cpu, cuda",
        ),
        (addition, ["cuda:x"], {}, "with a number"),
        (
            addition,
            [GPU],
            {
                "enable_non_cpu_memory_planning": False,
                "skip_d2h_for_method_outputs": True,
            },
            "skip_d2h_for_method_outputs has no effect",
        ),
    ],
)
def test_wrong_device_options_are_refused(
    function: Any, devices: list[str], options: dict[str, bool], said: str
) -> None:
    with pytest.raises(OptionError, match=said):
        our_tables(function, devices, **options)


def test_values_after_branches_come_from_the_branch_taken(tmp_path: Path) -> None:
    """A tensor on the device is another one in each branch; what follows takes the copy
    that both write.
    """

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (
            torch.cond(x.sum() > 0, lambda a, b: a + b, lambda a, b: a * 2 + b, (x, y))
            + y
        )

    class InBranches(Partitioner):
        def partition(
            self, exported_program: torch.export.ExportedProgram
        ) -> PartitionResult:
            specs = {}
            for k, module in enumerate(exported_program.graph_module.modules()):
                for node in module.graph.nodes:
                    if node.target is torch.ops.aten.add.Tensor:
                        node.meta["delegation_tag"] = f"tag{k}"
                        specs[f"tag{k}"] = DelegationSpec(
                            "AddingDevice", [CompileSpec("target_device", b"cuda:0")]
                        )
            return PartitionResult(exported_program, specs)

    program = torch.export.export(Function(function), (X, Y.clone()))
    with delegraph.register(AddingDevice, runtime=AddingRuntime):
        path = tmp_path / "branches.pte"
        to_edge(program).to_backend(InBranches()).save(path)
        for x in (X + 1, X - 1):
            assert_equal([delegraph.load(path)(x, Y)], [function(x, Y)])

"""A runtime that writes its inputs is named, and the inputs get their values back."""

from __future__ import annotations

import math

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import ContractViolation
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime
from delegraph_programs.restore_inputs import KeptInputs, count_writes


def relu_in_place_by_torch(x):
    return (x.relu_().clone(),)


def relu_in_place_by_numpy(x):
    result = x.relu()
    x.numpy()[...] = 7
    return (result,)


def never(x):
    return (x.relu(),)


def lower_relu_to(run, thread_safe=True):
    """Lower a relu for a delegate that calls ``run``."""

    class ReluBackend(BackendDetails):
        @staticmethod
        def preprocess(edge_program, compile_specs):
            return PreprocessResult(b"relu")

    class ReluRuntime(BackendRuntime):
        @staticmethod
        def load(processed_bytes, compile_specs, named_data):
            return run

    ReluRuntime.thread_safe = thread_safe
    registry = Registry(discover=False)
    registry.register(ReluBackend, runtime=ReluRuntime)
    takes = CapabilityPartitioner(lambda node: None, "ReluBackend")
    return delegraph.lower(
        torch.nn.ReLU().eval(), (torch.ones(3),), backends=[takes], registry=registry
    )


@pytest.mark.parametrize("thread_safe", [True, False])
@pytest.mark.parametrize("run", [relu_in_place_by_torch, relu_in_place_by_numpy])
def test_the_first_call_names_the_runtime(run, thread_safe):
    program = lower_relu_to(run, thread_safe)
    x = torch.tensor([-1.0, math.nan, 2.0])
    for _ in range(2):
        with pytest.raises(
            ContractViolation,
            match=r"runtime of ReluBackend wrote to its input 0 \(input\)",
        ) as caught:
            program(x)

    assert "partition ReluBackend_0 of method forward" in str(caught.value)
    assert torch.equal(x.nan_to_num(5), torch.tensor([-1.0, 5.0, 2.0]))


@pytest.mark.parametrize("per_operator", [True, False])
@pytest.mark.parametrize("run", [relu_in_place_by_torch, relu_in_place_by_numpy])
def test_verify_names_delegates_that_write_inputs(run, per_operator):
    with pytest.raises(ContractViolation, match="wrote to its input 0"):
        lower_relu_to(run).verify(
            torch.tensor([-1.0, 0.0, 2.0]), per_operator=per_operator
        )


class ChangingRun:
    """Runs a function that a test replaces after the first call."""

    def __init__(self):
        self.function = never

    def __call__(self, x):
        return self.function(x)


def test_verify_notices_later_writes_by_numpy():
    run = ChangingRun()
    program = lower_relu_to(run)
    x = torch.tensor([-1.0, 0.0, 2.0])
    program(x)

    run.function = relu_in_place_by_numpy
    program(x.clone())

    with pytest.raises(ContractViolation, match="wrote to its input 0"):
        program.verify(x)
    assert x.tolist() == [-1.0, 0.0, 2.0]


def test_the_next_call_notices_later_writes_by_torch():
    """torch counts its writes. After a call with writes, the next call compares."""
    run = ChangingRun()
    program = lower_relu_to(run)
    x = torch.tensor([-1.0, 0.0, 2.0])
    program(x)

    run.function = relu_in_place_by_torch
    program(x.clone())

    with pytest.raises(ContractViolation, match="wrote to its input 0"):
        program(x)
    assert x.tolist() == [-1.0, 0.0, 2.0]


def test_writes_by_other_threads_do_not_blame_the_runtime():
    """Another thread may fill the rest of a buffer during the call."""
    buffer = torch.tensor([-1.0, 0.0, 2.0, 4.0, 5.0, 6.0])

    def during(x):
        buffer[3:] += 1
        return (x.relu(),)

    program = lower_relu_to(during)
    for _ in range(3):
        assert program(buffer[:3]).tolist() == [0.0, 0.0, 2.0]

    assert buffer.tolist() == [-1.0, 0.0, 2.0, 7.0, 8.0, 9.0]


VALUES = [
    torch.tensor(math.nan),
    torch.zeros(0, 3),
    torch.arange(6, dtype=torch.int64).reshape(2, 3).t(),
    torch.arange(12.0).reshape(3, 4)[::2, 1:3],
    torch.tensor([1.5]).expand(4),
    torch.tensor([True, False]),
    torch.tensor([1 + 2j, 3 - 1j]).conj(),
    torch.ones(4).to(torch.bfloat16),
    torch.ones(4).to(torch.float8_e4m3fn),
    torch.nn.Parameter(torch.ones(2)),
    torch.eye(3).to_sparse(),
    torch.empty(3, device="meta"),
    3,
]


@pytest.mark.parametrize(
    "value", VALUES, ids=lambda v: f"{type(v).__name__} {getattr(v, 'dtype', '')}"
)
def test_unchanged_inputs_of_any_kind_are_not_put_back(value):
    kept = KeptInputs.of([value])
    assert kept.put_back() == []
    assert count_writes([value]) == count_writes([value])


def test_values_are_put_back_in_any_layout():
    with torch.inference_mode():
        inference = torch.tensor([1.0, 2.0])
    rows = torch.arange(6.0).reshape(2, 3).t()
    once = torch.tensor([1.5])
    values = [rows, once.expand(4), inference]
    expected = [rows.clone(), torch.full((4,), 1.5), torch.tensor([1.0, 2.0])]
    kept = KeptInputs.of(values)
    rows[1, 1] = -math.inf
    once.fill_(2)
    inference.numpy()[0] = 5

    assert kept.put_back() == [0, 1, 2]
    assert all(torch.equal(v, w) for v, w in zip(values, expected, strict=True))


def test_one_element_of_any_stride_is_compared():
    value = torch.zeros(2, 5)[:1, 0]  # contiguous for torch, and its stride is 5
    kept = KeptInputs.of([value])
    assert kept.put_back() == []
    value += 1
    assert kept.put_back() == [0]
    assert value.item() == 0

"""Buffers that a program writes become variables with EXT-VARIABLE, else inputs and
outputs of the delegate.
"""

from __future__ import annotations

from copy import deepcopy

import delegraph
import numpy as np
import pytest
import torch
from delegraph_tosa.serialize import read
from torch import nn

from ..support import reference_tools

TARGET = "TOSA-1.0+FP+INT+variable"


class Decoder(nn.Module):
    """One step of attention over all tokens so far. It reads ``scale`` before and after
    writing it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)
        self.value = nn.Linear(8, 8)
        self.register_buffer("keys", torch.zeros(1, 12, 8))
        self.register_buffer("values", torch.zeros(1, 12, 8), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.full((1,), 3.0))

    def forward(self, token, position):
        x = self.table(token)
        before = self.scale.clone()
        self.keys.index_copy_(1, position, self.key(x))
        self.values.index_copy_(1, position, self.value(x))
        self.steps.add_(1)
        self.scale.mul_(0.5)
        seen = torch.arange(12)[None, None] <= position[:, None]
        y = nn.functional.scaled_dot_product_attention(
            self.query(x), self.keys, self.values, attn_mask=seen
        )
        return y * before, self.scale, self.steps * 1


def step_inputs(k):
    return torch.tensor([[k + 3]]), torch.tensor([k])


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Decoder().eval()


@pytest.fixture(scope="module")
def exported(model):
    return torch.export.export(model, step_inputs(0))


def lower(program, target=TARGET):
    return delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": target}}
    )


def assert_all_close(found, wanted):
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "target, kept", [(TARGET, ("keys", "values", "scale")), ("TOSA-1.0+FP+INT", ())]
)
def test_ten_steps_of_a_decoder(model, exported, target, kept):
    program = lower(exported, target)
    eager = deepcopy(model)
    (delegate,) = program.delegates
    assert set(delegate.module.state) == set(kept)
    names = {argument.name.removeprefix("b_") for argument in delegate.inputs}
    assert names.isdisjoint(kept)
    assert ("scale" in names) == (not kept)
    second = program.instance()
    other = deepcopy(model)
    for k in range(10):
        assert_all_close(program(*step_inputs(k)), eager(*step_inputs(k)))
        if k % 3 == 0:  # another stream, which is not as far
            assert_all_close(second(*step_inputs(k // 3)), other(*step_inputs(k // 3)))
    assert program.verify(*step_inputs(0)).relative_error < 1e-5
    assert_all_close(program(*step_inputs(10)), eager(*step_inputs(10)))


def test_reference_model_runs_a_file_with_variables(model, exported):
    file = lower(exported).delegates[0].processed_bytes
    reference_tools.check_strictly(file, "pro_fp,pro_int", "variable")
    arrays = [given.to(torch.int32).numpy() for given in step_inputs(0)]
    attended, scale, _ = deepcopy(model)(*step_inputs(0))
    found = {
        array.shape: array
        for array in reference_tools.run_reference_model(file, arrays)
    }
    np.testing.assert_allclose(found[1, 1, 8], attended.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(found[1,], scale.numpy())


def test_initial_values_are_stored_and_the_model_unchanged(model, exported):
    program = lower(exported)
    graph = read(program.delegates[0].processed_bytes)
    initial = {
        op.variable: op.initial_value.constant.materialize()
        for op in graph.operators
        if op.name == "VARIABLE"
    }
    assert {name: float(array.max()) for name, array in initial.items()} == {
        "keys": 0,
        "values": 0,
        "scale": 3,
    }
    program(*step_inputs(0))
    assert model.scale.item() == 3.0


class Register(nn.Module):
    """Returns its buffer before and after storing the input in it."""

    def __init__(self, dtype=torch.float32) -> None:
        super().__init__()
        self.register_buffer("held", torch.zeros(3, dtype=dtype))

    def forward(self, x):
        before = self.held * 1
        self.held.copy_(x)
        return before, self.held


def test_variables_share_no_memory_with_inputs_and_outputs():
    program = lower(torch.export.export(Register().eval(), (torch.ones(3),)))
    x = torch.ones(3)
    _, held = program(x)
    x.fill_(9)
    held.fill_(8)
    before, _ = program(torch.zeros(3))
    assert before.tolist() == [1, 1, 1]


def test_states_of_unsupported_types_are_passed_as_inputs():
    program = lower(
        torch.export.export(
            Register(torch.int32).eval(), (torch.ones(3, dtype=torch.int32),)
        )
    )
    (delegate,) = program.delegates
    assert delegate.module.state == ()
    assert len(delegate.inputs) == 2
    one = torch.tensor([1, 2, 3], dtype=torch.int32)
    two = torch.tensor([4, 5, 6], dtype=torch.int32)
    program(one)
    assert program(two)[0].tolist() == [1, 2, 3]


def test_buffers_that_the_host_reads_stay_on_the_host():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.ones(3))

        def forward(self, x):
            before = torch.lgamma(self.held)
            self.held.add_(x)
            return before, self.held * 2

    program = lower(torch.export.export(Shared().eval(), (torch.ones(3),)))
    eager = Shared().eval()
    assert all(not delegate.module.state for delegate in program.delegates)
    for _ in range(3):
        assert_all_close(program(torch.ones(3)), eager(torch.ones(3)))


def test_state_that_methods_share_stays_with_the_host():
    class Total(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(2))

        def forward(self, x):
            self.total.add_(x)
            return self.total * 1

    total = Total().eval()
    x = (torch.ones(2),)
    options = {"tosa": {"spec": TARGET}}
    program = delegraph.lower(
        {"a": total, "b": total}, {"a": x, "b": x}, backends=["tosa"], options=options
    )
    assert [delegate.module.state for delegate in program.delegates] == [(), ()]
    assert [program.method(m)(*x).tolist() for m in "aab"] == [[1, 1], [2, 2], [1, 1]]
    assert "no method sees what another writes" in program.report.notes[0]

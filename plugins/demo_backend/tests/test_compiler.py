"""The compiler demo behind ``lower``, ``to_backend`` and the command line: values,
partitions, limits, refusals.
"""

import json
import struct

import delegraph
import pytest
import torch
from delegraph import cli
from delegraph.backend import CompileSpec, NamedDataStore
from delegraph.errors import (
    BackendNotFound,
    DelegraphError,
    InputError,
    OptionError,
    Unsupported,
)
from delegraph_demo.compiler.partitioner import CompilerDemoPartitioner
from delegraph_demo.compiler.runtime import ValueOutOfRange
from delegraph_executorch.edge import to_backend
from torch import nn
from torch.nn import functional as F

from .support.programs import CASES, lower, module_with_weights, randn

NAME = "BackendWithCompilerDemo"


def reason_for(function, *inputs, **more):
    """What the partitioner says of a program with one call; lowering might go on to
    decompose the call.
    """
    program = torch.export.export(module_with_weights(function), inputs, **more)
    (refusal,) = CompilerDemoPartitioner().partition(program).refusals
    return refusal.reason


# --- values ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_compiled_programs_compute_as_eager(name):
    function, *inputs = CASES[name]
    lowered = lower(function, *inputs)
    assert lowered.delegates
    with torch.no_grad():
        expected = function(None, *inputs)
    torch.testing.assert_close(
        lowered(*inputs), expected, rtol=1e-6, atol=0, equal_nan=True
    )


def test_mm_and_add_with_three_inputs():
    lowered = lower(
        lambda m, a, x, b: torch.mm(a, x) + b, randn(2, 2), randn(2, 2), randn(2, 2)
    )
    (delegate,) = lowered.delegates
    assert not lowered.report.refusals
    assert len(delegate.inputs) == 3
    assert delegate.module.meta["debug_handle_map"] == {0: (1,), 1: (2,)}
    fresh = torch.eye(2), randn(2, 2) * 3, torch.ones(2, 2)
    assert lowered.verify(*fresh).relative_error <= 1e-6


def test_two_partitions_around_an_operator_that_is_not_compiled():
    def function(m, a, x, b):
        y = torch.mm(a, x) + b
        y = y - a
        return torch.mm(a, y) + b

    inputs = randn(2, 2), randn(2, 2), randn(2, 2)
    lowered = lower(function, *inputs)
    assert [delegate.name for delegate in lowered.delegates] == [
        "lowered_module_0",
        "lowered_module_1",
    ]
    assert lowered.report.host == {"forward": {"aten.sub.Tensor": 1}}
    assert [
        delegate.module.meta["debug_handle_map"] for delegate in lowered.delegates
    ] == [
        {0: (1,), 1: (2,)},
        {0: (4,), 1: (5,)},
    ]
    assert lowered.verify(*inputs).relative_error <= 1e-6


def test_results_are_computed_from_the_blob_alone():
    """Another program's blob in the same place computes the other program."""
    plus, times = (
        lower(f, randn(3), randn(3))
        for f in (lambda m, x, y: x + y, lambda m, x, y: x * y)
    )
    plus.delegates[0].module.blob = times.delegates[0].processed_bytes
    assert plus(torch.full((3,), 5.0), torch.full((3,), 7.0)).tolist() == [35, 35, 35]


@pytest.mark.parametrize(
    ("backends", "called"), [([], [0, 0]), (["compiler-demo"], [0, 0, 1])]
)
def test_a_lowered_module_used_twice_in_another_module(backends, called):
    program = torch.export.export(
        module_with_weights(lambda m, x: torch.sin(x) * 2), (randn(3),)
    )

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = to_backend(NAME, program, [])

        def forward(self, x):
            return torch.add(self.inner(x), self.inner(x))

    lowered = delegraph.lower(
        torch.export.export(Outer().eval(), (randn(3),)), backends=backends
    )
    nodes = lowered.exported_program().graph.nodes
    assert [n.target for n in nodes if n.op == "get_attr"] == [
        f"lowered_module_{k}" for k in called
    ]
    x = randn(3) * 2
    torch.testing.assert_close(lowered(x), torch.sin(x) * 4)


def test_written_buffers_stay_on_the_host():
    """A buffer that is written is an input of the delegate, not a weight of it."""

    def function(m, x):
        m.w0.add_(x)
        return m.w0 * 2

    lowered = lower(function, torch.ones(3), weights=[torch.zeros(3)])
    assert [lowered(torch.ones(3)).tolist() for _ in range(2)] == [[2, 2, 2], [4, 4, 4]]


# --- weights --------------------------------------------------------------------------


def test_weights_are_named_data_and_not_in_the_blob():
    weight = randn(64, 64)
    lowered = lower(lambda m, x: torch.mm(x, m.w0), randn(2, 64), weights=[weight])
    (delegate,) = lowered.delegates
    ((key, data),) = delegate.module.named_data().items()
    assert key.startswith("compiler-demo/")
    assert data == weight.numpy().tobytes()
    assert len(delegate.processed_bytes) < 150


def test_weights_in_another_order_of_memory():
    weight = randn(4, 3).t()
    assert not weight.is_contiguous()
    lowered = lower(lambda m, x: torch.mm(x, m.w0), randn(2, 3), weights=[weight])
    assert lowered.verify(randn(2, 3)).relative_error <= 1e-6


def test_weights_are_shared_by_content():
    """Within a delegate, by two delegates, and by two programs that go into one file."""

    def function(m, x):
        x = torch.mm(torch.mm(x, m.w0), m.w1)
        return torch.mm(torch.cos(x), m.w0)

    weight = randn(4, 4)
    other = randn(4, 4) + 1
    lowered = lower(function, randn(2, 4), weights=[weight, weight.clone()])
    second = lower(
        lambda m, x: torch.mm(x, m.w0) + m.w1, randn(4, 4), weights=[weight, other]
    )
    stores = [
        d.module.named_data_store_output
        for d in (*lowered.delegates, *second.delegates)
    ]
    assert [len(s.buffers) for s in stores] == [1, 1, 2]
    merged = NamedDataStore()
    for store in stores:
        merged.merge_named_data_store(store)
    together = merged.get_named_data_store_output()
    assert len(together.pte_data) == 2
    assert sorted(together.buffers) == sorted(
        w.numpy().tobytes() for w in (weight, other)
    )


def test_equal_bytes_in_two_shapes_are_stored_once():
    weight = randn(4)
    lowered = lower(
        lambda m, x: x * m.w0 + m.w1,
        randn(4, 4),
        weights=[weight, weight.reshape(4, 1)],
    )
    assert len(lowered.delegates[0].module.named_data()) == 1
    assert lowered.verify(randn(4, 4)).relative_error <= 1e-6


# --- max_value ------------------------------------------------------------------------


def test_an_input_beyond_max_value():
    lowered = lower(lambda m, x: torch.sin(x), torch.ones(1), max_value=1)
    assert lowered(torch.ones(1)).item() == pytest.approx(0.841471, abs=1e-6)
    with pytest.raises(
        RuntimeError,
        match=r"input 0 has an element of absolute value 2; max_value is 1",
    ) as caught:
        lowered(torch.tensor([-2.0]))
    assert isinstance(caught.value, ValueOutOfRange)
    assert isinstance(caught.value, DelegraphError)
    assert caught.value.code == "compiler-demo/out-of-range"


def test_a_result_beyond_max_value():
    lowered = lower(lambda m, x: torch.sin(x * 3 + x), torch.ones(1), max_value=3.5)
    lowered(torch.full((1,), 0.875))
    with pytest.raises(
        ValueOutOfRange,
        match=r"a result of aten\.add\.Tensor has an element of absolute value 4",
    ):
        lowered(torch.ones(1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_infinite_values_exceed_max_value(value):
    lowered = lower(lambda m, x: torch.sin(x), torch.ones(2), max_value=1e38)
    with pytest.raises(ValueOutOfRange, match=str(abs(value))):
        lowered(torch.tensor([0.0, value]))


def test_without_max_value_everything_goes():
    lowered = lower(lambda m, x: x + x, torch.ones(2))
    assert lowered(torch.tensor([float("inf"), 1e38])).tolist()[0] == float("inf")


def test_nothing_is_within_any_range():
    lowered = lower(lambda m, x: torch.sin(x), torch.ones(0), max_value=0)
    assert lowered(torch.ones(0)).shape == (0,)


@pytest.mark.parametrize("value", [bytes([2]), struct.pack("<d", 2.0)])
def test_max_value_as_a_compile_spec(value):
    program = torch.export.export(
        module_with_weights(lambda m, x: x * 2), (torch.ones(1),)
    )
    lowered = to_backend(NAME, program, [CompileSpec("max_value", value)])
    runtime = delegraph.Registry().runtime_for(NAME)
    run = runtime.load(
        lowered.processed_bytes, lowered.compile_specs, lowered.named_data()
    )
    assert run(torch.ones(1))[0].item() == 2
    with pytest.raises(ValueOutOfRange):
        run(torch.full((1,), 1.5))


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_max_value_that_makes_no_sense(value):
    with pytest.raises(OptionError, match="0 or more"):
        CompilerDemoPartitioner(max_value=value)


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        ([CompileSpec("speed", b"1")], "'speed'"),
        ([CompileSpec("max_value", bytes([1]))] * 2, "2 times"),
        ([CompileSpec("max_value", b"1.5")], "little-endian double"),
        ([CompileSpec("max_value", struct.pack("<d", float("nan")))], "0 or more"),
    ],
)
def test_compile_specs_that_are_refused(specs, text):
    program = torch.export.export(
        module_with_weights(lambda m, x: x * 2), (torch.ones(1),)
    )
    with pytest.raises(OptionError, match=text):
        to_backend(NAME, program, specs)


# --- refusals -------------------------------------------------------------------------


def test_an_operator_that_is_not_compiled():
    program = torch.export.export(
        module_with_weights(lambda m, x: torch.cos(torch.sin(x))), (torch.ones(1),)
    )
    text = (
        r"call_function aten\.cos\.default is not supported in backend"
        r" BackendWithCompilerDemo"
    )
    with pytest.raises(RuntimeError, match=text) as caught:
        to_backend(NAME, program, [])
    assert isinstance(caught.value, Unsupported)
    assert caught.value.node.target is torch.ops.aten.cos.default
    assert "programs.py" in str(caught.value)


def test_a_backend_that_does_not_exist():
    program = torch.export.export(
        module_with_weights(lambda m, x: torch.sin(x)), (torch.ones(1),)
    )
    with pytest.raises(BackendNotFound, match="FakeBackendWithCompilerDemo"):
        to_backend("FakeBackendWithCompilerDemo", program, [])


REFUSED = {
    "it compiles add.Tensor, mul.Tensor": (lambda m, x: torch.cos(x), randn(2)),
    "alpha is 2; only 1 is supported": (
        lambda m, x: torch.add(x, x, alpha=2),
        randn(2),
    ),
    "beta is 0.5; only 1 is supported": (
        lambda m, b, x: torch.addmm(b, x, x, beta=0.5),
        randn(2),
        randn(2, 2),
    ),
    "x is torch.float64": (lambda m, x: torch.sin(x), randn(2).double()),
    "y is torch.int64": (lambda m, x, y: x * y, randn(2), torch.arange(2)),
    "may have up to 64 dimensions": (
        lambda m, x: torch.sin(x),
        torch.empty(0).expand(2**20, 2**20, 0),
    ),
    "weight [3] and bias [] do not fit each other": (
        lambda m, x, w: F.linear(x, w),
        randn(2, 3),
        randn(3),
    ),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals_and_compile_errors_give_equal_reasons(text):
    function, *inputs = REFUSED[text]
    why = (
        reason_for(function, *inputs).replace("inputs_0", "x").replace("inputs_1", "y")
    )
    assert text in why
    with pytest.raises(Unsupported) as caught:
        to_backend(
            NAME, torch.export.export(module_with_weights(function), tuple(inputs)), []
        )
    assert text in str(caught.value).replace("inputs_0", "x").replace("inputs_1", "y")


class Refused(torch.nn.Module):
    def forward(self, x, wide):
        return torch.cos(x), torch.add(x, x, alpha=2), wide + 1


def test_refusals_have_hints_with_the_operators_they_free():
    report = delegraph.lower(
        Refused().eval(), (randn(2), randn(2).double()), backends=[NAME]
    ).report
    assert [(cause.hint, cause.frees) for cause in report.causes] == [
        ("name a backend after compiler-demo that supports this operator", None),
        ("leave alpha out", None),
        ("let wide be float32 from the start", 1),
    ]


def test_shapes_that_are_known_at_run_time_only():
    shapes = (({0: torch.export.Dim("n")},),)
    why = reason_for(lambda m, x: torch.sin(x), randn(3, 2), dynamic_shapes=shapes)
    assert "it compiles for fixed shapes, and inputs_0 has [s" in why


@pytest.mark.parametrize(
    "inputs", [(), (randn(3),), (randn(2, 2),), (randn(2).double(),), (1.5,)]
)
def test_the_runtime_wants_the_inputs_that_it_was_compiled_for(inputs):
    (delegate,) = lower(lambda m, x: torch.sin(x), randn(2)).delegates
    runtime = delegraph.Registry().runtime_for(NAME)
    run = runtime.load(delegate.processed_bytes, [], {})
    with pytest.raises(
        InputError, match=r"takes 1 inputs|input 0 must be torch\.float32 \[2\]"
    ):
        run(*inputs)


# --- the command line -----------------------------------------------------------------

MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x) * 2

def model():
    return Model().eval(), (torch.ones(2, 3),)
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


def test_lower_command_verifies_the_model(model, capsys):
    assert (
        cli.main(["lower", model, "--backend", "compiler-demo", "--verify", "--json"])
        == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert shown["report"]["host_operators"] == 0
    assert shown["report"]["delegates"][0]["backend"] == "compiler-demo"


def test_max_value_option_limits_results(model, capsys):
    arguments = ["lower", model, "--backend", "compiler-demo", "--verify", "--option"]
    assert cli.main([*arguments, "max_value=2.0"]) == 0
    assert cli.main([*arguments, "max_value=1.5"]) == 1
    assert (
        "a result of aten.mul.Tensor has an element of absolute value 1.68294"
        in capsys.readouterr().err
    )

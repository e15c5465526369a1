"""The compiler demo as the backend of ``lower``, ``to_backend`` and the command line."""

import json
import math
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


def reason_for(function, *inputs, dynamic_shapes=None):
    """Return why the partitioner refuses the only call of ``function``.

    ``lower`` is not used, because it might decompose the call.
    """
    program = torch.export.export(
        module_with_weights(function), inputs, dynamic_shapes=dynamic_shapes
    )
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
    other_inputs = (torch.eye(2), randn(2, 2) * 3, torch.ones(2, 2))
    assert lowered.verify(*other_inputs).relative_error <= 1e-6


def test_an_unsupported_operator_separates_two_partitions():
    def function(m, a, x, b):
        y = torch.mm(a, x) + b
        y = y - a  # the handle 3
        return torch.mm(a, y) + b

    inputs = (randn(2, 2), randn(2, 2), randn(2, 2))

    lowered = lower(function, *inputs)

    first, second = lowered.delegates
    assert first.name == "lowered_module_0"
    assert first.module.meta["debug_handle_map"] == {0: (1,), 1: (2,)}
    assert second.name == "lowered_module_1"
    assert second.module.meta["debug_handle_map"] == {0: (4,), 1: (5,)}
    assert lowered.report.host == {"forward": {"aten.sub.Tensor": 1}}
    assert lowered.verify(*inputs).relative_error <= 1e-6


def test_results_are_computed_from_the_blob_alone():
    """With the blob of another program, a program computes the other one."""
    plus = lower(lambda m, x, y: x + y, randn(3), randn(3))
    times = lower(lambda m, x, y: x * y, randn(3), randn(3))

    plus.delegates[0].module.blob = times.delegates[0].processed_bytes

    assert plus(torch.full((3,), 5.0), torch.full((3,), 7.0)).tolist() == [5 * 7] * 3


@pytest.mark.parametrize(
    ("backends", "called"),
    [
        # the two calls in Outer; its add runs on the host or is a delegate
        ([], ["lowered_module_0", "lowered_module_0"]),
        (
            ["compiler-demo"],
            ["lowered_module_0", "lowered_module_0", "lowered_module_1"],
        ),
    ],
)
def test_a_lowered_module_can_be_called_twice(backends, called):
    program = torch.export.export(
        module_with_weights(lambda m, x: torch.sin(x) * 2), (randn(3),)
    )

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = to_backend(NAME, program, [])

        def forward(self, x):
            return torch.add(self.inner(x), self.inner(x))

    outer = torch.export.export(Outer().eval(), (randn(3),))

    lowered = delegraph.lower(outer, backends=backends)

    nodes = lowered.exported_program().graph.nodes
    assert [node.target for node in nodes if node.op == "get_attr"] == called
    x = randn(3) * 2
    torch.testing.assert_close(lowered(x), torch.sin(x) * 4)


def test_written_buffers_stay_on_the_host():
    """Their value changes, so it is an input of the delegate and not in the blob."""

    def function(m, x):
        m.w0.add_(x)
        return m.w0 * 2

    lowered = lower(function, torch.ones(3), weights=[torch.zeros(3)])

    assert lowered(torch.ones(3)).tolist() == [2, 2, 2]
    assert lowered(torch.ones(3)).tolist() == [4, 4, 4]


# --- weights --------------------------------------------------------------------------


def test_weights_are_named_data_and_not_in_the_blob():
    weight = randn(64, 64)

    lowered = lower(lambda m, x: torch.mm(x, m.w0), randn(2, 64), weights=[weight])

    (delegate,) = lowered.delegates
    ((key, data),) = delegate.module.named_data().items()
    assert key.startswith("compiler-demo/")
    assert data == weight.numpy().tobytes()
    assert len(delegate.processed_bytes) < 150


def test_weights_that_are_not_contiguous_compute_as_eager():
    weight = randn(4, 3).t()
    assert not weight.is_contiguous()
    lowered = lower(lambda m, x: torch.mm(x, m.w0), randn(2, 3), weights=[weight])
    assert lowered.verify(randn(2, 3)).relative_error <= 1e-6


@pytest.fixture
def shared():
    """Return a weight, and the stores of three delegates that use it.

    The first two delegates are of one program, which has two equal weights. The third
    delegate has another weight in addition.
    """

    def three_products(m, x):
        x = torch.mm(torch.mm(x, m.w0), m.w1)
        return torch.mm(torch.cos(x), m.w0)  # cos separates the delegates

    def product_and_sum(m, x):
        return torch.mm(x, m.w0) + m.w1

    weight = randn(4, 4)
    other = randn(4, 4) + 1
    first = lower(three_products, randn(2, 4), weights=[weight, weight.clone()])
    second = lower(product_and_sum, randn(4, 4), weights=[weight, other])
    delegates = [*first.delegates, *second.delegates]
    return weight, other, [d.module.named_data_store_output for d in delegates]


def test_equal_weights_of_a_delegate_are_stored_once(shared):
    _, _, stores = shared

    assert [len(store.buffers) for store in stores] == [1, 1, 2]


def test_equal_weights_of_several_delegates_are_stored_once_in_a_file(shared):
    weight, other, stores = shared
    merged = NamedDataStore()

    for store in stores:
        merged.merge_named_data_store(store)

    in_file = merged.get_named_data_store_output()
    assert len(in_file.pte_data) == 2
    expected = [weight.numpy().tobytes(), other.numpy().tobytes()]
    assert sorted(in_file.buffers) == sorted(expected)


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


def test_an_input_beyond_max_value_is_an_error():
    lowered = lower(lambda m, x: torch.sin(x), torch.ones(1), max_value=1)
    assert lowered(torch.ones(1)).item() == pytest.approx(math.sin(1), abs=1e-6)

    with pytest.raises(
        RuntimeError,
        match=r"input 0 has an element of absolute value 2; max_value is 1",
    ) as caught:
        lowered(torch.tensor([-2.0]))

    assert isinstance(caught.value, ValueOutOfRange)
    assert isinstance(caught.value, DelegraphError)
    assert caught.value.code == "compiler-demo/out-of-range"


def test_a_result_beyond_max_value_is_an_error():
    lowered = lower(lambda m, x: torch.sin(x * 3 + x), torch.ones(1), max_value=3.5)
    lowered(torch.full((1,), 3.5 / 4))

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


def test_without_max_value_all_numbers_are_accepted():
    lowered = lower(lambda m, x: x + x, torch.ones(2))

    result = lowered(torch.tensor([float("inf"), 1e38]))

    assert result[0] == float("inf")


def test_empty_tensors_do_not_exceed_max_value():
    lowered = lower(lambda m, x: torch.sin(x), torch.ones(0), max_value=0)
    assert lowered(torch.ones(0)).shape == (0,)


@pytest.mark.parametrize("value", [bytes([2]), struct.pack("<d", 2.0)])
def test_a_compile_spec_may_be_an_integer_or_a_double(value):
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
def test_negative_and_nan_max_values_are_refused(value):
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
def test_wrong_compile_specs_are_refused(specs, text):
    program = torch.export.export(
        module_with_weights(lambda m, x: x * 2), (torch.ones(1),)
    )
    with pytest.raises(OptionError, match=text):
        to_backend(NAME, program, specs)


# --- refusals -------------------------------------------------------------------------


def test_to_backend_names_an_unsupported_operator_and_its_line():
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


def test_to_backend_names_a_backend_that_does_not_exist():
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
    program = torch.export.export(module_with_weights(function), tuple(inputs))

    reason = reason_for(function, *inputs)
    with pytest.raises(Unsupported) as caught:
        to_backend(NAME, program, [])

    for message in (reason, str(caught.value)):
        # the inputs of the module are a list
        named = message.replace("inputs_0", "x").replace("inputs_1", "y")
        assert text in named


def test_refusals_have_hints_with_the_operators_they_free():
    class ThreeRefusals(torch.nn.Module):
        def forward(self, x, wide):
            return torch.cos(x), torch.add(x, x, alpha=2), wide + 1

    report = delegraph.lower(
        ThreeRefusals().eval(), (randn(2), randn(2).double()), backends=[NAME]
    ).report

    assert [(cause.hint, cause.frees) for cause in report.causes] == [
        ("name a backend after compiler-demo that supports this operator", None),
        ("leave alpha out", None),
        ("let wide be float32 from the start", 1),
    ]


def test_dynamic_shapes_are_refused():
    shapes = (({0: torch.export.Dim("n")},),)

    reason = reason_for(lambda m, x: torch.sin(x), randn(3, 2), dynamic_shapes=shapes)

    assert "it compiles for fixed shapes, and inputs_0 has [s" in reason


@pytest.mark.parametrize(
    "inputs", [(), (randn(3),), (randn(2, 2),), (randn(2).double(),), (1.5,)]
)
def test_the_runtime_refuses_other_inputs_than_compiled_for(inputs):
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
    words = ["lower", model, "--backend", "compiler-demo", "--verify", "--json"]

    assert cli.main(words) == 0

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

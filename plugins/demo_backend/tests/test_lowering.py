"""``to_backend`` and ``lower`` with the demo backend: blobs, handles and refusals."""

import pytest
import torch
from delegraph.api import lower
from delegraph.errors import NoRuntime, Unsupported
from delegraph_demo.backend import BackendWithDelegateMappingDemo
from delegraph_demo.partitioner import DelegateMappingDemoPartitioner
from delegraph_executorch.edge import to_backend
from hypothesis import given, settings
from hypothesis import strategies as st

EXPECTED = (
    b"5#conv_relu_op,0,conv_relu_op,1,"
    b"sin_decomp_from_tan,2,cos_decomp_from_tan,3,div_decomp_from_tan,4,"
)


def test_whole_program_has_the_expected_blob_and_handles():
    program = torch.export.export(
        *BackendWithDelegateMappingDemo.get_test_model_and_inputs()
    )

    lowered = to_backend("BackendWithDelegateMappingDemo", program, [])

    assert lowered.processed_bytes == EXPECTED
    assert lowered.meta["debug_handle_map"] == {
        0: (1, 2),
        1: (3, 4),
        2: (5,),
        3: (5,),
        4: (5,),
    }


def test_whole_programs_with_another_operator_are_refused():
    class Sinh(torch.nn.Module):
        def forward(self, x):
            return torch.sinh(torch.tan(x))

    program = torch.export.export(Sinh().eval(), (torch.ones(2),))

    with pytest.raises(Unsupported, match=r"aten\.sinh\.default") as caught:
        to_backend("BackendWithDelegateMappingDemo", program, [])

    assert "torch.sinh(torch.tan(x))" in str(caught.value)


class Mixed(torch.nn.Module):
    """The demo supports the first two operators and the tan.

    It does not support sin, and a convolution that has two users.
    """

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 3, 3)
        self.second = torch.nn.Conv2d(3, 3, 3)
        self.activation = torch.nn.ReLU(inplace=True)

    def forward(self, x):
        x = self.activation(self.first(x))
        x = torch.sin(x)
        x = self.second(x)
        return torch.tan(x), torch.relu(x)


INPUTS = (torch.linspace(-1, 1, 243).reshape(1, 3, 9, 9),)


@pytest.fixture
def lowered():
    return lower(Mixed().eval(), INPUTS, backends=["demo"])


def test_supported_parts_of_a_program_are_compiled(lowered):
    blobs = [delegate.processed_bytes for delegate in lowered.delegates]

    assert blobs == [
        b"1#conv_relu_op,0,",
        b"3#sin_decomp_from_tan,0,cos_decomp_from_tan,1,div_decomp_from_tan,2,",
    ]


def test_unsupported_parts_of_a_program_have_a_reason_and_a_hint(lowered):
    report = lowered.report

    assert {refusal.operator: refusal.reason for refusal in report.refusals} == {
        "aten.sin.default": "the demo compiles convolution followed by relu, and tan",
        "aten.conv2d.default": (
            "a convolution needs a relu as the only user of its result"
        ),
        "aten.relu.default": "relu is compiled only together with a convolution before it",
    }
    assert all(cause.hint for cause in report.causes)


def test_a_refused_convolution_and_its_relu_have_one_cause():
    class TwoUsers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 2, 3)

        def forward(self, x):
            x = self.conv(x)
            return torch.relu(x), torch.tan(x)

    report = lower(TwoUsers().eval(), INPUTS, backends=["demo"]).report

    (cause,) = report.causes
    assert cause.reason.startswith("a convolution")
    assert "torch.relu right after it" in cause.hint
    assert [refusal.operator for refusal in cause.refusals] == [
        "aten.conv2d.default",
        "aten.relu.default",
    ]


def test_handles_are_those_of_the_whole_program(lowered):
    first, second = lowered.delegates

    assert first.module.meta["debug_handle_map"] == {0: (1, 2)}
    # sin and the second convolution have the handles 3 and 4
    assert second.module.meta["debug_handle_map"] == {0: (5,), 1: (5,), 2: (5,)}


def test_calls_without_a_runtime_are_refused(lowered):
    with pytest.raises(NoRuntime, match="'demo'"):
        lowered(*INPUTS)


def test_eager_can_replace_the_missing_runtime(lowered):
    with_eager = lowered.with_missing_runtime("eager")

    assert with_eager.verify(*INPUTS).relative_error == 0


class Steps(torch.nn.Module):
    """Each step is an operator and which of the last three values it reads.

    The last value and one in the middle are used at the end.
    """

    def __init__(self, steps):
        super().__init__()
        self.conv = torch.nn.Conv2d(2, 2, 1)
        self.steps = steps

    def forward(self, x):
        operators = {
            "conv": self.conv,
            "relu": torch.relu,
            "tan": torch.tan,
            "sin": torch.sin,
        }
        values = [x]
        for name, choice in self.steps:
            last_values = values[-3:]
            read = last_values[choice % len(last_values)]
            values.append(operators[name](read))
        return values[-1], values[len(values) // 2] + 1


# conv and relu occur twice, because the demo compiles them together
step = st.tuples(
    st.sampled_from(["conv", "conv", "relu", "relu", "tan", "sin"]), st.integers(0, 2)
)


@settings(max_examples=20, deadline=None)
@given(st.lists(step, min_size=1, max_size=10))
def test_random_programs_compile_and_compute_as_eager(steps):
    inputs = (torch.ones(1, 2, 3, 3),)

    lowered = lower(
        Steps(steps).eval(), inputs, backends=[DelegateMappingDemoPartitioner()]
    )

    for delegate in lowered.delegates:
        assert not delegate.processed_bytes.startswith(b"0#"), "an empty delegate"
    with_eager = lowered.with_missing_runtime("eager")
    assert with_eager.verify(*inputs).relative_error == 0

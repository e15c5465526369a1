"""The demo backend behind ``to_backend`` and ``lower``: what a user of a plugin gets."""

import pytest
import torch
from delegraph.api import lower
from delegraph.errors import NoRuntime, Unsupported
from delegraph_demo.backend import BackendWithDelegateMappingDemo
from delegraph_demo.partitioner import DelegateMappingDemoPartitioner
from delegraph_executorch.edge import to_backend
from hypothesis import given, settings
from hypothesis import strategies as st

EXPECTED = b"5#conv_relu_op,0,conv_relu_op,1,sin_decomp_from_tan,2,cos_decomp_from_tan,3,div_decomp_from_tan,4,"


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


def test_a_whole_program_with_another_operator_is_an_error():
    class Sinh(torch.nn.Module):
        def forward(self, x):
            return torch.sinh(torch.tan(x))

    with pytest.raises(Unsupported, match=r"aten\.sinh\.default") as caught:
        to_backend(
            "BackendWithDelegateMappingDemo",
            torch.export.export(Sinh().eval(), (torch.ones(2),)),
            [],
        )
    assert "torch.sinh(torch.tan(x))" in str(caught.value)


class Mixed(torch.nn.Module):
    """An in-place activation, an operator for the host in the middle, a convolution
    that two others read.
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


def test_parts_of_a_program():
    lowered = lower(Mixed().eval(), INPUTS, backends=["demo"])
    blobs = [delegate.processed_bytes for delegate in lowered.delegates]
    assert blobs == [
        b"1#conv_relu_op,0,",
        b"3#sin_decomp_from_tan,0,cos_decomp_from_tan,1,div_decomp_from_tan,2,",
    ]
    refused = {refusal.operator: refusal.reason for refusal in lowered.report.refusals}
    assert refused == {
        "aten.sin.default": "the demo compiles convolution followed by relu, and tan",
        "aten.conv2d.default": (
            "a convolution needs a relu as the only user of its result"
        ),
        "aten.relu.default": "relu is compiled only together with a convolution before it",
    }
    assert all(cause.hint for cause in lowered.report.causes)


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 2, 3)

    def forward(self, x):
        x = self.conv(x)
        return torch.relu(x), torch.tan(x)


def test_refused_convolutions_include_their_relu():
    (cause,) = lower(Twice().eval(), INPUTS, backends=["demo"]).report.causes
    assert cause.reason.startswith("a convolution")
    assert "torch.relu right after it" in cause.hint
    assert [row.operator for row in cause.refusals] == [
        "aten.conv2d.default",
        "aten.relu.default",
    ]


def test_handles_are_those_of_the_whole_program():
    lowered = lower(Mixed().eval(), INPUTS, backends=["demo"])
    maps = [delegate.module.meta["debug_handle_map"] for delegate in lowered.delegates]
    assert maps == [{0: (1, 2)}, {0: (5,), 1: (5,), 2: (5,)}]


def test_calls_without_a_runtime_are_refused():
    with pytest.raises(NoRuntime, match="'demo'"):
        lower(Mixed().eval(), INPUTS, backends=["demo"])(*INPUTS)


def test_eager_can_replace_the_missing_runtime():
    lowered = lower(Mixed().eval(), INPUTS, backends=["demo"]).with_missing_runtime(
        "eager"
    )
    assert lowered.verify(*INPUTS).relative_error == 0


class Steps(torch.nn.Module):
    """Each step applies an operator to one of the last three values; two values are
    used at the end.
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
        for operator, back in self.steps:
            values.append(operators[operator](values[-1 - back % min(3, len(values))]))
        return values[-1], values[len(values) // 2] + 1


step = st.tuples(
    st.sampled_from(["conv", "conv", "relu", "relu", "tan", "sin"]), st.integers(0, 2)
)


@settings(max_examples=20, deadline=None)
@given(st.lists(step, min_size=1, max_size=10))
def test_accepted_programs_compile(steps):
    model = Steps(steps).eval()
    inputs = (torch.ones(1, 2, 3, 3),)
    lowered = lower(
        model, inputs, backends=[DelegateMappingDemoPartitioner()]
    ).with_missing_runtime("eager")
    assert all(
        not delegate.processed_bytes.startswith(b"0#") for delegate in lowered.delegates
    )
    assert lowered.verify(*inputs).relative_error == 0

"""``preprocess`` of the demo backend gives the blob, the debug map and refusals."""

import pytest
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import OptionError, Unsupported
from delegraph_demo.backend import BackendWithDelegateMappingDemo as Demo

EXPECTED = (
    b"5#conv_relu_op,0,conv_relu_op,1,"
    b"sin_decomp_from_tan,2,cos_decomp_from_tan,3,div_decomp_from_tan,4,"
)


def export_with_handles(model, inputs, decompose=False):
    """Export a model and give its nodes debug handles, as delegraph does.

    The handles are 1, 2, 3 and so on, in the order of the graph.
    """
    exported = torch.export.export(model, inputs)
    if decompose:
        exported = exported.run_decompositions()
    calls = [node for node in exported.graph.nodes if node.op == "call_function"]
    for handle, node in enumerate(calls, start=1):
        node.meta["debug_handle"] = handle
    return exported


class Model(torch.nn.Module):
    """Applies ``function`` to a convolution and the input."""

    def __init__(self, function):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 3)
        self.function = function

    def forward(self, x):
        return self.function(self.conv, x)


def refusal_of(function):
    """Return the error of ``preprocess`` for ``function(conv, x)``."""
    exported = export_with_handles(Model(function).eval(), (torch.ones(1, 3, 8, 8),))
    with pytest.raises(Unsupported) as caught:
        Demo.preprocess(exported, [])
    return str(caught.value)


# run_decompositions of torch itself warns
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("decompose", [False, True], ids=["conv2d", "convolution"])
def test_blob_and_debug_map_of_the_test_model(decompose):
    model, inputs = Demo.get_test_model_and_inputs()
    assert inputs[0].shape == (4, 3, 64, 64)

    result = Demo.preprocess(export_with_handles(model, inputs, decompose), [])

    assert result.processed_bytes == EXPECTED
    assert result.debug_handle_map == {0: (1, 2), 1: (3, 4), 2: (5,), 3: (5,), 4: (5,)}


def test_the_test_model_runs():
    model, inputs = Demo.get_test_model_and_inputs()
    assert not model.training
    assert model(*inputs).shape == (4, 16, 56, 56)


def test_an_unknown_operator_is_named_with_the_users_line():
    class Sinh(torch.nn.Module):
        def forward(self, x):
            return torch.sinh(x)

    with pytest.raises(Unsupported) as caught:
        Demo.preprocess(export_with_handles(Sinh().eval(), (torch.ones(2),)), [])

    text = str(caught.value)
    assert "aten.sinh.default" in text
    assert "test_backend.py" in text
    assert "return torch.sinh(x)" in text


def test_a_convolution_without_relu_is_refused():
    refusal = refusal_of(lambda conv, x: torch.tan(conv(x)))

    assert "aten.conv2d.default (conv2d): a convolution needs a relu" in refusal


def test_a_relu_without_convolution_is_refused():
    refusal = refusal_of(lambda conv, x: torch.relu(x))

    assert "aten.relu.default (relu): relu is compiled only together" in refusal


def test_convolutions_with_several_uses_are_refused():
    def use_twice(conv, x):
        y = conv(x)
        return torch.relu(y), torch.tan(y)

    assert "a relu as the only user" in refusal_of(use_twice)


def test_a_convolution_that_is_also_an_output_is_refused():
    def use_and_return(conv, x):
        y = conv(x)
        return torch.relu(y), y

    assert "a relu as the only user" in refusal_of(use_and_return)


def test_unknown_compile_specs_are_named():
    exported = export_with_handles(*Demo.get_test_model_and_inputs())

    with pytest.raises(OptionError, match="'speed'"):
        Demo.preprocess(exported, [CompileSpec("speed", b"1")])

"""Integer calls, such as those that compute positions, are never quantized.

Some quantizers annotate them.
"""

import delegraph
import pytest
import torch
from torch import nn
from torchao.quantization.pt2e import MinMaxObserver
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
)

aten = torch.ops.aten
SPEC = QuantizationSpec(
    torch.int8,
    MinMaxObserver,
    quant_min=-128,
    quant_max=127,
    qscheme=torch.per_tensor_affine,
)


class AnnotatesAll(Quantizer):
    """Annotates each addition and product, also of integers.

    As XNNPACK's quantizer does, it first replaces numbers by tensors of floats.
    """

    def transform_for_annotation(self, model):
        for number, node in enumerate(self.calls(model)):
            for position, argument in enumerate(node.args):
                if isinstance(argument, (int, float)):
                    name = f"number_{number}_{position}"
                    model.register_buffer(name, torch.tensor(float(argument)))
                    with model.graph.inserting_before(node):
                        attribute = model.graph.get_attr(name)
                    attribute.meta["val"] = torch.tensor(float(argument))
                    node.update_arg(position, attribute)
        model.recompile()
        return model

    def annotate(self, model):
        for node in self.calls(model):
            operands = {a: SPEC for a in node.args if isinstance(a, torch.fx.Node)}
            node.meta["quantization_annotation"] = QuantizationAnnotation(
                operands, SPEC, _annotated=True
            )
        return model

    def validate(self, model):
        pass

    @staticmethod
    def calls(model):
        return [
            n
            for n in model.graph.nodes
            if n.target in (aten.add.Tensor, aten.mul.Tensor)
        ]


class Shifted(nn.Module):
    """Adds rows at computed positions to other rows.

    ``mixed``: it also multiplies integers by floats.
    """

    def __init__(self, mixed):
        super().__init__()
        self.mixed = mixed

    def forward(self, x):
        places = torch.arange(4) + 2
        rows = x[places * places % 6]
        if self.mixed:
            rows = rows * places.unsqueeze(1)
        return rows + x[2:]


BATCHES = [(torch.linspace(-1, 1, 18).reshape(6, 3) * scale,) for scale in (0.5, 1.0)]
both_models = pytest.mark.parametrize(
    "mixed", [False, True], ids=["integers as index", "product of both"]
)


def quantize_all(mixed):
    return delegraph.quantize(Shifted(mixed), BATCHES, quantizer=AnnotatesAll())


@both_models
def test_only_floats_are_quantized(mixed):
    program = quantize_all(mixed)

    quantize_calls = [
        node
        for node in program.graph.nodes
        if ".quantize_per_tensor" in str(node.target)
    ]
    assert quantize_calls
    for node in quantize_calls:
        assert node.args[0].meta["val"].is_floating_point()


@both_models
def test_sums_of_integers_keep_their_integer_operand(mixed):
    program = quantize_all(mixed)

    [addition] = [
        node
        for node in program.graph.nodes
        if node.target is aten.add.Tensor and not node.meta["val"].is_floating_point()
    ]
    assert addition.args[1] == 2
    assert type(addition.args[1]) is int


@both_models
def test_a_program_with_positions_computes_as_eager(mixed):
    program = quantize_all(mixed)

    assert any(node.target is aten.index.Tensor for node in program.graph.nodes)
    (x,) = BATCHES[1]
    expected = Shifted(mixed)(x)
    tolerance = expected.abs().max().item() / 60
    torch.testing.assert_close(program.module()(x), expected, rtol=0, atol=tolerance)

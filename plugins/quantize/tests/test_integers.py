"""What computes positions and masks stays as it is, whatever a quantizer annotates."""

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
    """Annotates each addition and product, and writes numbers as floats first, as
    XNNPACK's quantizer does.
    """

    def transform_for_annotation(self, model):
        for number, node in enumerate(self.calls(model)):
            for position, argument in enumerate(node.args):
                if isinstance(argument, (int, float)):
                    name = f"number_{number}_{position}"
                    model.register_buffer(name, torch.tensor(float(argument)))
                    with model.graph.inserting_before(node):
                        written = model.graph.get_attr(name)
                    written.meta["val"] = torch.tensor(float(argument))
                    node.update_arg(position, written)
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
    """Looks up what stands two places further; ``scaled`` goes through a product of
    integers and floats as well.
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


@pytest.mark.parametrize("mixed", [False, True], ids=["index", "product of both"])
def test_positions_stay_integers(mixed):
    batches = [
        (torch.linspace(-1, 1, 18).reshape(6, 3) * scale,) for scale in (0.5, 1.0)
    ]
    quantized = delegraph.quantize(Shifted(mixed), batches, quantizer=AnnotatesAll())
    calls = [n for n in quantized.graph.nodes if n.op == "call_function"]
    converted = [n for n in calls if ".quantize_per_tensor" in str(n.target)]
    assert converted and all(
        n.args[0].meta["val"].is_floating_point() for n in converted
    )
    assert any(n.target is aten.index.Tensor for n in calls)
    numbers = [
        n.args[1]
        for n in calls
        if n.target is aten.add.Tensor and not n.meta["val"].is_floating_point()
    ]
    assert numbers == [2] and type(numbers[0]) is int
    expected = Shifted(mixed)(*batches[1])
    torch.testing.assert_close(
        quantized.module()(*batches[1]),
        expected,
        rtol=0,
        atol=expected.abs().max().item() / 60,
    )

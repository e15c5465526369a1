"""Softmax and the like on an NPU: few passes, and still the integers of the Q/DQ graph."""

from collections import Counter

import delegraph
import delegraph_ethosu.hardware  # noqa: F401  # makes the words of the targets
import delegraph_tosa
import pytest
import torch
import torch.nn.functional as F
from delegraph_tosa.passes import split_rows

U55 = "TOSA-1.0+INT+int16+int4+u55"
U85 = "TOSA-1.0+INT+int16+int4+u85"
HIDING = torch.full((33, 33), float("-inf")).triu(1)


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def quantize_and_compile(function, *shapes, spec=U85):
    """The names of the operators for the target; and the distance from the Q/DQ graph
    in steps, on other inputs.
    """
    torch.manual_seed(0)
    batches = [tuple(2 * torch.randn(shape) for shape in shapes) for _ in range(3)]
    module = function if isinstance(function, torch.nn.Module) else Model(function)
    program = delegraph.quantize(module.eval(), batches[:2], backend="ethosu")
    result = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": spec}}
    )
    (delegate,) = result.delegates
    steps = [
        node.args[1]
        for node in program.graph.nodes
        if ".quantize_per_tensor" in str(node.target)
    ]
    expected = program.module(check_guards=False)(*batches[2])
    found = result(*batches[2])
    graph = delegraph_tosa.read(bytes(delegate.processed_bytes))
    return graph.operators, ((found - expected) / steps[-1]).round().abs()


def assert_at_most_one_step(distance, share=0.99):
    assert distance.max() <= 1
    assert (distance == 0).double().mean() >= share


ROWS = {
    "softmax": (lambda x: x.softmax(-1), [(4, 9, 50)]),
    "softmax of another axis": (lambda x: x.softmax(1), [(4, 9, 50)]),
    "attention": (F.scaled_dot_product_attention, [(1, 2, 33, 16)] * 3),
    "mask": (
        lambda *x: F.scaled_dot_product_attention(*x, attn_mask=HIDING),
        [(1, 2, 33, 16)] * 3,
    ),
    "causal": (
        lambda *x: F.scaled_dot_product_attention(*x, is_causal=True),
        [(1, 2, 33, 16)] * 3,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_divided_in_16_bits(name):
    """One TABLE for exp, no REDUCE_MAX, and no product of int32 for each element."""
    operators, distance = quantize_and_compile(ROWS[name][0], *ROWS[name][1])
    assert_at_most_one_step(distance)
    count = Counter(operator.name for operator in operators)
    assert count["TABLE"] == 1
    assert "REDUCE_MAX" not in count
    large = max(
        value.type.shape
        for operator in operators
        if operator.name == "TABLE"
        for value in operator.outputs
    )
    wide = [
        op for op in operators if op.name == "MUL" and op.outputs[0].type.shape == large
    ]
    assert [str(value.dtype) for op in wide for value in op.inputs[:2]] == [
        "int16",
        "int16",
    ]


def test_long_softmax_rows_are_divided_in_32_bits():
    for shape, spec in (((2, 300), U85), ((2, 30), "TOSA-1.0+INT+int16")):
        operators, distance = quantize_and_compile(
            lambda x: x.softmax(-1), shape, spec=spec
        )
        assert_at_most_one_step(distance)
        assert "REDUCE_MAX" in {operator.name for operator in operators}


def test_sums_of_48_bits_are_rescaled_once():
    operators, distance = quantize_and_compile(
        F.scaled_dot_product_attention, *[(1, 2, 33, 16)] * 3
    )
    assert_at_most_one_step(distance)
    (product,) = [
        op
        for op in operators
        if op.name == "MATMUL" and str(op.outputs[0].dtype) == "int48"
    ]
    (rescale,) = [op for op in operators if product.outputs[0] in op.inputs]
    assert rescale.name == "RESCALE"
    assert str(rescale.outputs[0].dtype) == "int8"


def test_patches_are_convolved_in_steps_of_one():
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 5, 5),
        torch.nn.ReLU(),
        torch.nn.Conv2d(8, 4, (2, 4), (2, 4)),
    )
    operators, distance = quantize_and_compile(layers, (2, 3, 20, 40))
    assert_at_most_one_step(distance, 1)
    strides = [tuple(op.stride) for op in operators if op.name == "CONV2D"]
    assert strides == [(1, 1)] * 2


def test_a_last_axis_of_one_element_is_left_out():
    def sums(x, y):
        return torch.cat(
            (x.sum(3, keepdim=True) - y.sum(3, keepdim=True), y.sum(3, keepdim=True)), 2
        )

    operators, distance = quantize_and_compile(sums, (1, 64, 4, 8), (1, 64, 4, 8))
    assert_at_most_one_step(distance)
    for operator in operators:
        if operator.name in ("SUB", "CONCAT"):
            assert operator.outputs[0].type.shape[-1] > 1


@pytest.mark.parametrize(("count", "products"), [(33, 2), (65, 3)])
def test_short_sequences_take_few_products_on_u55(count, products):
    """The scores are one MATMUL; the weighted values one, or two for as many bits as
    more positions need.
    """
    for settings in ({}, {"is_causal": True}):
        attention = Model(
            lambda *x, given=settings: F.scaled_dot_product_attention(*x, **given)
        )
        operators, distance = quantize_and_compile(
            attention, *[(1, 2, count, 16)] * 3, spec=U55
        )
        assert_at_most_one_step(distance, 0.85 if products == 2 else 0.99)
        assert [operator.name for operator in operators].count("MATMUL") == products


class Norm(torch.nn.Module):
    """A norm whose weights and biases are near 0, 0, negative and large."""

    def __init__(self, kind):
        super().__init__()
        self.norm = kind(24)
        numbers = torch.tensor([0.0, 1e-9, -1.0, 0.03, -2.5, 1.0])
        self.norm.weight.data = numbers.repeat(4)
        if kind is torch.nn.LayerNorm:
            self.norm.bias.data = numbers.repeat_interleave(4)

    def forward(self, x):
        return self.norm(x * torch.tensor([0.02, 1.0, 3.0]).reshape(3, 1))


@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm])
def test_weights_of_a_norm_are_a_convolution_on_a_u55(kind):
    for spec, count in ((U55, 1), (U85, 0)):
        operators, distance = quantize_and_compile(Norm(kind), (2, 3, 24), spec=spec)
        assert_at_most_one_step(distance, 0.98)
        assert [operator.name for operator in operators].count(
            "DEPTHWISE_CONV2D"
        ) == count


def test_scores_of_hidden_keys_fit_the_rescale():
    """TOSA leaves a RESCALE of int32 open beyond 2**(shift - 1); no score of these is
    near -2**30.
    """
    operators, _ = quantize_and_compile(*ROWS["causal"][:1], *ROWS["causal"][1])
    operands = [
        value
        for operator in operators
        if operator.name == "SELECT"
        for value in operator.inputs[1:]
    ]
    constants = [
        delegraph_tosa.materialize(v) for v in operands if v.constant is not None
    ]
    assert constants
    assert min(int(c.min()) for c in constants) > -(2**24)


IMAGES = {
    "one kernel": ((2, 48, 7, 5), [35]),
    "two kernels": ((2, 24, 14, 14), [49, 4]),
    "sums that int16 does not hold": ((1, 8, 80, 80), [64, 50, 2]),
}


def average(x):
    return F.adaptive_avg_pool2d(x, 1)


@pytest.mark.parametrize("spec", [U55, U85])
@pytest.mark.parametrize("name", IMAGES)
def test_images_are_summed_by_kernels_of_few_channels(name, spec):
    shape, heights = IMAGES[name]
    operators, distance = quantize_and_compile(average, shape, spec=spec)
    assert_at_most_one_step(distance, 1)
    kernels = [
        op.inputs[1].type.shape for op in operators if op.name == "DEPTHWISE_CONV2D"
    ]
    lanes = 16 if shape[1] % 16 == 0 else 8
    assert kernels == [(height, 1, lanes, 1) for height in heights]


@pytest.mark.parametrize(
    ("function", "shape", "spec"),
    [
        (average, (1, 16, 14, 14), "TOSA-1.0+INT+u85"),  # no int16 for sums of sums
        (average, (1, 6, 7, 7), U85),
        (average, (1, 16, 7, 7), "TOSA-1.0+INT+int16"),
        (lambda x: F.avg_pool2d(x, 7), (1, 16, 8, 8), U85),
    ],
)
def test_pooling_sums_other_images_by_depthwise_convolution(function, shape, spec):
    operators, distance = quantize_and_compile(function, shape, spec=spec)
    assert_at_most_one_step(distance)
    (kernel,) = [
        op.inputs[1].type.shape for op in operators if op.name == "DEPTHWISE_CONV2D"
    ]
    assert kernel == (*(shape[2:] if function is average else (7, 7)), shape[1], 1)


def test_an_average_that_keeps_its_quantization_is_a_pool():
    """Other operators read the image too, and Vela would copy it."""
    operators, distance = quantize_and_compile(
        lambda x: F.relu(x).mean((2, 3), keepdim=True) * x, (1, 16, 7, 7)
    )
    assert_at_most_one_step(distance)
    assert [
        op.name for op in operators if "POOL" in op.name or "DEPTHWISE" in op.name
    ] == ["AVG_POOL2D"]


BLOCKS = {
    "norm": (torch.nn.LayerNorm(24), [(1, 30, 24)], "REDUCE_SUM", 3 * 2),
    # of two heads, each with two products
    "attention": (
        F.scaled_dot_product_attention,
        [(1, 2, 30, 16)] * 3,
        "MATMUL",
        3 * 4,
    ),
    "causal": (
        lambda *x: F.scaled_dot_product_attention(*x, is_causal=True),
        [(1, 2, 30, 16)] * 3,
        "MATMUL",
        3 * 4,
    ),
    "softmax": (lambda x: x.softmax(-1), [(4, 9, 50)], "REDUCE_SUM", 3),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_rows_change_no_integer(name, monkeypatch):
    """Every row is computed as without blocks, of which there are three here."""
    function, shapes, counted, count = BLOCKS[name]
    _, whole = quantize_and_compile(function, *shapes)
    monkeypatch.setattr(split_rows, "FAST_MEMORY", 1)
    monkeypatch.setattr(split_rows, "LEAST_SHARE", 0)
    monkeypatch.setattr(split_rows, "MOST_BLOCKS", 3)
    operators, blocks = quantize_and_compile(function, *shapes)
    assert Counter(operator.name for operator in operators)[counted] == count
    assert torch.equal(blocks, whole)

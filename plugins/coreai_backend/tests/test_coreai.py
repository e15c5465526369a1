"""The backend against eager PyTorch: numbers, types, sizes, refusals, threads."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import delegraph
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators quantized_decomposed
from delegraph.errors import FormatError, InputError
from torch import nn

pytest.importorskip("coreai_torch")
from delegraph_coreai.runtime import CoreAIRuntime


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def lower(model, *args, **kwargs):
    module = model if isinstance(model, nn.Module) else Function(model)
    return delegraph.lower(module.eval(), args, backends=["coreai"], **kwargs)


def check_whole(model, *args, error=1e-5, **kwargs):
    """Lower a model to one delegate that computes what eager computes."""
    lowered = lower(model, *args, **kwargs)
    assert len(lowered.delegates) == 1 and lowered.host_operators == 0, lowered.report
    assert lowered.verify(*args).relative_error <= error
    return lowered


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, image):
        return self.head(torch.relu(self.norm(self.conv(image))).mean((2, 3)))


class Tokens(nn.Module):
    """Ids select rows, a mask is read as floats and as truth values."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.position = nn.Embedding(12, 4)

    def forward(self, ids, mask):
        places = (ids != 1).to(torch.int64).cumsum(1) * (ids != 1) + 1
        rows = self.table(ids) + self.position(places)
        biases = (1.0 - mask[:, None, :].to(torch.float32)) * -1e9
        return rows, biases, mask.to(torch.bool), ids + 1, ids.argmax(1)


def test_a_network_is_one_delegate():
    check_whole(Small(), torch.randn(2, 3, 16, 16))


def test_a_recurrent_layer_is_one_delegate():
    check_whole(nn.LSTM(4, 6, bidirectional=True), torch.randn(7, 3, 4))


def test_sizes_may_vary():
    dim = torch.export.Dim("batch")
    lowered = check_whole(
        Small(), torch.randn(2, 3, 16, 16), dynamic_shapes=({0: dim},)
    )
    assert lowered.verify(torch.randn(5, 3, 16, 16)).relative_error < 1e-5


DYNAMIC = torch.export.Dim.DYNAMIC
NEED = [
    (lambda x: x.exp() + 1, 1),
    (lambda x: torch.cat([x, x + 1]), 1),
    (lambda x: x[1:] + 1, 2),
    (lambda x: x[2:] - x[:-2], 3),
    (lambda x: x[: x.shape[0] // 2] + 1, 2),
]


@pytest.mark.parametrize(("function", "least"), NEED)
def test_calls_that_make_empty_tensors_are_errors(function, least):
    """Core AI would end the process."""
    x = torch.randn(12, 4)
    lowered = check_whole(function, x, dynamic_shapes=(({0: DYNAMIC},),))
    for size in (least, least + 1, 12):
        torch.testing.assert_close(lowered(x[:size]), function(x[:size]))
    for size in range(least):
        with pytest.raises(InputError, match=f"needs {least} there|of at least"):
            lowered(x[:size])


def test_a_position_of_zero_is_no_empty_tensor():
    function = lambda x, y: torch.linalg.inv(x) * (y.shape[0] - 1) + y.shape[0]
    dims = ((None, {0: DYNAMIC}),)
    lowered = lower(function, torch.eye(2), torch.ones(4), dynamic_shapes=dims)
    assert lowered.delegates
    assert torch.equal(lowered(torch.eye(2), torch.ones(1)), torch.ones(2, 2))


def test_a_size_is_not_zero():
    """The delegate gets the size: the host keeps the tensor, in float64."""
    function = lambda x, y: x.sum() * torch.ones(y.shape[0]) + 1
    dims = ((None, {0: DYNAMIC}),)
    wide = torch.ones(4, dtype=torch.float64)
    lowered = lower(function, torch.ones(2), wide, dynamic_shapes=dims)
    assert lowered(torch.ones(2), wide[:1]).tolist() == [3]
    with pytest.raises(InputError, match="is the size 0"):
        lowered(torch.ones(2), wide[:0])


def test_sizes_that_no_input_bounds_stay_on_the_host():
    function = lambda x, y: x[y.shape[0] :] + 1
    x = torch.randn(5, 4)
    dims = (({0: DYNAMIC}, {0: DYNAMIC}),)
    lowered = lower(function, x, torch.ones(3), dynamic_shapes=dims)
    assert "may be 0" in str(lowered.report)
    assert lowered(x, torch.ones(4)).shape == (1, 4)


def test_a_size_is_an_input_and_an_output():
    function = lambda x, y: (x * y.shape[0], y.shape[0] + 1)
    dims = ((None, {0: torch.export.Dim.DYNAMIC}),)
    lowered = lower(function, torch.ones(3), torch.ones(4), dynamic_shapes=dims)
    assert lowered(torch.ones(3), torch.ones(6))[1] == 7
    assert lowered(torch.ones(3), torch.ones(6))[0].tolist() == [6, 6, 6]


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.bfloat16])
def test_types_cross_the_border(dtype):
    x = torch.tensor([[1, 2, 3], [250, 5, 6]]).to(dtype)
    check_whole(lambda x: x + x * 2, x, error=0)


def test_a_network_in_float16_is_one_delegate():
    check_whole(Small().half(), torch.randn(2, 3, 16, 16).half(), error=2e-3)


def test_a_token_model_is_one_delegate():
    ids = torch.tensor([[1, 2, 9]])
    mask = torch.tensor([[1, 0, 2**40]])
    lowered = check_whole(Tokens(), ids, mask)
    with pytest.raises(InputError, match="0 to 9 are in range"):
        lowered(torch.tensor([[1, 2, 2**32]]), mask)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: x * x,
        lambda x: x > 2**33,
        lambda x: x.sum().to(torch.bool),
        lambda x: (x + x).to(torch.float32),
        lambda x: x.to(torch.float64).to(torch.int64),
    ],
)
def test_integers_beyond_32_bits_stay_on_the_host(function):
    x = torch.tensor([2**40, -(2**62), 2**63 - 1, 3])
    lowered = lower(function, x)
    assert not lowered.delegates or lowered.verify(x).relative_error == 0
    assert torch.equal(lowered(x), function(x))


def test_inputs_weights_and_repeated_values_may_be_results():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x):
            y = x.exp()
            return x.clone(), y, y, self.weight * 1, self.weight

    check_whole(Model(), torch.randn(3))


def test_more_than_ten_inputs_and_outputs_keep_their_order():
    inputs = tuple(torch.randn(2) for _ in range(12))
    check_whole(lambda *xs: tuple(x + k for k, x in enumerate(xs)), *inputs, error=0)


@pytest.mark.parametrize(
    "function",
    [torch.log1p, torch.expm1, torch.floor, torch.ceil, torch.trunc],
)
def test_small_numbers_and_infinities_keep_their_digits(function):
    inf = float("inf")
    x = torch.tensor([1e-9, -1e-9, 1e-4, 0.3, -0.5, 3.5, -7.5, 40.0, 0.0, inf, -inf])
    lowered = check_whole(function, x)
    torch.testing.assert_close(
        lowered(x), function(x), rtol=2e-6, atol=0, equal_nan=True
    )


def test_literals_keep_their_digits():
    ids = torch.tensor([1, 2, 300], dtype=torch.int32)
    check_whole(lambda i: (i * 8.4763, i + 0.3001, i / 0.7), ids, error=1e-7)


def test_alpha_scales_the_second_operand():
    x = torch.randn(3)
    y = torch.tensor([1, 2, 3], dtype=torch.int32)
    function = lambda x, y: (torch.add(x, y, alpha=3), torch.sub(y, y, alpha=2))
    check_whole(function, x, y, error=1e-6)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.linalg.inv, "has no rule"),
        (torch.nonzero, "depends on values"),
        (lambda x: torch.rand_like(x) + x, "random"),
        (lambda x: x.to(torch.float64).exp(), "float64"),
        (
            lambda x: nn.functional.avg_pool2d(
                x[None], 2, padding=1, count_include_pad=False
            ),
            "count_include_pad",
        ),
    ],
)
def test_a_refusal_has_a_reason(function, reason):
    report = str(lower(function, torch.randn(4, 4)).report)
    assert reason in report


def test_the_rest_of_a_program_stays_delegated():
    lowered = lower(lambda x: torch.linalg.inv(x.exp()) + 1, torch.randn(3, 3))
    assert len(lowered.delegates) == 2 and lowered.host_operators == 1


def test_threads_and_event_loops_call_a_delegate():
    lowered = check_whole(Small(), torch.randn(2, 3, 16, 16))
    inputs = [torch.randn(2, 3, 16, 16) for _ in range(16)]
    expected = [lowered(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(pool.map(lowered, inputs), expected, strict=True):
            assert torch.equal(one, other)

    async def in_a_notebook():
        return lowered(inputs[0])

    assert torch.equal(asyncio.run(in_a_notebook()), expected[0])


def test_inputs_with_any_strides_are_taken():
    lowered = check_whole(lambda x: x.exp() + 1, torch.randn(3, 4))
    x = torch.randn(4, 3)
    torch.testing.assert_close(lowered(x.t()), x.t().exp() + 1)


def test_equal_programs_have_equal_blobs():
    torch.manual_seed(0)
    model = Small().eval()
    blobs = [
        bytes(lower(model, torch.ones(1, 3, 8, 8)).delegates[0].blob) for _ in "ab"
    ]
    assert blobs[0] == blobs[1]
    assert __file__.encode() not in blobs[0]


def test_wrong_arguments_are_errors():
    blob = bytes(lower(lambda x: x.exp(), torch.ones(2, 3)).delegates[0].blob)
    delegate = CoreAIRuntime.load(blob, [], {})
    for wrong in (torch.ones(3, 2), torch.ones(2, 3, dtype=torch.int64)):
        with pytest.raises(InputError):
            delegate(wrong)


def test_a_damaged_blob_is_an_error():
    delegate = lower(Small(), torch.ones(1, 3, 8, 8)).delegates[0]
    blob = bytearray(bytes(delegate.blob))
    blob[100] ^= 1
    with pytest.raises(FormatError):
        CoreAIRuntime.load(bytes(blob), [], {})


@pytest.mark.parametrize("function", [torch.sum, torch.mean, torch.amax])
def test_a_scalar_is_reduced_on_the_host(function):
    """Core AI's compiler would end the process."""
    lowered = lower(lambda x: function(x.exp()), torch.tensor(2.0))
    assert lowered(torch.tensor(0.0)) == 1


def test_truth_values_are_multiplied():
    x = torch.randn(8)
    function = lambda x: ((x > 0) * (x < 1), (x > 0) + (x < 1), torch.logaddexp(x, x))
    assert lower(function, x).verify(x).relative_error < 1e-6


def check_equal(function, *args):
    """Compare with eager, NaN included, whichever side computes a call."""
    lowered = lower(function, *args)
    results = lowered(*args)
    expected = function(*args)
    if isinstance(expected, torch.Tensor):
        results = (results,)
        expected = (expected,)
    for result, value in zip(results, expected, strict=True):
        torch.testing.assert_close(result, value, equal_nan=True)
    return lowered


NARROW = {
    torch.int8: [100, -100, 127, -128, 5],
    torch.uint8: [200, 255, 0, 3, 128],
    torch.int16: [30000, -30000, 32767, -32768, 5],
    torch.int32: [2**31 - 1, -(2**31), 2**30, 2**24 + 1, 7],
}


@pytest.mark.parametrize("dtype", NARROW)
def test_integers_wrap_as_in_eager(dtype):
    x = torch.tensor(NARROW[dtype], dtype=dtype)
    check_equal(lambda x: (x * 100, x + x, x - 100, ~x, x % 7), x)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("to", [torch.int8, torch.uint8])
def test_casts_drop_high_bits(dtype, to):
    x = torch.tensor(NARROW[dtype], dtype=dtype)
    check_equal(lambda x: (x.to(to), (x % 7).to(to)), x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x**2,
        lambda x: x[None] @ x[:, None],
        lambda x: torch.addmm(x[:1, None], x[None], x[:, None]),
    ],
)
def test_integer_products_that_overflow_do_not_end_the_process(function):
    lowered = lower(function, torch.ones(4, dtype=torch.int32))
    x = torch.tensor([70000, 2, 3, 2**30], dtype=torch.int32)
    assert torch.equal(lowered(x), function(x))


def test_comparisons_with_nan_are_false():
    nan = float("nan")
    x = torch.tensor([1.0, nan, -1.0, nan])
    y = torch.tensor([nan, nan, -1.0, 0.0])
    function = lambda x, y: (x <= y, x >= y, x <= 0.5, x >= 0.5)
    assert check_equal(function, x, y).host_operators == 0


def test_truth_values_are_compared_on_the_host():
    lowered = check_equal(torch.le, torch.tensor(True), torch.tensor(True))
    assert "comparisons of truth values" in str(lowered.report)


def test_positions_of_extremes_are_those_of_nan():
    nan = float("nan")
    x = torch.tensor([[1.0, nan, float("inf"), nan], [3.0, 3.0, -1.0, -1.0]])
    function = lambda x: (x.argmax(1), x.argmin(1), x.argmax(), *x.max(1), *x.min(1))
    check_equal(function, x)


def test_a_remainder_by_an_infinity_has_its_sign():
    inf = float("inf")
    x = torch.tensor([1.0, -1.0, 5.5, -5.5, 0.0])
    check_equal(torch.remainder, x, torch.tensor([inf, inf, -2.0, -2.0, -inf]))


@pytest.mark.parametrize("function", [torch.ops.aten.add, torch.ops.aten.sub])
def test_alpha_scales_a_number(function):
    x = torch.tensor([1, 2, 3], dtype=torch.int32)
    check_equal(lambda x: function.Scalar(x, 3, 4), x)
    wide = torch.tensor([1, 2, 3])
    check_equal(lambda x: function.Scalar(x % 5, 3, 2**30), wide)


def test_sums_into_a_table_may_exceed_32_bits():
    ids = torch.zeros(1, 5, dtype=torch.int64)
    values = torch.ones(1, 5, dtype=torch.int64)

    def function(ids, values):
        large = (values % 2) * (2**29)
        places = (torch.tensor([0, 0, 0, 0, 0]),)
        put = torch.index_put(large[0], places, large[0], accumulate=True)
        return torch.scatter(large, 0, ids, large, reduce="add") + 1, put + 1

    check_equal(function, ids, values)


@pytest.mark.parametrize("size", [(8, 12), (3, 3), (7, 5), (2, 2)])
def test_images_are_resized_to_the_nearest_elements(size):
    resize = lambda x: nn.functional.interpolate(x, size=size, mode="nearest")
    lowered = check_equal(resize, torch.randn(1, 2, 4, 4))
    assert len(lowered.delegates) == (size == (8, 12))


@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_attention_to_no_keys_is_zero(kind):
    queries = torch.randn(1, 2, 4, 8)
    mask = torch.ones(4, 4).tril(-1).bool()
    if kind is torch.float32:
        mask = torch.zeros(4, 4).masked_fill(~mask, -float("inf"))
    attend = nn.functional.scaled_dot_product_attention
    check_equal(lambda q, m: attend(q, q, q, attn_mask=m), queries, mask)


@pytest.mark.parametrize("shape", [(), (2, 1)])
def test_no_axes_are_removed(shape):
    check_equal(lambda x: torch.ops.aten.squeeze.dims(x.exp(), []), torch.randn(shape))


def test_tensors_without_elements_stay_on_the_host():
    pool = lambda x: nn.functional.adaptive_avg_pool1d(x, 5).exp()
    lowered = check_equal(pool, torch.randn(0, 3, 3))
    assert "has no elements" in str(lowered.report)


def test_programs_with_norms_and_attention_have_equal_blobs():
    attend = nn.functional.scaled_dot_product_attention
    function = lambda x: attend(x, x, nn.functional.layer_norm(x, (8,)))
    x = torch.randn(1, 2, 4, 8)
    blobs = [bytes(lower(function, x).delegates[0].blob) for _ in "ab"]
    assert blobs[0] == blobs[1]


def test_max_pooling_gives_its_indices_to_the_host():
    pool = nn.MaxPool2d(2, return_indices=True)
    x = torch.randn(1, 2, 6, 6)
    lowered = lower(pool, x)
    assert "indices of max pooling" in str(lowered.report)
    assert torch.equal(lowered(x)[1], pool(x)[1])


PUTS = [
    ([torch.tensor([2])], (3,)),
    ([None, torch.tensor([1, 3])], (3,)),
    ([None, torch.tensor([1, 3])], (4, 1, 3)),
    ([None, None, torch.tensor([1, 0])], (2,)),
    ([torch.tensor([1, 3]), None, torch.tensor([0, 2])], (8,)),
    ([torch.tensor([[1], [3]]), torch.tensor([0, 5])], (2, 1)),
    ([None, torch.tensor([1, 3]), torch.tensor([0, 2])], ()),
    ([None, torch.tensor([[1]])], (4, 1, 1, 3)),
    ([None, None, torch.tensor([[1, 2]])], (4, 1, 1, 2)),
    ([torch.tensor([2]), None, torch.tensor([[0, 1], [2, 1]])], (2, 1, 8)),
]


@pytest.mark.parametrize(("indices", "shape"), PUTS)
def test_values_are_repeated_for_all_places(indices, shape):
    """Core AI would take wrong values, or end the process."""
    put = lambda x, y: torch.ops.aten.index_put(x, indices, y)
    check_whole(put, torch.randn(4, 8, 3), torch.randn(shape), error=0)


def check_put(lengths, indices, values, dynamic):
    """Write rows at places whose number varies. Return the number of delegates."""
    put = lambda x, places, y: torch.index_put(x, places, y)
    args = (torch.randn(6, 8, 3), indices, values(4))
    lowered = lower(put, *args, dynamic_shapes=((None, *dynamic),))
    for length in lengths:
        args = (args[0], [index[:length] for index in indices], values(length))
        assert torch.equal(lowered(*args), put(*args))
    return len(lowered.delegates)


def test_the_number_of_places_may_vary():
    rows = torch.export.Dim("rows")
    indices = [torch.tensor([5, 0, 3, 1])]
    whole = lambda length: torch.randn(length, 8, 3)
    assert check_put((1, 2, 4), indices, whole, ([{0: rows}], {0: rows})) == 1


@pytest.mark.parametrize("shape", [(1, 8, 3), (1, 1, 3), (4, 1, 3)])
def test_values_for_a_varying_number_of_places_stay_on_the_host(shape):
    rows = torch.export.Dim("rows")
    indices = [torch.tensor([5, 0, 3, 1])]
    repeated = lambda length: torch.randn(min(length, shape[0]), *shape[1:])
    dynamic = ([{0: rows}], {0: rows} if shape[0] == 4 else None)
    assert check_put((1, 2, 4), indices, repeated, dynamic) == 0


def test_a_mask_of_places_may_have_no_true_element():
    put = lambda x, y: torch.ops.aten.index_put(x, [x[:, 0] > 0], y)
    lowered = lower(put, torch.randn(4, 3), torch.tensor(5.0))
    assert "no true element" in str(lowered.report)
    x = -torch.ones(4, 3)
    assert torch.equal(lowered(x, torch.tensor(5.0)), x)


# --- int8 and int4 ------------------------------------------------------------------


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.first = nn.Linear(8, 512)
        self.last = nn.Linear(512, 10)

    def forward(self, image):
        features = torch.relu(self.conv(image)).mean((2, 3))
        return self.last(torch.relu(self.first(features)))


@pytest.mark.parametrize(("bits", "share"), [(8, 0.5), (4, 0.35)])
def test_weights_are_stored_in_few_bits(bits, share):
    pytest.importorskip("torchao")
    from delegraph_coreai.quantizer import CoreAIQuantizer

    torch.manual_seed(0)
    model = Wide().eval()
    image = torch.randn(2, 3, 8, 8)
    quantizer = CoreAIQuantizer(bits)
    program = delegraph.quantize(model, [(image,)], quantizer=quantizer)
    lowered = delegraph.lower(program, backends=["coreai"], require_full=True)
    assert lowered.verify(image).relative_error < 1e-5
    assert (lowered(image) - model(image)).abs().max() < 0.3 * model(image).abs().max()
    floats = lower(model, image)
    sizes = []
    for each in (lowered, floats):
        blob = each.delegates[0].processed_bytes
        sizes.append(len(blob) + sum(map(len, each.named_data.buffers)))
    assert sizes[0] < share * sizes[1]


def test_quantized_values_are_within_a_step():
    x = torch.cat([torch.randn(4000), torch.tensor([float("inf"), -1e30])])
    quantized = torch.ops.quantized_decomposed

    def steps(x):
        a = quantized.quantize_per_tensor(x, 0.02, 3, -127, 127, torch.int8)
        b = quantized.quantize_per_tensor(x, 0.0137, 100, 0, 255, torch.uint8)
        back = quantized.dequantize_per_tensor(a, 0.02, 3, -127, 127, torch.int8)
        return a, b, back

    lowered = lower(steps, x)
    assert lowered.host_operators == 0
    for result, expected in zip(lowered(x), steps(x), strict=True):
        step = 0.02001 if result.is_floating_point() else 1
        assert (result.float() - expected.float()).abs().max() <= step


def test_zero_points_of_channels_stay_on_the_host():
    weight = torch.randint(-100, 100, (4, 3), dtype=torch.int8)
    scales = torch.rand(4)
    zeros = torch.tensor([0, 1, 0, 2])

    def layer(x):
        dequantize = torch.ops.quantized_decomposed.dequantize_per_channel
        return x @ dequantize(weight, scales, zeros, 0, -127, 127, torch.int8).t()

    x = torch.randn(2, 3)
    assert lower(layer, x).verify(x).relative_error < 1e-5

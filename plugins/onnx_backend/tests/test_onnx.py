"""The backend against eager PyTorch: numbers, types, sizes, refusals, threads."""

from concurrent.futures import ThreadPoolExecutor

import delegraph
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # the operators quantized_decomposed
from delegraph.errors import FormatError, InputError, OptionError
from delegraph_onnx.settings import check_settings
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
from delegraph_onnx.runtime import OnnxRuntime


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def lower(model, *args, **kwargs):
    module = model if isinstance(model, nn.Module) else Function(model)
    return delegraph.lower(module.eval(), args, backends=["onnx"], **kwargs)


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


def test_a_network_is_one_delegate():
    check_whole(Small(), torch.randn(2, 3, 16, 16))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_is_one_operator(kind):
    lowered = check_whole(
        kind(4, 6, num_layers=2, bidirectional=True), torch.randn(7, 3, 4)
    )
    operators = lowered.report.delegates[0].operators
    assert operators[f"aten.{kind.__name__.lower()}.input"] == 1
    assert operators.keys() <= {
        f"aten.{kind.__name__.lower()}.input",
        "aten.zeros.default",
    }


def test_sizes_may_vary():
    dim = torch.export.Dim("batch")
    lowered = check_whole(
        Small(), torch.randn(2, 3, 16, 16), dynamic_shapes=({0: dim},)
    )
    assert lowered.verify(torch.randn(5, 3, 16, 16)).relative_error < 1e-5


def test_a_size_is_an_input_and_an_output():
    function = lambda x, y: (x * y.shape[0], y.shape[0] + 1)
    dims = ((None, {0: torch.export.Dim.DYNAMIC}),)
    lowered = lower(function, torch.ones(3), torch.ones(4), dynamic_shapes=dims)
    assert lowered(torch.ones(3), torch.ones(6))[1] == 7
    assert lowered(torch.ones(3), torch.ones(6))[0].tolist() == [6, 6, 6]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float64, torch.int32, torch.int64, torch.uint8]
)
def test_types_cross_the_border(dtype):
    x = torch.tensor([[1, 2, 3], [250, 5, 6]]).to(dtype)
    check_whole(lambda x: x + x * 2, x, error=0)


def test_bool_and_bfloat16_cross_the_border():
    mask = torch.tensor([True, False, True])
    check_whole(lambda m, x: torch.where(m, x, -x), mask, torch.randn(3), error=0)
    x = torch.randn(3, 4).bfloat16()
    lowered = lower(lambda x: (x.reshape(4, 3).t(), x.float() + 1), x)
    assert lowered.delegates
    lowered.verify(x)


def test_operands_of_two_types_are_cast():
    ints = torch.tensor([1, 2, 300], dtype=torch.int32)
    check_whole(lambda x, y: (x + y, y / 2, y > 1.5, x.sum() + y), torch.randn(3), ints)


def test_inputs_weights_and_repeated_values_may_be_results():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x):
            y = x.exp()
            return x.clone(), y, y, self.weight * 1, self.weight

    check_whole(Model(), torch.randn(3))


@pytest.mark.parametrize(
    "function", [torch.log1p, torch.expm1, nn.functional.logsigmoid, torch.exp]
)
def test_small_and_large_numbers_keep_their_digits(function):
    x = torch.tensor([1e-9, -1e-9, 1e-4, 0.3, -0.4, 3.0, 40.0, 0.0])
    lowered = lower(function, x)
    torch.testing.assert_close(lowered(x), function(x), rtol=2e-6, atol=0)
    wild = torch.tensor([float("inf"), float("nan"), 1e38, -0.5])
    torch.testing.assert_close(
        lower(function, wild)(wild), function(wild), rtol=1e-6, atol=0, equal_nan=True
    )


def test_signs_of_zero_infinity_and_nan_are_those_of_torch():
    inf = float("inf")
    numbers = torch.tensor([0.0, -0.0, 1.0, -2.5, inf, -inf, float("nan"), 1e-40])
    y, x = torch.cartesian_prod(numbers, numbers).unbind(1)
    lowered = lower(torch.atan2, y, x)
    assert lowered.host_operators == 0
    angles = torch.atan2(y, x)
    torch.testing.assert_close(lowered(y, x), angles, rtol=1e-6, atol=0, equal_nan=True)
    is_number = angles == angles
    signs = torch.signbit(angles)[is_number]
    assert torch.equal(torch.signbit(lowered(y, x))[is_number], signs)
    assert torch.equal(lower(torch.sign, x)(x), torch.sign(x))
    check_whole(torch.sign, torch.arange(-3, 4), error=0)


def test_a_bound_that_is_missing_is_infinite():
    x = torch.tensor([float("inf"), -float("inf"), 1.0, -1.0])
    check_whole(lambda x: (x.clamp(min=0), x.clamp(max=0)), x, error=0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[:, None, :1, None].squeeze((0, 1, 2, 3)),
        lambda x: x.squeeze((-1, 0)),
        lambda x: torch.where(x > 0, x > 1, x < -1),
        lambda x: (x.amax(), x.amin(), x.amax((0, 1), keepdim=True), x.amin(0)),
    ],
)
def test_operators_without_a_rule_of_torch_onnx_are_taken(function):
    check_whole(function, torch.randn(3, 4), error=0)


def test_dimensions_of_a_dynamic_size_are_not_squeezed():
    class Squeeze(nn.Module):
        def forward(self, x):
            return x[:, None].squeeze((0, 1))

    rows = ({0: torch.export.Dim("rows", min=2)},)
    lowered = check_whole(Squeeze(), torch.randn(3, 4), error=0, dynamic_shapes=rows)
    assert lowered(torch.ones(5, 4)).shape == (5, 4)


def test_elements_are_repeated_after_negative_padding():
    pad = lambda x: nn.functional.pad(x, (-4, 5, 0, 0), mode="replicate")
    x = torch.randn(5, 3, 4, 4)
    assert lower(pad, x).verify(x).relative_error == 0


def test_a_tensor_without_dimensions_is_scattered_on_the_host():
    inputs = (torch.ones(()), torch.tensor(0), torch.ones(()))
    lowered = lower(lambda x, index, y: x.scatter_add(0, index, y), *inputs)
    assert "without dimensions" in str(lowered.report)
    assert lowered(*inputs) == 2


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.linalg.inv, "has no rule"),
        (torch.nonzero, "depends on values"),
        (lambda x: torch.rand_like(x) + x, "random"),
        (lambda x: x.to(torch.complex64).abs(), "complex64"),
        (
            lambda x: nn.functional.avg_pool2d(x[None], 2, divisor_override=3),
            "divisor_override",
        ),
    ],
)
def test_a_refusal_has_a_reason(function, reason):
    report = str(lower(function, torch.randn(4, 4)).report)
    assert reason in report


def test_the_rest_of_a_program_stays_delegated():
    lowered = lower(lambda x: torch.linalg.inv(x.exp()) + 1, torch.randn(3, 3))
    assert len(lowered.delegates) == 2 and lowered.host_operators == 1


def test_weights_are_named_data_and_shared():
    layer = nn.Linear(64, 64)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(torch.linalg.inv(self.layer(x)))

    lowered = lower(Twice(), torch.randn(64, 64))
    assert len(lowered.delegates) == 2
    assert len(lowered.named_data.buffers) == 1
    assert all(len(d.blob) < 4096 for d in lowered.delegates)


def test_a_weight_that_is_transposed_at_compile_time_is_named_data():
    """ONNX Runtime refuses a weight whose elements are not in C order."""
    weight = torch.randn(60, 50)
    lowered = check_whole(lambda x: x @ weight.t(), torch.randn(2, 50))
    assert len(lowered.delegates[0].blob) < 4096


def test_threads_share_a_session():
    lowered = check_whole(Small(), torch.randn(2, 3, 16, 16))
    inputs = [torch.randn(2, 3, 16, 16) for _ in range(16)]
    expected = [lowered(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(pool.map(lowered, inputs), expected, strict=True):
            assert torch.equal(one, other)


def test_equal_programs_have_equal_blobs():
    torch.manual_seed(0)
    model = Small().eval()
    blobs = [
        bytes(lower(model, torch.ones(1, 3, 8, 8)).delegates[0].blob) for _ in "ab"
    ]
    assert blobs[0] == blobs[1]
    assert b"/" + __file__.encode() not in blobs[0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ep": "Cuda!"}, "name of an execution provider"),
        ({"soc": "SM8750"}, "belong to ep=qnn"),
        ({"ep": "qnn", "soc": "SM1"}, "no chip 'SM1'"),
        ({"ep": "qnn", "htp_arch": "12"}, "'12' is none of"),
        ({"ep_options": "backend_path=evil.so"}, "backend_path"),
        ({"session": "no_such=1"}, "no_such"),
        ({"session": "graph_optimization_level=most"}, "disable_all, basic"),
        ({"threads": "-1"}, "'threads'"),
    ],
)
def test_a_wrong_option_is_an_error_before_any_work(options, text):
    with pytest.raises(OptionError, match=text):
        check_settings(options)


def test_a_chip_has_numbers():
    settings = check_settings({"ep": "qnn", "soc": "sm8750"})
    assert settings.ep_options == {"soc_model": "69", "htp_arch": "79"}


def test_session_options_and_threads_reach_the_session():
    options = {"threads": 2, "session": "graph_optimization_level=disable_all"}
    lowered = lower(Small(), torch.ones(1, 3, 8, 8), options={"onnx": options})
    assert lowered.verify(torch.ones(1, 3, 8, 8)).relative_error < 1e-5


def test_wrong_arguments_are_errors():
    blob = bytes(lower(lambda x: x.exp(), torch.ones(2, 3)).delegates[0].blob)
    delegate = OnnxRuntime.load(blob, [], {})
    for wrong in (torch.ones(3, 2), torch.ones(2, 3, dtype=torch.int64)):
        with pytest.raises(InputError):
            delegate(wrong)


def test_a_damaged_blob_is_an_error():
    delegate = lower(Small(), torch.ones(1, 3, 8, 8)).delegates[0]
    blob = bytearray(bytes(delegate.blob))
    blob[100] ^= 1
    with pytest.raises(FormatError):
        OnnxRuntime.load(bytes(blob), [], {})


def test_results_share_no_memory_with_inputs_weights_or_later_results():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3))

        def forward(self, x):
            return x.clone(), x.view(-1), self.weight * 1, x + 1

    for dynamic in (None, ({0: torch.export.Dim("rows")},)):
        x = torch.randn(2, 3)
        lowered = check_whole(Model(), x, error=0, dynamic_shapes=dynamic)
        first = lowered(x)
        expected = [result.clone() for result in first]
        for result in first[:3]:
            result.fill_(7)
        assert not (x == 7).any()
        for result, value in zip(lowered(x), expected, strict=True):
            assert torch.equal(result, value)
        lowered(x * 2)
        assert torch.equal(first[3], expected[3])


def test_inputs_of_any_layout_are_taken():
    lowered = lower(lambda x: x.exp(), torch.zeros(2, 3))
    delegate = OnnxRuntime.load(bytes(lowered.delegates[0].blob), [], {})
    x = torch.randn(2, 3)
    layouts = [
        x.t().contiguous().t(),
        torch.randn(2, 6)[:, ::2],
        torch._neg_view(x),
        x.clone().requires_grad_(),
        x[:1].expand(2, 3),
    ]
    for given in layouts:
        torch.testing.assert_close(delegate(given)[0], given.detach().exp())


def test_tensors_without_elements_cross_the_border():
    lowered = lower(lambda x: (x * 2, x.sum(0), x.t()), torch.zeros(0, 3))
    assert lowered.delegates
    doubled, total, turned = lowered(torch.zeros(0, 3))
    assert doubled.shape == (0, 3) and turned.shape == (3, 0)
    assert total.tolist() == [0, 0, 0]


def test_results_of_calls_inside_a_delegate_are_compared():
    image = torch.randn(2, 3, 16, 16)
    for dynamic in (None, ({0: torch.export.Dim("batch")},)):
        lowered = check_whole(Small(), image, dynamic_shapes=dynamic)
        operators = lowered.verify(image, per_operator=True).operators
        assert [row.operator.split(".")[1] for row in operators.operators] == [
            "conv2d",
            "_native_batch_norm_legit_no_training",
            "relu",
            "mean",
            "linear",
        ]
        assert operators.first is None and operators.not_compared == {}


def test_results_of_integer_calls_inside_a_delegate_are_compared():
    def function(x):
        positive = x > 0
        count = positive.sum()
        return torch.where(positive, x.half(), count.half())

    lowered = check_whole(function, torch.randn(3))
    operators = lowered.verify(torch.randn(3), per_operator=True).operators
    assert {"aten.gt.Scalar", "aten.sum.default"} <= {
        row.operator for row in operators.operators
    }
    assert operators.first is None


# --- control flow -------------------------------------------------------------------


def branch(model, x):
    weights = torch.tensor([1.0, 2.0, 3.0])
    positive = lambda x: (model.layer(x) + weights, x + 1, x + 1)
    negative = lambda x: (x.sin(), (x > 0) + x, torch.ones(4, 3))
    return torch.cond(x.sum() > 0, positive, negative, (x,))


def branch_in_a_loop(model, x):
    def body(step, x):
        x = torch.cond(step > 2, lambda x: model.layer(x), lambda x: x.cos(), (x,))
        return step + 1, x

    return while_loop(lambda step, x: step < 5, body, (torch.tensor(0), x))


def loop_without_iterations(model, x):
    return while_loop(
        lambda step, x: step < 0,
        lambda step, x: (step + 1, x * 2),
        (torch.tensor(0), x),
    )


def exchange(model, x):
    def body(step, x, y):
        return step + 1, y.clone(), x.clone()

    state = (torch.tensor(0), x, x * 2)
    return while_loop(lambda step, x, y: step < 3, body, state)


def sums(model, x):
    return scan(lambda total, x: (total + x, (total * x).sin()), torch.zeros(3), x)


def sums_backward(model, x):
    def body(total, x):
        return total * 0.5 + x, total + x

    return scan(body, torch.zeros(3), x, reverse=True)


class Controlled(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.function(self, x)


@pytest.mark.parametrize(
    "function",
    [
        branch,
        branch_in_a_loop,
        loop_without_iterations,
        exchange,
        sums,
        sums_backward,
    ],
)
def test_branches_and_loops_are_delegated_whole(function):
    x = torch.randn(4, 3).abs()
    lowered = check_whole(Controlled(function), x, error=1e-6)
    assert lowered.verify(-x).relative_error < 1e-6


@pytest.mark.parametrize("function", [branch_in_a_loop, sums])
def test_sizes_of_loops_may_vary(function):
    rows = ({0: torch.export.Dim("rows", min=2)},)
    model = Controlled(function)
    lowered = check_whole(model, torch.randn(4, 3), dynamic_shapes=(rows[0],))
    assert lowered.verify(torch.randn(7, 3)).relative_error < 1e-6


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.rand_like, "aten.rand_like.default in its body: it draws random"),
        (lambda x: torch.linalg.pinv(x), "in its body: torch.onnx has no rule"),
    ],
)
def test_a_branch_that_onnx_cannot_compute_stays_on_the_host(function, reason):
    x = torch.randn(3, 3)
    lowered = lower(
        lambda x: torch.cond(x.sum() > 0, function, lambda x: x + 1, (x,)), x
    )
    assert reason in str(lowered.report)


def test_equal_calls_with_other_bodies_are_tried_apart():
    double = lambda x: x * 2
    x = torch.randn(3, 3)

    def both(x):
        first = torch.cond(x.sum() > 0, double, lambda x: x + 1, (x,))
        return torch.cond(first.sum() > 0, double, torch.rand_like, (first,))

    lowered = lower(both, x)
    assert lowered.report.delegates
    assert "cond" in {r.operator for r in lowered.report.refusals}


# --- int8 ---------------------------------------------------------------------------


def test_products_of_int8_do_not_saturate():
    """Two products of the largest integers do not fit 16 bits."""
    quantized = torch.ops.quantized_decomposed
    ends = (-128, 127, torch.int8)
    weight = torch.full((4, 8, 1, 1), 127, dtype=torch.int8)
    weight[::2] = -127
    scales = torch.full((4,), 0.01)
    zeros = torch.zeros(4, dtype=torch.int64)

    def convolution(x):
        x = quantized.quantize_per_tensor(x, 0.02, -128, *ends)
        x = quantized.dequantize_per_tensor(x, 0.02, -128, *ends)
        w = quantized.dequantize_per_channel(
            weight, scales, zeros, 0, -127, 127, torch.int8
        )
        y = quantized.quantize_per_tensor(nn.functional.conv2d(x, w), 0.5, 0, *ends)
        return quantized.dequantize_per_tensor(y, 0.5, 0, *ends)

    x = torch.full((1, 8, 4, 4), 5.1)
    check_whole(convolution, x, error=0)


def check_quantized(model, *sizes, session=""):
    """Check that a quantized model is whole, and within a step of its program."""
    torch.manual_seed(0)
    batches = [(torch.randn(sizes),) for _ in range(4)]
    program = delegraph.quantize(model.eval(), batches, backend="onnx")
    options = {"onnx": {"session": session}}
    lowered = delegraph.lower(program, backends=["onnx"], options=options)
    assert lowered.host_operators == 0, lowered.report
    eager = program.module()
    for batch in batches:
        check_within_a_step(lowered(*batch), eager(*batch), program)
    return lowered, program


def check_within_a_step(result, expected, program):
    [last] = (
        n
        for n in program.graph.nodes
        if n.name == program.graph_signature.user_outputs[0]
    )
    step = last.args[1]
    assert (result - expected).abs().max() <= 1.001 * step


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


class Repeated(nn.Module):
    """A layer that is called three times."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.layer(x)) * 2
        return self.layer(x)


class Recurrent(nn.Module):
    """An LSTM, one step after another."""

    def __init__(self):
        super().__init__()
        self.of_input = nn.Linear(6, 32)
        self.of_state = nn.Linear(8, 32)

    def forward(self, steps):
        state = torch.zeros(2, 8)
        cell = torch.zeros(2, 8)
        for step in steps.unbind(1):
            gates = self.of_input(step) + self.of_state(state)
            opened, kept, shown = torch.sigmoid(gates[:, :24]).chunk(3, -1)
            cell = kept * cell + opened * torch.tanh(gates[:, 24:])
            state = shown * torch.tanh(cell)
        return state


SESSIONS = [
    "",
    "session.x64quantprecision=0",
    "session.x64quantprecision=1",
    "session.x64quantprecision=0,graph_optimization_level=extended",
    "graph_optimization_level=disable_all",
]


@pytest.mark.parametrize("session", SESSIONS)
def test_a_quantized_network_is_within_a_step_of_the_quantized_program(session):
    check_quantized(convolutions(), 1, 3, 16, 16, session=session)


@pytest.mark.parametrize("session", SESSIONS)
def test_calls_of_a_shared_quantized_layer_are_within_a_step(session):
    torch.manual_seed(0)
    check_quantized(Repeated(nn.Linear(16, 16)), 4, 16, session=session)
    check_quantized(Repeated(nn.Linear(16, 16)), 2, 3, 16, session=session)
    layer = nn.Conv2d(8, 8, 3, padding=1)
    check_quantized(Repeated(layer), 1, 8, 6, 6, session=session)


def test_a_quantized_recurrent_layer_is_within_a_step():
    torch.manual_seed(0)
    check_quantized(Recurrent(), 2, 4, 6)


def test_a_saved_int8_network_is_within_a_step_in_a_plain_session(tmp_path):
    import onnxruntime

    torch.manual_seed(0)
    lowered, program = check_quantized(convolutions(), 1, 3, 16, 16)
    lowered.save(tmp_path / "network.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx")
    x = torch.randn(1, 3, 16, 16)
    [result] = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    check_within_a_step(torch.from_numpy(result), program.module()(x), program)


QUANTIZED = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)


def test_integers_at_the_border_of_a_delegate_stay_int8():
    def function(x, integers):
        y = QUANTIZED.quantize_per_tensor(x, 0.5, 3, *INT8)
        z = QUANTIZED.dequantize_per_tensor(integers, 0.25, -7, *INT8)
        return y, QUANTIZED.dequantize_per_tensor(y, 0.5, 3, *INT8) + z

    integers = torch.tensor([-128, -1, 0, 127], dtype=torch.int8)
    x = torch.tensor([-900.0, 0.0, 1.0, 900.0])
    lowered = check_whole(function, x, integers, error=0)
    assert lowered(x, integers)[0].dtype is torch.int8


def test_quantization_to_a_part_of_int8_is_the_hosts():
    def function(x):
        x = QUANTIZED.quantize_per_tensor(x, 0.1, 0, -8, 7, torch.int8)
        return QUANTIZED.dequantize_per_tensor(x, 0.1, 0, -8, 7, torch.int8)

    x = torch.tensor([3.0, -3.0, 0.2])
    lowered = lower(function, x)
    assert lowered.verify(x).relative_error == 0
    assert "ignores the range -8 to 7" in str(lowered.report)


def test_a_bias_beyond_32_bits_divides_a_network():
    weight = torch.tensor([[3, -5], [100, 7]], dtype=torch.int8)

    def quantized(x, scale):
        x = QUANTIZED.quantize_per_tensor(x, scale, 0, *INT8)
        return QUANTIZED.dequantize_per_tensor(x, scale, 0, *INT8)

    def function(x):
        w = QUANTIZED.dequantize_per_tensor(weight, 1e-3, 0, *INT8)
        for scale, bias in ((0.1, 1.0), (1e-6, 40.0), (0.1, 1.0)):
            y = nn.functional.linear(quantized(x, scale), w, torch.full((2,), bias))
            x = quantized(y, 0.5).sin()
        return x

    lowered = lower(function, torch.ones(1, 2))
    assert lowered.verify(torch.ones(1, 2)).relative_error < 1e-5
    assert lowered.host_operators == 0 and len(lowered.delegates) == 2
    note = "EngineError: the bias does not fit 32 bits"
    assert note in str(lowered.report), lowered.report


def test_a_bias_of_int8_keeps_its_zero_point():
    weight = torch.tensor([[3, -5], [100, 7]], dtype=torch.int8)
    bias = torch.tensor([-128, 90], dtype=torch.int8)

    def function(x):
        x = QUANTIZED.quantize_per_tensor(x, 0.5, 0, *INT8)
        x = QUANTIZED.dequantize_per_tensor(x, 0.5, 0, *INT8)
        w = QUANTIZED.dequantize_per_tensor(weight, 0.01, 0, *INT8)
        b = QUANTIZED.dequantize_per_tensor(bias, 0.1, -128, *INT8)
        y = QUANTIZED.quantize_per_tensor(torch.addmm(b, x, w), 0.25, 3, *INT8)
        return QUANTIZED.dequantize_per_tensor(y, 0.25, 3, *INT8)

    check_whole(function, torch.tensor([[3.0, -4.5]]), error=0)


@pytest.mark.parametrize("scale", [None, 0.01])
def test_a_bias_beyond_32_bits_of_its_products_is_added_exactly(scale):
    weight = torch.tensor([[3, -5], [100, 7]], dtype=torch.int8)
    bias = torch.tensor([40.0, -30.0])
    ends = (-(2**31), 2**31 - 1, torch.int32)
    if scale is not None:
        bias = (bias / scale).int()

    def function(x):
        x = QUANTIZED.quantize_per_tensor(x.tanh(), 1e-6, 0, *INT8)
        x = QUANTIZED.dequantize_per_tensor(x, 1e-6, 0, *INT8)
        w = QUANTIZED.dequantize_per_tensor(weight, 1e-3, 0, *INT8)
        b = bias
        if scale is not None:
            b = QUANTIZED.dequantize_per_tensor(bias, scale, 0, *ends)
        y = nn.functional.linear(x, w, b)
        y = QUANTIZED.quantize_per_tensor(y, 0.5, 0, *INT8)
        return QUANTIZED.dequantize_per_tensor(y, 0.5, 0, *INT8)

    x = torch.tensor([[1e-5, -1e-4]])
    lowered = lower(function, x)
    assert lowered.verify(x).relative_error == 0
    assert "the bias does not fit 32 bits" in str(lowered.report)

"""``TOSARuntime`` runs .tosa files on torch tensors."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import delegraph
import numpy as np
import pytest
import torch
from delegraph.errors import FormatError, InputError, Unsupported
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Value, literal
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.runtime import TOSARuntime
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec

SPEC = TosaSpec.parse("TOSA-1.0+FP+INT")


def make_operator(cls, *operands, **attributes):
    operator = cls(operands, **attributes)
    operator.outputs = tuple(Value(t, producer=operator) for t in operator.infer())
    return operator


def load_graph(inputs, outputs, operators):
    return TOSARuntime.load(
        TosaFile(Graph(inputs, outputs, operators), SPEC).join(), [], {}
    )


@pytest.fixture
def layer():
    """Return a delegate with the outputs relu(conv(x) + bias) and x with channels first,
    and its weight and bias.
    """
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(5, 3, 3, 2, generator=generator)
    bias = torch.randn(5, generator=generator)
    x = Value(Type((1, 6, 7, 2), DType.FP32), name="x")
    zero = literal([0], DType.FP32, np.float32)
    weights = (
        literal(weight.numpy(), DType.FP32, np.float32),
        literal(bias.numpy(), DType.FP32, np.float32),
    )
    window = dict(pad=(1, 1, 1, 1), stride=(1, 1), dilation=(1, 1), acc_type=DType.FP32)
    conv = make_operator(ops.CONV2D, x, *weights, zero, zero, **window)
    relu = make_operator(ops.CLAMP, conv.outputs[0], min_val=0, max_val=float("inf"))
    turned = make_operator(ops.TRANSPOSE, x, perms=(0, 3, 1, 2))
    delegate = load_graph(
        [x], [relu.outputs[0], turned.outputs[0]], [conv, relu, turned]
    )
    return delegate, weight, bias


def test_convolution_in_the_runtime_equals_torch(layer):
    delegate, weight, bias = layer
    x = torch.randn(1, 6, 7, 2)
    result, turned = delegate(x)
    expected = torch.nn.functional.conv2d(
        x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), bias, padding=1
    ).relu()
    torch.testing.assert_close(result.permute(0, 3, 1, 2), expected)
    assert torch.equal(turned, x.permute(0, 3, 1, 2))
    assert turned.is_contiguous()


def test_inputs_may_have_any_strides_and_require_gradients(layer):
    delegate, *_ = layer
    x = torch.randn(7, 2, 1, 6).permute(2, 3, 0, 1).requires_grad_()
    for result, expected in zip(
        delegate(x), delegate(x.detach().contiguous()), strict=True
    ):
        assert torch.equal(result, expected)
        assert not result.requires_grad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "1 input is wanted, 0 were given"),
        ((torch.zeros(1, 6, 7, 2),) * 2, "1 input is wanted, 2 were given"),
        (
            (torch.zeros(1, 2, 6, 7),),
            (
                r"input 0 \(x\): float32 \[1, 6, 7, 2\] is wanted, float32 \[1, 2, 6,"
                r" 7\] was given"
            ),
        ),
        (
            (torch.zeros(1, 6, 7, 2, dtype=torch.float64),),
            r"wanted, float64 \[1, 6, 7, 2\] was given",
        ),
        (
            (torch.zeros(1, 6, 7, 2, dtype=torch.bfloat16),),
            r"wanted, bfloat16 \[1, 6, 7, 2\] was given",
        ),
        (
            (torch.zeros(1, 6, 7, 2, device="meta"),),
            "input 0 must be a tensor on the CPU; a tensor on meta was given",
        ),
        ((3.5,), r"input 0 must be a tensor on the CPU; 3\.5 was given"),
    ],
)
def test_wrong_inputs_are_refused(layer, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        layer[0](*arguments)
    assert caught.value.code == "input-invalid"


def test_outputs_have_new_memory():
    """Writing to an output must change neither the input, nor a constant of the next
    call, nor another output.
    """
    x = Value(Type((2, 3), DType.FP32))
    one = literal(np.ones((2, 3)), DType.FP32, np.float32)
    flat = make_operator(ops.RESHAPE, x, literal([6], DType.SHAPE, np.int64))
    constant = make_operator(ops.IDENTITY, one)
    total = make_operator(ops.ADD, x, one)
    same = make_operator(
        ops.RESHAPE, total.outputs[0], literal([3, 2], DType.SHAPE, np.int64)
    )
    operators = [flat, constant, total, same]
    delegate = load_graph([x], [op.outputs[0] for op in operators], operators)
    given = torch.arange(6.0).reshape(2, 3)
    expected = [given.flatten(), torch.ones(2, 3), given + 1, (given + 1).reshape(3, 2)]
    for _ in range(2):
        results = delegate(given)
        for result, value in zip(results, expected, strict=True):
            assert torch.equal(result, value)
            result.zero_()
    assert torch.equal(given, torch.arange(6.0).reshape(2, 3))


def test_reversed_and_rank_0_outputs():
    x = Value(Type((3,), DType.INT32))
    backwards = make_operator(ops.REVERSE, x, axis=0)
    total = make_operator(ops.REDUCE_SUM, x, axis=0)
    scalar = make_operator(
        ops.RESHAPE, total.outputs[0], literal([], DType.SHAPE, np.int64)
    )
    delegate = load_graph(
        [x], [backwards.outputs[0], scalar.outputs[0]], [backwards, total, scalar]
    )
    reverse, sum = delegate(torch.tensor([1, 2, 3], dtype=torch.int32))
    assert reverse.tolist() == [3, 2, 1]
    assert sum.item() == 6
    assert sum.shape == torch.Size([])
    assert sum.dtype == torch.int32


def test_an_axis_of_size_1_is_reversed():
    x = Value(Type((1, 2), DType.FP32))
    total = make_operator(ops.ADD, x, x)
    backwards = make_operator(ops.REVERSE, total.outputs[0], axis=0)
    (result,) = load_graph([x], [backwards.outputs[0]], [total, backwards])(
        torch.tensor([[1.0, 2.0]])
    )
    assert result.tolist() == [[2.0, 4.0]]


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.int8, torch.int16, torch.int32, torch.float16, torch.float32],
)
def test_every_element_type_passes_through_the_runtime(dtype):
    x = Value(
        Type(
            (2, 2),
            {torch.float16: DType.FP16, torch.float32: DType.FP32}.get(dtype)
            or _named(dtype),
        )
    )
    turned = make_operator(ops.TRANSPOSE, x, perms=(1, 0))
    given = torch.tensor([[0, 1], [2, 3]]).to(dtype)
    (result,) = load_graph([x], turned.outputs, [turned])(given)
    assert result.dtype is dtype
    assert torch.equal(result, given.T)


def _named(dtype):
    return DType[str(dtype).removeprefix("torch.").upper()]


def test_observed_values_are_numbered_as_in_the_file():
    """``debug_handle_map`` uses the same numbers, which count CONST operators, too."""
    x = Value(Type((2, 3), DType.FP32), name="x")
    one = literal([[1.0, 2.0, 3.0]], DType.FP32, np.float32)
    total = make_operator(ops.ADD, x, one)
    result = make_operator(ops.TANH, total.outputs[0])
    file = TosaFile(Graph([x], [result.outputs[0]], [total, result]), SPEC)
    given = torch.randn(2, 3)

    (output,), observed = TOSARuntime.observe(file.join(), [], {})(given)

    assert set(observed) == {file.numbers[total], file.numbers[result]}
    assert 0 not in observed  # the CONST
    (observed_total,) = observed[file.numbers[total]]
    (observed_result,) = observed[file.numbers[result]]
    assert torch.equal(observed_total, given + torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(observed_result, output)


def test_threads_share_a_delegate(layer):
    delegate, *_ = layer
    inputs = [torch.randn(1, 6, 7, 2) for _ in range(16)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(delegate, inputs))
    for x, results in zip(inputs, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(results, delegate(x), strict=True))


def test_damaged_blobs_are_refused():
    with pytest.raises(FormatError):
        TOSARuntime.load(b"not a tosa file", [], {})


def test_files_with_custom_operators_are_refused():
    x = Value(Type((2,), DType.FP32))
    custom = make_operator(
        ops.CUSTOM,
        x,
        operator_name="f",
        domain_name="d",
        implementation_attrs=b"",
        types=(x.type,),
    )
    with pytest.raises(Unsupported, match="does not compute CUSTOM"):
        load_graph([x], custom.outputs, [custom])


A = torch.ones(2, 3)
B = torch.full((2, 3), 3.0)


@pytest.fixture
def subtraction_file(tmp_path):
    """A file that subtracts its input ``the.y`` from its input ``x``."""
    x = Value(Type((2, 3), DType.FP32), name="x")
    y = Value(Type((2, 3), DType.FP32), name="the.y")
    operator = make_operator(ops.SUB, x, y)
    operator.outputs[0].name = "difference"
    file = tmp_path / "sub.tosa"
    file.write_bytes(
        TosaFile(Graph([x, y], operator.outputs, [operator]), TosaSpec()).join()
    )
    return file


def test_loaded_files_take_inputs_by_position_or_name(subtraction_file):
    loaded = delegraph.load(subtraction_file)

    for (result,) in (
        loaded(A, B),
        loaded(A, **{"the.y": B}),
        loaded(**{"the.y": B}, x=A),
    ):
        assert torch.equal(result, A - B)


def test_loaded_files_have_a_summary(subtraction_file):
    loaded = delegraph.load(subtraction_file)

    assert repr(loaded) == "<LoadedProgram sub.tosa: forward>"
    (method,) = loaded.summary.methods
    assert [value.name for value in method.inputs] == ["x", "the.y"]
    assert [value.name for value in method.outputs] == ["difference"]


def test_threads_share_a_loaded_file(subtraction_file):
    loaded = delegraph.load(subtraction_file)

    with ThreadPoolExecutor(4) as executor:
        results = list(executor.map(lambda _: loaded(A, B), range(40)))

    assert all(torch.equal(result, A - B) for (result,) in results)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((A,), {"z": B}, "the input 'z' is none of the file's; inputs: x, the.y"),
        ((A,), {"x": B}, "the input 'x' is given twice"),
        ((), {"x": A}, "the input 'the.y' is missing"),
        ((A,), {}, "2 inputs are wanted, 1 were given"),
        (
            (A, B.numpy()),
            {},
            "input 1 must be a tensor on the CPU; a ndarray was given",
        ),
    ],
    ids=["unknown", "repeated", "missing", "too few", "no tensor"],
)
def test_loaded_files_refuse_wrong_inputs(subtraction_file, args, kwargs, text):
    loaded = delegraph.load(subtraction_file)

    with pytest.raises(InputError, match=re.escape(text)):
        loaded(*args, **kwargs)


def test_truncated_files_are_not_loaded(subtraction_file):
    file = subtraction_file
    file.write_bytes(file.read_bytes()[:-8])

    with pytest.raises(FormatError, match="damaged TOSA file"):
        delegraph.load(file)

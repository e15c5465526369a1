"""Programs on float8_e4m3fn and float8_e5m2 become one delegate with the results of eager
torch, and files that the reference tools accept.
"""

from __future__ import annotations

import delegraph
import numpy as np
import pytest
import torch
from delegraph_tosa.runtime import TOSARuntime
from delegraph_tosa.serialize import read
from delegraph_tosa.spec import TosaSpec
from torch.nn import functional as F

from ..support import reference_tools
from ..support.rule_cases import Function

E4 = torch.float8_e4m3fn
E5 = torch.float8_e5m2
TYPES = pytest.mark.parametrize("dtype", [E4, E5], ids=["e4m3", "e5m2"])
SPEC = "TOSA-1.0+FP+INT+bf16+fp8e4m3+fp8e5m2"
_TINY = (
    0.0,
    -0.0,
    1e-9,
    2.0**-9,
    2.0**-10,
    3 * 2.0**-10,
    2.0**-16,
    2.0**-17,
    0.1,
    -0.3,
    17.0,
    19.0,
    447.0,
    448.0,
)
_LARGE = (
    460.0,
    464.0,
    465.0,
    480.0,
    -1000.0,
    57344.0,
    61439.0,
    61440.0,
    -1e6,
    1e30,
    torch.inf,
    -torch.inf,
    torch.nan,
)
NUMBERS = torch.tensor([*_TINY, *_LARGE])
"""Rounding ties, subnormal numbers, numbers beyond the largest, infinities and NaN."""


def all_elements_of(dtype):
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def lower(function, *inputs, spec=SPEC):
    program = torch.export.export(Function(function), inputs)
    return delegraph.lower(program, backends=["tosa"], options={"tosa": {"spec": spec}})


def operator_names(program):
    (delegate,) = program.delegates
    return [
        operator.name for operator in read(bytes(delegate.processed_bytes)).operators
    ]


def assert_equal_bits(found, wanted):
    """Compare types and elements, and signs of zeros; every NaN equals every other."""
    assert found.dtype is wanted.dtype
    assert found.shape == wanted.shape
    found = found.double()
    wanted = wanted.double()
    same = (found == wanted) & (
        found.signbit() == wanted.signbit()
    ) | found.isnan() & wanted.isnan()
    assert same.all(), (found[~same], wanted[~same])


def assert_lowers_as_eager(function, *inputs):
    """Check that a function becomes one legal delegate that equals eager, and return the
    names of its operators.
    """
    program = lower(function, *inputs)
    assert not [
        node
        for node in program.exported_program().graph.nodes
        if node.op == "call_function" and "aten" in str(node)
    ]
    assert_equal_bits(program(*inputs), function(*inputs))
    (delegate,) = program.delegates
    reference_tools.check_strictly_for_spec(
        bytes(delegate.processed_bytes), TosaSpec.parse(SPEC)
    )
    return operator_names(program)


FLOATS = pytest.mark.parametrize(
    "other", [torch.float32, torch.float16, torch.bfloat16], ids=str
)


@TYPES
@FLOATS
def test_casts_to_float8_equal_eager(dtype, other):
    operators = assert_lowers_as_eager(lambda x: x.to(dtype), NUMBERS.to(other))

    # The specification leaves open how CAST to e4m3 converts numbers that are too large.
    assert operators == (["CLAMP", "CAST"] if dtype is E4 else ["CAST"])


@TYPES
@FLOATS
def test_casts_from_float8_equal_eager(dtype, other):
    operators = assert_lowers_as_eager(lambda x: x.to(other), all_elements_of(dtype))

    assert operators == ["CAST"]


@pytest.mark.parametrize(("dtype", "other"), [(E4, E5), (E5, E4)])
def test_casts_between_float8_types_equal_eager(dtype, other):
    assert_lowers_as_eager(lambda x: x.to(other), all_elements_of(dtype))


@TYPES
def test_casts_from_float8_to_bool_equal_eager(dtype):
    assert_lowers_as_eager(lambda x: x.to(torch.bool), all_elements_of(dtype))


@TYPES
def test_casts_from_integers_to_float8_equal_eager(dtype):
    integers = torch.arange(-600, 600, 7, dtype=torch.int32)

    assert_lowers_as_eager(lambda x: x.to(dtype), integers)


@TYPES
def test_casts_from_bool_to_float8_equal_eager(dtype):
    assert_lowers_as_eager(lambda x: x.to(dtype), torch.tensor([True, False]))


def finite_elements_of(dtype):
    return torch.linspace(-448, 448, 57).to(dtype)


@TYPES
def test_casts_from_float8_to_integers_equal_eager(dtype):
    assert_lowers_as_eager(lambda x: x.to(torch.int32), finite_elements_of(dtype))


@TYPES
def test_type_as_and_copy_of_float8_equal_eager(dtype):
    finite = finite_elements_of(dtype)

    assert_lowers_as_eager(lambda x, y: x.type_as(y), torch.linspace(-9, 9, 7), finite)
    assert_lowers_as_eager(torch.ops.aten.copy.default, torch.zeros(57), finite)


# Name -> function, and the operators that it becomes (None if any will do).
MOVES = {
    "view": (lambda x: x.view(8, 36).t(), ["RESHAPE", "TRANSPOSE"]),
    "permute": (lambda x: x[:, 1:3].permute(0, 2, 3, 1), ["SLICE", "TRANSPOSE"]),
    "cat": (lambda x: torch.cat([x, x.flip(2)]), ["REVERSE", "CONCAT"]),
    "stack": (lambda x: torch.stack([x, x]), None),
    "repeat": (lambda x: x.repeat(1, 2, 1, 1), ["TILE"]),
    "roll": (lambda x: x.roll(1, 1), None),
    "expand": (lambda x: x[:1].expand(3, 4, 6, 6), None),
    "pad": (lambda x: F.pad(x, (1, 1), value=1.6), ["PAD"]),
    "index_select": (lambda x: x.index_select(1, torch.tensor([0, 3, 3])), None),
    "index": (lambda x: x[:, torch.tensor([2, -1])], None),
    "index_put": (lambda x: x.index_put((torch.tensor([1, 0]),), x[:1]), None),
    "embedding": (lambda x: F.embedding(torch.tensor([[0, 5]]), x[0, 0]), None),
    "as_strided": (lambda x: x.as_strided((2, 3), (1, 2)), None),
    "full": (
        lambda x: torch.cat([x, torch.full((2, 4, 1, 6), 1.3, dtype=x.dtype)], 2),
        ["CONCAT"],
    ),
    "full, too large": (
        lambda x: torch.cat([x.flatten(), torch.full((1,), 1e6, dtype=x.dtype)]),
        None,
    ),
    "zeros_like": (lambda x: torch.cat([x, torch.zeros_like(x)]), ["CONCAT"]),
}


@pytest.mark.parametrize("case", MOVES)
@TYPES
def test_data_movement_never_leaves_float8(dtype, case):
    function, expected = MOVES[case]
    elements = all_elements_of(dtype)
    x = torch.cat([elements, elements[:32]]).reshape(2, 4, 6, 6)

    operators = assert_lowers_as_eager(function, x)

    assert {"CAST", "CLAMP", "SELECT"}.isdisjoint(operators)
    if expected is not None:
        assert operators == expected


COMPUTED = {
    "mul": lambda x: x * x.roll(3),
    "abs": lambda x: x[1:128].abs(),
    "isnan": lambda x: x.isnan(),
    "eq": lambda x: x == x.roll(1),
    "where": lambda x: torch.where(x.isnan(), x.roll(1), x),
    "mm": lambda x: torch.mm(x[:64].view(8, 8), x[64:128].view(8, 8)),
    "constant": lambda x: torch.cat(
        [x, all_elements_of(x.dtype) * all_elements_of(x.dtype)]
    ),
}


@pytest.mark.parametrize("case", COMPUTED)
@TYPES
def test_arithmetic_on_float8_equals_eager(dtype, case):
    x = all_elements_of(dtype)
    if case == "mm":
        x = torch.linspace(-3, 3, 256).to(dtype)
    assert_lowers_as_eager(COMPUTED[case], x)


@TYPES
def test_reference_model_computes_float8_as_eager(dtype):
    """The model takes no fp8 arrays, so the program begins and ends in fp32."""

    def program(x, y):
        x = x.to(dtype)
        y = y.to(dtype)
        both = torch.cat([x.view(3, 9), (x * y).view(3, 9).roll(1, 1)])
        return F.pad(both[torch.tensor([5, 0, 2])], (1, 0), value=0.3).float()

    inputs = (NUMBERS, NUMBERS.roll(5))
    (delegate,) = lower(program, *inputs).delegates
    file = bytes(delegate.processed_bytes)
    reference_tools.check_strictly_for_spec(file, TosaSpec.parse(SPEC))

    (result,) = reference_tools.run_reference_model(file, [x.numpy() for x in inputs])

    assert_equal_bits(torch.from_numpy(result), program(*inputs))


def scaled_product(scale_a, scale_b, out, bias=None, fast=False):
    """Return a function that calls ``torch._scaled_mm`` with these arguments."""

    def function(x, w):
        given = torch.tensor(scale_a), torch.tensor(scale_b)
        return torch._scaled_mm(
            x, w.t(), *given, bias, out_dtype=out, use_fast_accum=fast
        )

    return function


def random_operands(left=E4, right=E4):
    torch.manual_seed(0)
    return torch.randn(16, 32).to(left), torch.randn(24, 32).to(right)


@pytest.mark.parametrize(
    "out", [None, torch.float32, torch.float16, torch.bfloat16], ids=str
)
@pytest.mark.parametrize(
    "scales",
    [(0.3, 0.7), (1.0, 1.0), ([[0.5]] * 16, [[0.25] * 24])],
    ids=["of tensors", "1", "of rows"],
)
@pytest.mark.parametrize("left", [E4, E5], ids=["e4m3", "e5m2"])
def test_scaled_products_equal_eager(scales, out, left):
    operands = random_operands(left)
    function = scaled_product(*scales, out, bias=torch.linspace(-1, 1, 24))

    program = lower(function, *operands)

    result = program(*operands)
    expected = function(*operands)
    assert result.dtype is expected.dtype
    # Sums in another order may round to the next number of the result's type.
    one_step = torch.finfo(expected.dtype).eps
    assert torch.allclose(result.float(), expected.float(), rtol=one_step, atol=1e-6)
    multiplications = 0 if scales == (1.0, 1.0) else 2
    assert operator_names(program).count("MUL") == multiplications
    (delegate,) = program.delegates
    reference_tools.check_strictly_for_spec(
        bytes(delegate.processed_bytes), TosaSpec.parse(SPEC)
    )


def test_sums_of_large_products_do_not_overflow():
    """TOSA's own product of fp8 sums in fp16, which would overflow."""
    x = torch.full((2, 64), 448.0).to(E4)
    w = torch.full((3, 64), 448.0).to(E4)
    function = scaled_product(2.0**-10, 2.0**-10, torch.float16)
    lowered = lower(function, x, w)(x, w)
    assert torch.equal(lowered, function(x, w))
    assert lowered.isfinite().all()


FAST_PRODUCT = scaled_product(1.0, 1.0, torch.float16, fast=True)


def test_fast_products_multiply_float8_without_casts():
    operators = assert_lowers_as_eager(FAST_PRODUCT, *random_operands())

    assert "CAST" not in operators


def test_reference_model_computes_fast_products_of_float8():
    """The model takes no fp8 arrays, so the program begins in fp32."""
    x, w = (operand.float() for operand in random_operands())
    program = lower(lambda x, w: FAST_PRODUCT(x.to(E4), w.to(E4)), x, w)
    (delegate,) = program.delegates

    (result,) = reference_tools.run_reference_model(
        bytes(delegate.processed_bytes), [x.numpy(), w.numpy()]
    )

    # Each of 32 sums rounds to fp16.
    assert np.abs(result - (x @ w.t()).numpy()).max() < 32 * 2.0**-10


@pytest.mark.parametrize(
    ("out", "left", "scale", "bias"),
    [
        (torch.bfloat16, E4, 1.0, None),
        (torch.float16, E5, 1.0, None),
        (torch.float16, E4, 0.5, None),
        (torch.float16, E4, 1.0, torch.ones(24)),
    ],
    ids=["result of bf16", "mixed operands", "scale", "bias"],
)
def test_fast_products_that_tosa_lacks_compute_in_fp32(out, left, scale, bias):
    function = scaled_product(1.0, scale, out, bias, fast=True)

    lowered = lower(function, *random_operands(left))

    assert "CAST" in operator_names(lowered)


class Layer(torch.nn.Module):
    """A linear layer with weights of fp8, as they are kept for inference."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(
            torch.randn(64, 256).mul(50).to(E4), requires_grad=False
        )

    def forward(self, x):
        rounded = (x * 16).clamp(-448, 448).to(E4)
        return torch._scaled_mm(
            rounded, self.weight.t(), torch.tensor(1 / 16), torch.tensor(0.02)
        )


def test_weights_of_float8_are_stored_in_8_bits():
    torch.manual_seed(0)
    layer = Layer()
    x = torch.randn(5, 256)

    program = lower(lambda x: layer(x).float(), x)

    (delegate,) = program.delegates
    weight_bytes = 64 * 256
    assert weight_bytes < len(bytes(delegate.processed_bytes)) < weight_bytes + 4096
    assert torch.allclose(program(x), layer(x).float(), rtol=2.0**-3, atol=2.0**-9)


def test_products_with_a_scale_of_the_result_run_on_the_host():
    x, w = random_operands()
    one = torch.tensor(1.0)

    def function(x, w):
        return torch._scaled_mm(
            x, w, one, one, scale_result=torch.tensor(2.0), out_dtype=E4
        )

    program = lower(function, x, w.t())

    assert not program.delegates
    assert "scales of results" in str(program.report)
    assert_equal_bits(program(x, w.t()), function(x, w.t()))


def test_report_names_the_missing_float8_extension():
    program = lower(lambda x: x.to(E4).float(), NUMBERS, spec="TOSA-1.0+FP")
    assert "TOSA-1.0+FP+fp8e4m3" in str(program.report)
    assert_equal_bits(program(NUMBERS), NUMBERS.to(E4).float())


@pytest.mark.parametrize(
    "wrong", [torch.zeros(3).to(E5), torch.zeros(3).byte(), torch.zeros(3)], ids=str
)
def test_delegates_refuse_inputs_of_other_types(wrong):
    x = torch.zeros(3).to(E4)
    program = lower(lambda x: x.float(), x)
    (delegate,) = program.delegates
    run = TOSARuntime.load(bytes(delegate.processed_bytes), (), {})
    assert torch.equal(run(x)[0], torch.zeros(3))

    with pytest.raises(delegraph.errors.InputError, match="float8_e4m3fn"):
        run(wrong)


def test_returned_views_do_not_share_memory_of_inputs():
    x = all_elements_of(E4).reshape(16, 16)
    program = lower(lambda x: (x.t(), x), x.t())
    transposed, same = program(x.t())
    assert_equal_bits(transposed, x)
    assert_equal_bits(same, x.t())

    transposed.view(torch.uint8).zero_()

    assert_equal_bits(x, all_elements_of(E4).reshape(16, 16))

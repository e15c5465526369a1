"""``Signature`` checks arguments and results of a delegate, and files of an engine.

Many engines read memory of a wrong type or size without an error.
"""

import json

import numpy as np
import pytest
import torch
from delegraph.errors import FormatError, InputError
from delegraph.runtime import Border
from delegraph_engines import Signature, seal, unseal
from torch._subclasses import FakeTensorMode
from torch.export import Dim


class SeveralTypes(torch.nn.Module):
    def forward(self, x, bfloats, flags):
        return x.sum(), bfloats * 2, flags.any(), x.shape[0]


X = torch.randn(3, 4)
BFLOATS = torch.ones(2, dtype=torch.bfloat16)
FLAGS = torch.ones(0, 5, dtype=torch.bool)


@pytest.fixture(scope="module")
def signature():
    """The signature of ``SeveralTypes``, stored as JSON and read again."""
    exported = torch.export.export(
        SeveralTypes(),
        (X, BFLOATS, FLAGS),
        dynamic_shapes=({0: Dim("n", max=9)}, None, None),
    )
    stored = json.dumps(Signature.of(exported).json_form)
    return Signature.from_json(json.loads(stored))


def test_signatures_keep_types_and_varying_sizes(signature):
    assert signature.inputs == (
        ("float32", (-1, 4)),
        ("bfloat16", (2,)),
        ("bool", (0, 5)),
    )
    assert signature.outputs == (
        ("float32", ()),
        ("bfloat16", (2,)),
        ("bool", ()),
        ("int", ()),
    )


def test_arguments_become_arrays_in_c_order(signature):
    transposed = torch.randn(4, 7).t()
    expanded = torch.full((1,), 1.5, dtype=torch.bfloat16).expand(2)

    arrays = signature.arrays((transposed, expanded, FLAGS))

    # NumPy has no bfloat16: its bits are passed as int16
    assert [a.dtype.name for a in arrays] == ["float32", "int16", "bool"]
    assert all(a.flags.c_contiguous for a in arrays)
    assert np.array_equal(arrays[0], transposed.numpy())


def test_lazily_negated_arguments_become_negated_arrays(signature):
    negative = torch._neg_view(torch.ones(3, 4))

    array = signature.arrays((negative, BFLOATS, FLAGS))[0]

    assert (array == -1).all()


def test_arguments_that_require_gradients_become_arrays(signature):
    x = torch.ones(2, 4, requires_grad=True)

    array = signature.arrays((x, BFLOATS, FLAGS))[0]

    assert array.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1]]


def test_strided_negated_arguments_become_plain_tensors():
    signature = Signature((("float32", (-1, 4)),), ())
    negative = torch._neg_view(torch.arange(8.0).reshape(4, 2)).t()

    [tensor] = signature.tensors([negative])

    assert tensor.is_contiguous()
    assert not tensor.is_neg()
    assert torch.equal(tensor, negative)


def test_plain_arguments_are_not_copied():
    signature = Signature((("bfloat16", (2,)),), ())
    bfloats = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)

    [tensor] = signature.tensors([bfloats])

    assert tensor.data_ptr() == bfloats.data_ptr()


@pytest.mark.parametrize(
    ("type_name", "number", "dtype"),
    [("int", 3, torch.int64), ("float", 0.1, torch.float64)],
)
def test_numbers_become_tensors_without_loss(type_name, number, dtype):
    [tensor] = Signature(((type_name, ()),), ()).tensors([number])

    assert tensor.dtype == dtype
    assert tensor.item() == number


def test_a_bool_is_refused_as_an_int():
    with pytest.raises(InputError, match="input 0 .* is True"):
        Signature((("int", ()),), ()).tensors([True])


@pytest.mark.parametrize(
    "wrong",
    [
        torch.ones(3, 5),
        torch.ones(4),
        torch.ones(3, 4).double(),
        torch.ones(3, 4, device="meta"),
        torch.ones(3, 4).to_sparse(),
        FakeTensorMode().from_tensor(torch.ones(3, 4)),
        1.0,
        None,
    ],
    ids=["size", "rank", "dtype", "meta", "sparse", "fake", "number", "None"],
)
def test_an_argument_of_another_type_is_refused(signature, wrong):
    with pytest.raises(InputError, match="input 0 .* compiled for float32"):
        signature.arrays((wrong, BFLOATS, FLAGS))


def test_a_missing_argument_is_refused(signature):
    with pytest.raises(InputError, match="takes 3 inputs; 2 were given"):
        signature.arrays((X, BFLOATS))


BFLOAT_BITS = np.array([0x3FC0, -0x4040], np.int16)
"""The bits of 1.5 and -1.5 as bfloat16."""


def test_results_have_the_declared_types(signature):
    total, bfloats, flag, count = signature.results(
        [np.float32(2.5).reshape(()), BFLOAT_BITS, np.uint8([1]), np.int64([3])]
    )

    assert total.item() == 2.5
    assert total.shape == ()
    assert bfloats.tolist() == [1.5, -1.5]
    assert flag.item() is True
    assert flag.shape == ()
    assert type(count) is int
    assert count == 3


def test_results_do_not_share_memory_with_the_engine():
    signature = Signature((), (("bfloat16", (2,)),))
    reused_buffer = BFLOAT_BITS.copy()
    [bfloats] = signature.results([reused_buffer])

    reused_buffer[0] = 0

    assert bfloats.tolist() == [1.5, -1.5]


@pytest.mark.parametrize(
    "wrong", [np.zeros(3, np.int16), np.zeros(2, np.int8)], ids=["size", "dtype"]
)
def test_a_result_of_another_type_is_refused(signature, wrong):
    results = [np.float32([0]), wrong, np.uint8([1]), np.int64([3])]

    with pytest.raises(FormatError, match="the signature of the blob has bfloat16"):
        signature.results(results)


@pytest.mark.parametrize(
    "data",
    [
        7,
        [],
        [[["load", [1]]], []],
        [[["float32", [-2]]], []],
        [[["int", 3]], []],
        [[3], []],
    ],
    ids=["number", "empty", "dtype", "negative size", "no shape", "no type"],
)
def test_forged_signatures_are_refused(data):
    with pytest.raises(FormatError):
        Signature.from_json(data)


def test_a_sealed_file_is_unsealed_with_its_facts(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"engine's own")

    file, facts = unseal(seal(path, b"acme-1", {"a": [1]}), b"acme-1")

    assert bytes(file) == b"engine's own"
    assert facts == {"a": [1]}


def test_damaged_sealed_files_are_refused(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"engine's own")
    blob = seal(path, b"acme-1", {"a": [1]})

    for place in range(len(blob)):
        cut_off = blob[:place]
        one_bit_flipped = blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :]
        for damaged in (cut_off, one_bit_flipped):
            with pytest.raises(FormatError):
                unseal(damaged, b"acme-1")


def test_a_file_is_sealed_with_its_signature_and_facts(signature, tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(b"engine's own")

    blob = signature.seal(path, b"acme-1", target="x")
    unsealed = Signature.unseal(blob, b"acme-1")

    file, unsealed_signature, facts = unsealed
    assert bytes(file) == b"engine's own"
    assert unsealed_signature == signature
    assert facts == {"target": "x"}


@pytest.mark.parametrize(
    "data",
    [7, [], ["no facts", [], []], [{}], [{}, 3, 4]],
    ids=["number", "empty", "no facts", "no types", "no lists of types"],
)
def test_a_sealed_file_without_a_signature_is_refused(tmp_path, data):
    path = tmp_path / "model.bin"
    path.write_bytes(b"engine's own")
    blob = seal(path, b"acme-1", data)

    with pytest.raises(FormatError):
        Signature.unseal(blob, b"acme-1")


ENGINE_INPUTS = [("float32", (3, 4)), None, ("bool", None)]
"""Types in an engine's file: it left out an input, and does not know a shape."""
ENGINE_OUTPUTS = [("float32", ()), ("bfloat16", (-1,)), ("bool", ()), ("int64", ())]


def test_engine_types_may_be_unknown_in_part(signature):
    assert signature.why_mismatch(ENGINE_INPUTS, iter(ENGINE_OUTPUTS)) is None


def test_another_number_of_engine_inputs_is_a_mismatch(signature):
    assert (
        signature.why_mismatch(ENGINE_INPUTS[:2], ENGINE_OUTPUTS)
        == "the engine's model takes 2 values; the delegate's signature has 3"
    )


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("float32", (2, 3, 4)),
        ("float32", (3, 5)),
        ("float16", (3, 4)),
        (None, (3, 4)),
    ],
)
def test_an_engine_input_of_another_type_is_a_mismatch(signature, dtype, shape):
    inputs = [(dtype, shape), *ENGINE_INPUTS[1:]]

    assert signature.why_mismatch(inputs, ENGINE_OUTPUTS) == (
        f"the engine's model takes {dtype} {shape} at position 0; the"
        " delegate's signature has float32 (-1, 4)"
    )


def test_an_engine_output_of_another_type_is_a_mismatch(signature):
    outputs = [*ENGINE_OUTPUTS[:3], ("float64", ())]

    assert signature.why_mismatch(ENGINE_INPUTS, outputs) == (
        "the engine's model returns float64 () at position 3; the delegate's signature"
        " has int ()"
    )


INTEGERS = Signature((("int64", (-1,)), ("int", ())), ())
EXTREMES_OF_32_BITS = torch.tensor([2**31 - 1, -(2**31)])


def test_int64_values_that_fit_32_bits_are_accepted():
    array, _ = INTEGERS.arrays((EXTREMES_OF_32_BITS, 3), int64_bits=32)

    assert array.tolist() == [2**31 - 1, -(2**31)]


def test_tensors_without_values_fit_32_bits():
    empty = torch.ones(0, dtype=torch.int64)

    assert INTEGERS.arrays((empty, 3), int64_bits=32)[0].size == 0


@pytest.mark.parametrize("bad", [2**31, -(2**31) - 1])
def test_int64_values_beyond_32_bits_are_refused(bad):
    for args in ((torch.tensor([0, bad]), 3), (EXTREMES_OF_32_BITS, bad)):
        with pytest.raises(InputError, match=f"32 bits.*{bad}"):
            INTEGERS.arrays(args, int64_bits=32)
        INTEGERS.arrays(args)  # an engine with 64 bits takes them


INPUT = Border("input", 0)
OUTPUTS = [Border("output", 0), Border("output", 1)]


@pytest.fixture
def timed_signature():
    """A timed signature, and the seconds by border that it fills in."""
    return Signature(
        inputs=(("float32", (2,)),), outputs=(("float32", (2,)), ("int", ()))
    ).timed()


def test_a_timed_signature_measures_inputs_and_outputs(timed_signature):
    timed, seconds = timed_signature
    assert seconds.keys() == {INPUT, *OUTPUTS}

    [array] = timed.arrays([torch.ones(2)])
    assert seconds[INPUT] > 0
    assert seconds[OUTPUTS[0]] == 0

    timed.results(iter([array, np.array(3)]))
    assert all(seconds.values())


def test_a_timed_signature_adds_up_the_times_of_its_calls(timed_signature):
    timed, seconds = timed_signature
    [array] = timed.arrays([torch.ones(2)])
    timed.results([array, np.array(3)])
    before = dict(seconds)

    timed.results([array, np.array(3)])

    assert seconds[OUTPUTS[0]] > before[OUTPUTS[0]]
    assert seconds[INPUT] == before[INPUT]


def test_a_timed_signature_returns_the_results_of_a_plain_one(timed_signature):
    timed, _ = timed_signature
    [array] = timed.arrays([torch.ones(2)])

    tensor, number = timed.results(iter([array, np.array(3)]))

    assert tensor.tolist() == [1, 1]
    assert number == 3


def test_a_timed_signature_does_not_time_several_inputs():
    """The time of a call cannot be assigned to one of them."""
    timed, seconds = Signature((("float32", (2,)), ("float32", (2,))), ()).timed()

    timed.arrays([torch.ones(2), torch.ones(2)])

    assert seconds == {}


def test_a_timed_signature_refuses_wrong_arguments_and_results(timed_signature):
    timed, _ = timed_signature

    with pytest.raises(InputError):
        timed.arrays([torch.ones(3)])
    with pytest.raises(ValueError, match="zip"):
        timed.results([np.ones(2, np.float32)])

"""Signatures and sealed blobs, for engines that do not check their arguments and files."""

import json

import numpy as np
import pytest
import torch
from delegraph.errors import FormatError, InputError
from delegraph.runtime import Border
from delegraph_engines import Signature, seal, unseal
from torch._subclasses import FakeTensorMode
from torch.export import Dim


class Several(torch.nn.Module):
    def forward(self, x, short, flags):
        return x.sum(), short * 2, flags.any(), x.shape[0]


GIVEN = (
    torch.randn(3, 4),
    torch.ones(2, dtype=torch.bfloat16),
    torch.ones(0, 5, dtype=torch.bool),
)


@pytest.fixture(scope="module")
def signature():
    exported = torch.export.export(
        Several(), GIVEN, dynamic_shapes=({0: Dim("n", max=9)}, None, None)
    )
    return Signature.from_json(json.loads(json.dumps(Signature.of(exported).json_form)))


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
    x = torch.randn(4, 7).t()[:, :]
    arrays = signature.arrays(
        (x, torch.full((1,), 1.5, dtype=torch.bfloat16).expand(2), GIVEN[2])
    )
    assert [a.dtype.name for a in arrays] == ["float32", "int16", "bool"]
    assert all(a.flags.c_contiguous for a in arrays)
    assert np.array_equal(arrays[0], x.numpy())
    negative = torch._neg_view(torch.ones(3, 4))  # torch marks it as negated
    assert (signature.arrays((negative, *GIVEN[1:]))[0] == -1).all()
    assert (
        signature.arrays((torch.ones(2, 4, requires_grad=True), *GIVEN[1:]))[0].sum()
        == 8
    )


def test_arguments_become_tensors_in_c_order():
    types = [["float32", [-1, 4]], ["bfloat16", [2]], ["int", []], ["float", []]]
    signature = Signature.from_json([types, []])
    negative = torch._neg_view(torch.arange(8.0).reshape(4, 2)).t()
    short = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    matrix, same, whole, real = signature.tensors([negative, short, 3, 0.1])
    assert matrix.is_contiguous()
    assert not matrix.is_neg()
    assert torch.equal(matrix, negative)
    assert same.data_ptr() == short.data_ptr()
    assert whole.dtype == torch.int64
    assert real.dtype == torch.float64
    assert whole.item() == 3
    assert real.item() == 0.1
    with pytest.raises(InputError, match="input 2 .* is True"):
        signature.tensors([negative, short, True, 0.1])


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
)
def test_an_argument_of_another_type_is_an_input_error(signature, wrong):
    with pytest.raises(InputError, match="input 0 .* compiled for float32"):
        signature.arrays((wrong, *GIVEN[1:]))
    with pytest.raises(InputError, match="takes 3 inputs; 2 were given"):
        signature.arrays(GIVEN[:2])


def test_results_have_the_declared_types_and_new_memory(signature):
    bits = np.array([0x3FC0, -0x4040], np.int16)
    total, short, flag, count = signature.results(
        [np.float32(2.5).reshape(()), bits, np.uint8([1]), np.int64([3])]
    )
    assert (total.item(), flag.item(), count, type(count)) == (
        2.5,
        True,
        3,
        int,
    )
    assert total.shape == flag.shape == ()
    assert short.tolist() == [1.5, -1.5]
    bits[0] = 0
    assert short[0] == 1.5
    for wrong in (np.zeros(3, np.int16), np.zeros(2, np.int8)):
        with pytest.raises(FormatError, match="the signature of the blob has bfloat16"):
            signature.results([np.float32([0]), wrong, np.uint8([1]), np.int64([3])])


SIDES = ([["load", [1]]], [["float32", [-2]]], [["int", 3]], [3])


@pytest.mark.parametrize("data", [7, [], *([side, []] for side in SIDES)])
def test_forged_signatures_are_a_format_error(data):
    with pytest.raises(FormatError):
        Signature.from_json(data)


def test_a_sealed_file_is_opened_whole_or_not_at_all(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"engine's own")
    blob = seal(path, b"acme-1", {"a": [1]})
    assert bytes(unseal(blob, b"acme-1")[0]) == b"engine's own"
    assert unseal(blob, b"acme-1")[1] == {"a": [1]}
    for place in range(len(blob)):
        for damaged in (
            blob[:place],
            blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :],
        ):
            with pytest.raises(FormatError):
                unseal(damaged, b"acme-1")


def test_a_file_is_sealed_with_its_signature_and_facts(signature, tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"engine's own")
    file, read, facts = Signature.unseal(
        signature.seal(path, b"acme-1", target="x"), b"acme-1"
    )
    assert bytes(file) == b"engine's own"
    assert read == signature
    assert facts == {"target": "x"}
    for data in (7, [], ["x", *signature.json_form], [{}], [{}, 3, 4]):
        path.write_bytes(b"engine's own")
        with pytest.raises(FormatError):
            Signature.unseal(seal(path, b"acme-1", data), b"acme-1")


def test_engine_inputs_and_outputs_must_match_known_types(signature):
    inputs = [("float32", (3, 4)), None, ("bool", None)]
    outputs = [("float32", ()), ("bfloat16", (-1,)), ("bool", ()), ("int64", ())]
    assert signature.why_mismatch(inputs, iter(outputs)) is None
    assert (
        signature.why_mismatch(inputs[:2], outputs)
        == "the engine's model takes 2 values; the delegate's signature has 3"
    )
    for wrong in (
        ("float32", (2, 3, 4)),
        ("float32", (3, 5)),
        ("float16", (3, 4)),
        (None, (3, 4)),
    ):
        said = signature.why_mismatch([wrong, *inputs[1:]], outputs)
        assert said == (
            f"the engine's model takes {wrong[0]} {wrong[1]} at position 0; the"
            " delegate's signature has float32 (-1, 4)"
        )
    said = signature.why_mismatch(inputs, [*outputs[:3], ("float64", ())])
    assert said == (
        "the engine's model returns float64 () at position 3; the delegate's signature"
        " has int ()"
    )


@pytest.mark.parametrize("bad", [2**31, -(2**31) - 1])
def test_int64_values_beyond_the_engines_range_are_refused(bad):
    signature = Signature((("int64", (-1,)), ("int", ())), ())
    fits = torch.tensor([2**31 - 1, -(2**31)])
    assert signature.arrays((fits, 3), int64_bits=32)[0].tolist() == fits.tolist()
    assert (
        signature.arrays((torch.ones(0, dtype=torch.int64), 3), int64_bits=32)[0].size
        == 0
    )
    for args in ((torch.tensor([0, bad]), 3), (fits, bad)):
        with pytest.raises(InputError, match=f"32 bits.*{bad}"):
            signature.arrays(args, int64_bits=32)
        signature.arrays(args)


def test_a_timed_signature_does_the_same_and_counts_by_border():
    plain = Signature((("float32", (2,)),), (("float32", (2,)), ("int", ())))
    timed, seconds = plain.timed()
    [array] = timed.arrays([torch.ones(2)])
    borders = Border("input", 0), Border("output", 0), Border("output", 1)
    assert {*seconds} == {*borders}
    assert seconds[borders[0]] > 0 == seconds[borders[1]]
    one, two = timed.results(iter([array, np.array(3)]))
    assert one.tolist() == [1, 1]
    assert two == 3
    assert all(seconds.values())
    before = dict(seconds)
    timed.results([array, np.array(3)])
    assert seconds[borders[1]] > before[borders[1]]
    assert seconds[borders[0]] == before[borders[0]]
    several, seconds = Signature(plain.inputs * 2, ()).timed()
    several.arrays([torch.ones(2)] * 2)
    assert seconds == {}  # the time cannot be assigned to one of several inputs
    with pytest.raises(InputError):
        timed.arrays([torch.ones(3)])
    with pytest.raises(ValueError, match="zip"):
        timed.results([array])

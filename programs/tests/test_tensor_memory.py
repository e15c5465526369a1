"""The bytes and fingerprints of tensors do not depend on strides."""

import pytest
import torch
from delegraph_programs import memory_of
from delegraph_programs.tensor_bytes import fingerprint

TENSORS = {
    "contiguous": torch.arange(6.0).reshape(2, 3),
    "transposed": torch.arange(6.0).reshape(2, 3).t(),
    "one element of many": torch.arange(7.0)[::7],
    "one element in two dimensions": torch.arange(7.0).as_strided((1, 1), (5, 7), 3),
    "of no dimension": torch.tensor(3.5),
    "none": torch.empty(0, 3),
    "conjugated": torch.tensor([1 + 2j, 3 - 1j]).conj(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_elements_come_in_c_order(name):
    tensor = TENSORS[name]
    assert b"".join(memory_of(tensor)) == tensor.resolve_conj().numpy().tobytes()


LARGE = torch.randn(200, 1024, generator=torch.Generator().manual_seed(0))


def test_fingerprints_do_not_depend_on_strides_or_gradients():
    turned = LARGE.t().contiguous().t()
    assert fingerprint(turned) == fingerprint(LARGE)
    assert fingerprint(LARGE.clone().requires_grad_()) == fingerprint(LARGE)


def test_fingerprints_depend_on_each_element():
    changed = LARGE.clone()
    changed[100, 7] += 1e-3
    exchanged = LARGE.clone()
    exchanged[100, [5, 9]] = exchanged[100, [9, 5]]
    negated = LARGE.clone()
    negated[3, 5] *= -1
    # the sign bits are the highest bits of words: an even number of them cancels out
    # in a sum
    conjugated = LARGE.clone()
    conjugated.view(-1, 2)[:, 1] *= -1
    changed_end = LARGE.clone()
    changed_end[-1, -1] = 0
    exchanged_halves = torch.cat([LARGE[100:], LARGE[:100]])

    different = [
        LARGE,
        changed,
        exchanged,
        negated,
        conjugated,
        changed_end,
        exchanged_halves,
    ]
    assert len({fingerprint(tensor) for tensor in different}) == len(different)


def test_fingerprints_depend_on_shape_and_dtype():
    different = [
        LARGE,
        LARGE.t(),
        LARGE.reshape(-1),
        LARGE[1:, 1:],
        LARGE.view(torch.int32),
        LARGE.view(torch.float16),
        torch.ones(3),
        torch.ones(3, 1),
        torch.ones(0, 3),
        torch.ones(3, 0),
        torch.tensor(3.0),
    ]
    assert len({fingerprint(tensor) for tensor in different}) == len(different)


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (
            torch.arange(3.0),
            "6a4ad830086d78ca5160bb5aeda1ef3d678179f3494425f5a6a5f75c4a0a23cb",
        ),
        (
            torch.arange(2**16),
            "8485ed7eb68b298424e9f3893e03e645daef7c9e65dd114a761f8f237496c9c5",
        ),
    ],
)
def test_fingerprints_are_the_same_in_each_version(tensor, expected):
    """Stores of results use fingerprints as keys."""
    assert fingerprint(tensor) == expected

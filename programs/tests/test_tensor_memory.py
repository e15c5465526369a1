"""The bytes of tensors, whatever their strides."""

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


def test_fingerprints_depend_on_elements_and_not_on_strides():
    large = torch.randn(200, 1024, generator=torch.Generator().manual_seed(0))
    turned = large.t().contiguous().t()
    halves = large.view(torch.float16)
    assert (
        fingerprint(large)
        == fingerprint(turned)
        == fingerprint(large.clone().requires_grad_())
    )
    one, two, signs, imaginary = (large.clone() for _ in range(4))
    one[100, 7] += 1e-3
    two[100, [5, 9]] = two[100, [9, 5]]
    signs[3, 5] *= -1
    # the highest bits of words, which cancel out in a sum of an even number
    imaginary.view(-1, 2)[:, 1] *= -1
    last = torch.cat([large.reshape(-1)[:-1], torch.zeros(1)]).reshape(large.shape)
    swapped = torch.cat([large[100:], large[:100]])
    others = [
        one,
        two,
        signs,
        imaginary,
        last,
        swapped,
        large.t(),
        large.reshape(-1),
        large.view(torch.int32),
        halves,
    ]
    others += [
        torch.ones(3),
        torch.ones(3, 1),
        torch.ones(0, 3),
        torch.ones(3, 0),
        torch.tensor(3.0),
        large[1:, 1:],
    ]
    assert len({fingerprint(tensor) for tensor in (large, *others)}) == 1 + len(others)
    assert (
        fingerprint(torch.arange(3.0))
        == "6a4ad830086d78ca5160bb5aeda1ef3d678179f3494425f5a6a5f75c4a0a23cb"
    )
    assert (
        fingerprint(torch.arange(2**16))
        == "8485ed7eb68b298424e9f3893e03e645daef7c9e65dd114a761f8f237496c9c5"
    )

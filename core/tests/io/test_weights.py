"""The bytes of tensors, whatever their strides."""

import pytest
import torch
from delegraph.io.weights import memory_of

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

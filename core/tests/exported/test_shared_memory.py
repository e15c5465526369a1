"""Inputs or buffers that share memory are refused if one of them is written."""

import delegraph
import numpy as np
import pytest
import torch
from delegraph.errors import InputError
from delegraph_programs.memory_overlap import share_memory
from torch import nn


class Writes(nn.Module):
    def forward(self, x, y, unused):
        x.add_(1)
        return x * y


def twelve_numbers():
    return torch.arange(12.0)


SHARED = {
    "same": lambda m: (m[:4], m[:4]),
    "overlapping": lambda m: (m[:4], m[2:6]),
    "strided": lambda m: (m[::3], m[2::2][:4]),
    "other type": lambda m: (m[:4], m.view(torch.int32)[:4]),
    "expanded": lambda m: (m[:4], m[:1].expand(4)),
}
APART = {
    "halves": lambda m: (m[:4], m[4:8]),
    "every second": lambda m: (m[:8:2], m[1:8:2]),
}


def lower_for_inputs(x, y):
    return delegraph.lower(
        Writes().eval(), (x.clone(), y.clone(), twelve_numbers()[:4]), backends=[]
    )


@pytest.mark.parametrize("name", SHARED)
def test_a_write_to_memory_of_another_input_is_refused(name):
    x, y = SHARED[name](twelve_numbers())
    with pytest.raises(
        InputError, match="^inputs x and y share memory, and the program writes x"
    ):
        lower_for_inputs(x, y)(x, y, twelve_numbers()[:4])


@pytest.mark.parametrize("name", APART)
def test_writes_to_disjoint_memory_leave_other_inputs_unchanged(name):
    x, y = APART[name](twelve_numbers())
    expected = (x + 1) * y
    assert torch.equal(lower_for_inputs(x, y)(x, y, x), expected)


class Part(nn.Module):
    """Writes a buffer. Another buffer is a part of it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("whole", twelve_numbers())
        self.register_buffer("part", self.whole[:4])

    def forward(self, x):
        self.whole.add_(1)
        return self.part * x


def test_written_buffers_that_share_memory_are_refused():
    with pytest.raises(InputError, match=r"(?s)shares memory with .*give each its own"):
        delegraph.lower(Part().eval(), (twelve_numbers()[:4],), backends=[])


def test_buffers_of_a_file_that_share_memory_are_refused(tmp_path):
    torch.export.save(
        torch.export.export(Part(), (twelve_numbers()[:4],)), tmp_path / "part.pt2"
    )
    with pytest.raises(
        InputError, match="^whole and part share memory, and the program writes whole"
    ):
        delegraph.lower(torch.export.load(tmp_path / "part.pt2"), backends=[])


def test_memory_of_several_storages_may_overlap():
    """Tensors from numpy have separate storages over the same bytes."""
    array = np.zeros(10, np.float32)
    first, second, third = (
        torch.from_numpy(a) for a in (array[:6], array[4:], array[6:])
    )
    assert share_memory(first, second)
    assert not share_memory(first, third)


def test_sparse_and_meta_tensors_share_no_memory():
    dense = torch.ones(3)
    meta = torch.ones(3, device="meta")
    assert not share_memory(dense, dense.to_sparse())
    assert not share_memory(meta, torch.ones(3, device="meta"))

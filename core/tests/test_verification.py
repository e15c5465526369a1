"""Figures of a comparison, and files that are whole or not there."""

import math
import os

import pytest
import torch
from delegraph.errors import ContractViolation, WriteError
from delegraph.files import write_whole
from delegraph.verification import compare


def test_figures():
    found = compare((torch.tensor([1.0, 2.0]), torch.tensor([3])), (torch.tensor([1.0, 4.0]), torch.tensor([3])))
    first, second = found.outputs
    assert (first.max_abs_error, first.max_abs_value, first.relative_error) == (2.0, 4.0, 0.5)
    assert second.relative_error == 0 and found.relative_error == 0.5
    assert "ratio 0.5" in str(found) and found.to_json()["relative_error"] == 0.5


@pytest.mark.parametrize(
    "ours, eager, odd",
    [
        (math.inf, math.inf, 0),
        (math.nan, math.nan, 0),
        (3.4e38, math.inf, 1),
        (0.0, math.nan, 1),
        (-math.inf, math.inf, 1),
    ],
)
def test_values_that_are_not_finite(ours, eager, odd):
    found = compare(torch.tensor([ours, 1.0]), torch.tensor([eager, 1.0]))
    assert found.outputs[0].mismatched == odd
    assert (found.relative_error == math.inf) == bool(odd)


def test_shapes_that_differ():
    assert compare(torch.ones(2), torch.ones(3)).relative_error == math.inf


def test_outputs_that_are_no_numbers():
    assert compare((torch.ones(2), None, "a"), (torch.ones(2), None, "a")).relative_error == 0
    assert compare([torch.ones(2)], [None]).relative_error == math.inf
    assert compare([None], [torch.ones(2)]).relative_error == math.inf


def test_empty_and_zero_outputs():
    assert compare(torch.empty(0), torch.empty(0)).relative_error == 0
    assert compare(torch.tensor([1.0]), torch.tensor([0.0])).relative_error == math.inf


class Blob:
    def __init__(self, fails):
        self.fails = fails

    def __len__(self):
        return 4

    def write_to(self, file):
        file.write(b"ab")
        if self.fails:
            raise ContractViolation("contract-violation", "weights changed")
        file.write(b"cd")


def test_write_whole(tmp_path):
    write_whole(tmp_path / "a", b"old")
    write_whole(tmp_path / "a", Blob(fails=False))
    assert (tmp_path / "a").read_bytes() == b"abcd"
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666 & ~umask()


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_nothing_is_left_behind(tmp_path):
    write_whole(tmp_path / "a", b"old")
    with pytest.raises(ContractViolation):
        write_whole(tmp_path / "a", Blob(fails=True))
    assert (tmp_path / "a").read_bytes() == b"old" and os.listdir(tmp_path) == ["a"]


def test_unwritable_paths(tmp_path):
    with pytest.raises(WriteError, match="cannot write .*: No such file"):
        write_whole(tmp_path / "missing" / "a", b"x")
    with pytest.raises(WriteError, match="Is a directory|directory"):
        (tmp_path / "d").mkdir()
        write_whole(tmp_path / "d", b"x")
    assert os.listdir(tmp_path) == ["d"]


def test_imaginary_parts_count():
    wanted = torch.tensor([1 + 1j, 2 - 3j])
    (found,) = compare((wanted + torch.tensor([0, 4j]),), (wanted,)).outputs
    assert found.max_abs_error == 4 and found.max_abs_value == pytest.approx(13**0.5)
    assert compare((wanted,), (wanted.real,)).outputs[0].max_abs_error == 3

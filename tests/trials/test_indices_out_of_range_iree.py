"""IREE modules raise an error for indices out of range, and read no foreign memory."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import delegraph
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from delegraph.errors import InputError


class Program(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.table = torch.nn.Embedding(5, 4)
        self.bag = torch.nn.EmbeddingBag(5, 4)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


TABLE = torch.arange(20.0).reshape(5, 4)
ONES = torch.ones(2, 4)
PROGRAMS = {
    "embedding": (lambda m, x, i: m.table(i), (-1, 5, 2**31 - 1)),
    "embedding bag": (lambda m, x, i: m.bag(i[None]), (-1, 5)),
    "gather": (lambda m, x, i: x.gather(0, i.long()[:, None]), (-1, 5)),
    "index_select": (lambda m, x, i: x.index_select(0, i), (-1, 5)),
    "index": (lambda m, x, i: x[i], (-6, 5, -(2**31))),
    "index of two axes": (lambda m, x, i: x[i, i - 1], (-6, 5)),
    "index_put": (lambda m, x, i: x.index_put((i,), ONES), (-6, 5)),
    "scatter": (lambda m, x, i: x.scatter(0, i.long()[:, None], ONES[:, :1]), (-1, 5)),
    "index_copy": (lambda m, x, i: x.index_copy(0, i.long(), ONES), (-1, 5)),
    "take": (lambda m, x, i: x.take(i.long()), (-21, 20)),
    "label": (lambda m, x, i: F.nll_loss(x[:2], i.long()), (-1, 4)),
    "division by zero": (lambda m, x, i: i // i.flip(0), (0,)),
    "remainder by zero": (lambda m, x, i: i % i.flip(0), (0,)),
}


def calls():
    return [(name, wrong) for name, (_, wrongs) in PROGRAMS.items() for wrong in wrongs]


@pytest.fixture(scope="module")
def lower_cached():
    made = {}

    def lowered(name):
        if name not in made:
            torch.manual_seed(0)
            program = Program(PROGRAMS[name][0])
            made[name] = (
                program,
                delegraph.lower(
                    program, (TABLE, ints(1, 2)), backends=["iree"], require_full=True
                ),
            )
        return made[name]

    return lowered


@pytest.mark.parametrize("name, wrong", calls())
def test_an_index_out_of_range_is_an_error(lower_cached, name, wrong):
    program, lowered = lower_cached(name)
    torch.testing.assert_close(lowered(TABLE, ints(1, 2)), program(TABLE, ints(1, 2)))
    with pytest.raises((IndexError, RuntimeError)):
        program(TABLE, ints(1, wrong))
    with pytest.raises(InputError, match="an index is out of range"):
        lowered(TABLE, ints(1, wrong))
    torch.testing.assert_close(lowered(TABLE, ints(2, 1)), program(TABLE, ints(2, 1)))


def test_a_refused_call_does_not_end_the_process(lower_cached, tmp_path):
    program, lowered = lower_cached("index")
    lowered.save(tmp_path / "m.vmfb")
    loaded = delegraph.load(tmp_path / "m.vmfb")
    for wrong in (5, -6, 2**31 - 1, -(2**31)):
        with pytest.raises(InputError, match="an index is out of range"):
            loaded(TABLE, ints(1, wrong))
    [result] = loaded(TABLE, ints(1, -5))

    torch.testing.assert_close(result, program(TABLE, ints(1, -5)))


def test_the_command_line_refuses_the_input(lower_cached, tmp_path):
    lower_cached("index_select")[1].save(tmp_path / "m.vmfb")
    np.save(tmp_path / "x.npy", TABLE.numpy())
    np.save(tmp_path / "i.npy", np.array([1, 1 << 30], np.int32))
    command = [
        sys.executable,
        "-m",
        "delegraph",
        "run",
        "m.vmfb",
        "--input",
        "x.npy",
        "--input",
        "i.npy",
    ]
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert completed.returncode == 1
    assert "an index is out of range" in completed.stderr


def test_iree_run_module_refuses_indices_out_of_range(lower_cached, tmp_path):
    lower_cached("index")[1].save(tmp_path / "m.vmfb")
    tool = Path(sysconfig.get_path("scripts"), "iree-run-module")
    command = [
        str(tool),
        f"--module={tmp_path / 'm.vmfb'}",
        "--function=main",
        "--device=local-sync",
    ]
    command += ["--input=5x4xf32=1", "--input=2xi32=1,1000000"]
    completed = subprocess.run(command, capture_output=True, text=True)

    assert completed.returncode == 1
    assert "an index is out of range" in completed.stderr


@pytest.mark.parametrize("place", [-1, 4, 11, 12, -(2**31)])
def test_an_index_of_the_last_axis_stays_in_the_tensor(place):
    """The module has one index for all axes, so a large column index may select another
    row.
    """
    program = Program(lambda m, x, i: x.gather(1, i.long()[:, None]))
    lowered = delegraph.lower(
        program, (TABLE, ints(1, 2)), backends=["iree"], require_full=True
    )
    try:
        result = lowered(TABLE, ints(1, place))
    except InputError:
        return

    assert set(result.flatten().tolist()) <= set(TABLE.flatten().tolist())


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_indices_are_checked_against_sizes_of_the_call(rows):
    sizes = ({0: torch.export.Dim("n", min=1)}, None)
    program = Program(lambda m, x, i: x[i])
    exported = torch.export.export(
        program, (TABLE, ints(0, 0)), dynamic_shapes=(sizes,)
    )
    options = {"iree": {"spec": "TOSA-1.1+FP+INT+shape"}}
    lowered = delegraph.lower(
        exported, backends=["iree"], options=options, require_full=True
    )
    x = torch.randn(rows, 4)

    torch.testing.assert_close(lowered(x, ints(0, rows - 1)), x[[0, rows - 1]])
    with pytest.raises(InputError, match="an index is out of range"):
        lowered(x, ints(0, rows))


def test_the_quotient_of_the_least_integer_wraps_around(lower_cached):
    _, lowered = lower_cached("division by zero")
    assert lowered(TABLE, ints(-(2**31), -1)).tolist() == [-(2**31), 0]

"""Files of ``delegraph.lower_buckets``: a process that only loads them chooses by size
as well.
"""

import json
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from delegraph.cli import main
from delegraph.errors import FormatError, InputError
from delegraph_executorch import buckets
from delegraph_executorch.buckets.table import KEY
from torch import nn


class Flat(nn.Module):
    def forward(self, x, by):
        return torch.relu(x) + by


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("buckets") / "flat.pte"
    examples = [(torch.randn(n, 4), torch.randn(n, 1)) for n in (8, 2)]
    program = buckets.lower_buckets(Flat().eval(), examples, padding=0, backends=[])
    program.save(path)
    return path, program


def test_a_loaded_file_chooses(saved):
    path, program = saved
    loaded = buckets.load(path)
    for n in (1, 2, 5, 8):
        x = torch.randn(n, 4)
        by = torch.randn(n, 1)
        torch.testing.assert_close(loaded(x, by), Flat()(x, by))
    for given in (
        (torch.randn(9, 4), torch.randn(9, 1)),
        (torch.randn(2, 4).double(), torch.randn(2, 1)),
    ):
        with pytest.raises(InputError, match="^no bucket holds") as ours:
            program(*given)
        with pytest.raises(InputError) as theirs:
            loaded(*given)
        assert str(ours.value) == str(theirs.value)
    exact = torch.randn(2, 4), torch.randn(2, 1)
    torch.testing.assert_close(loaded.method("forward_2")(*exact), loaded(*exact))


@pytest.mark.slow  # it imports torch anew
def test_another_process_chooses(saved):
    code = "import sys, torch; from delegraph_executorch import buckets\n"
    code += "print(buckets.load(sys.argv[1])(torch.ones(5, 4), torch.ones(5, 1)).shape)"
    completed = subprocess.run(
        [sys.executable, "-c", code, str(saved[0])],
        check=True,
        capture_output=True,
        text=True,
    )
    assert completed.stdout == "torch.Size([5, 4])\n"


def test_buckets_take_inputs_in_containers(tmp_path):
    class Named(nn.Module):
        def forward(self, x, by):
            return {
                "rows": torch.relu(x) + by["shift"] * by["times"],
                "sums": (x.sum(-1),),
            }

    def given(n):
        return {"x": torch.randn(n, 4), "by": {"shift": torch.randn(n, 1), "times": 3}}

    program = buckets.lower_buckets(
        Named().eval(), [given(2), given(8)], padding=0, backends=[]
    )
    program.save(tmp_path / "named.pte")
    inputs = given(5)
    found = buckets.load(tmp_path / "named.pte")(**inputs)
    expected = Named()(**inputs)
    torch.testing.assert_close(found, expected)


@dataclass
class Rows:
    x: torch.Tensor
    by: torch.Tensor


torch.export.register_dataclass(Rows, serialized_type_name="delegraph_tests.Rows")


def test_a_registered_class_is_a_list_in_the_file(tmp_path):
    class OfClass(nn.Module):
        def forward(self, rows):
            return torch.relu(rows.x) + rows.by

    given = {n: Rows(torch.randn(n, 4), torch.randn(n, 1)) for n in (2, 5, 8)}
    examples = [(given[n],) for n in (2, 8)]
    program = buckets.lower_buckets(OfClass().eval(), examples, padding=0, backends=[])
    program.save(tmp_path / "rows.pte")
    expected = OfClass()(given[5])
    torch.testing.assert_close(program(given[5]), expected)
    loaded = buckets.load(tmp_path / "rows.pte")
    torch.testing.assert_close(loaded([given[5].x, given[5].by]), expected)


class Pair(NamedTuple):
    x: torch.Tensor
    by: torch.Tensor


@pytest.mark.parametrize("kind", [Pair, lambda x, by: OrderedDict(x=x, by=by)])
def test_a_container_without_a_word_in_the_table(kind):
    class Of(nn.Module):
        def forward(self, given):
            x, by = given.values() if isinstance(given, dict) else given
            return torch.relu(x) + by

    program = buckets.lower_buckets(
        Of().eval(), [(kind(torch.ones(n, 4), torch.ones(n, 1)),) for n in (2, 8)]
    )
    assert program.program.named_data.pte_data == {}


def test_only_exact_sizes_without_padding(tmp_path):
    examples = [(torch.randn(n, 4), torch.randn(n, 1)) for n in (2, 8)]
    buckets.lower_buckets(Flat().eval(), examples, backends=[]).save(
        tmp_path / "exact.pte"
    )
    with pytest.raises(InputError, match="no bucket holds") as failed:
        buckets.load(tmp_path / "exact.pte")(torch.randn(5, 4), torch.randn(5, 1))
    assert "padding=0" in str(failed.value)


def test_inspect_shows_the_sizes_of_buckets(saved, tmp_path, capsys):
    path, _ = saved
    assert main(["inspect", str(path)]) == 0
    assert main(["inspect", str(path), "--summary"]) == 0
    stdout = capsys.readouterr().out
    assert (
        "sizes of one model: forward_2, forward_8; a call takes the smallest that holds"
        in stdout
    )
    assert "  in   x: float32[2, 4]\n  in   by: float32[2, 1]\n" in stdout
    assert "\nconstants: 0, 0 bytes\n" in stdout
    assert main(["inspect", str(path), "--json"]) == 0
    shapes = {"forward_2": [[2, 4], [2, 1]], "forward_8": [[8, 4], [8, 1]]}
    assert json.loads(capsys.readouterr().out)["buckets"] == {
        "padding": 0,
        "inputs": shapes,
    }
    assert main(["run", str(path), "--method", "forward_8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == [8, 4]
    assert main(["run", str(path), "--method", "forward_3"]) == 1
    assert (
        "no method 'forward_3'; methods: ['forward_8', 'forward_2']"
        in capsys.readouterr().err
    )


def test_bucket_tables_must_match_the_methods(saved, tmp_path):
    _, program = saved
    larger = program._choice.table()
    larger.rows[0].inputs[0]["shape"] = [1 << 30, 4]
    program.program.save(tmp_path / "other.pte", {KEY: larger.to_bytes()})
    with pytest.raises(FormatError, match="method forward_[28] has other shapes"):
        buckets.load(tmp_path / "other.pte")


class Difference(nn.Module):
    """[N, L] - [N, L]: arguments whose names are not in the order of the alphabet."""

    def forward(self, upper, lower):
        return upper - lower


def test_keyword_arguments_are_taken_in_any_order(tmp_path):
    def example(rows):
        return {"lower": torch.randn(rows, 3), "upper": torch.randn(rows, 3)}

    program = buckets.lower_buckets(
        Difference(), [example(2), example(4)], padding=0, backends=[]
    )
    given = example(3)
    expected = given["upper"] - given["lower"]
    assert torch.equal(program(**given), expected)
    assert torch.equal(program(upper=given["upper"], lower=given["lower"]), expected)
    program.save(tmp_path / "a.pte")
    loaded = buckets.load(tmp_path / "a.pte")
    assert torch.equal(loaded(**given), expected)
    assert torch.equal(loaded(upper=given["upper"], lower=given["lower"]), expected)

"""Indices out of range are errors in eager, and in each backend and file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import delegraph
import pytest
import torch
import torch.nn.functional as F
from delegraph.errors import InputError
from delegraph_tosa.format import TosaFormat
from torch import Tensor, nn

TABLE = torch.arange(12.0).reshape(4, 3)
ROWS = torch.ones(2, 3)
HUGE = (2**31, 2**32, 2**32 + 1, -(2**31) - 1, 2**40 + 1)
"""Indices that are out of range, and that are in range modulo 2**32 in part."""


class Program(nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        return self.function(x, i)


class Row(NamedTuple):
    """A program of a table and two indices, and the indices for which eager raises."""

    function: Callable[[Tensor, Tensor], Tensor]
    wrong: tuple[int, ...]


PROGRAMS = {
    "embedding": Row(lambda x, i: F.embedding(i, x), (-1, 4)),
    "embedding with a shift": Row(lambda x, i: F.embedding(i + 1, x), (-2, 3)),
    "embedding bag": Row(lambda x, i: F.embedding_bag(i[None], x), (-1, 4)),
    "gather rows": Row(lambda x, i: x.gather(0, i[:, None]), (-1, 4)),
    "gather columns": Row(lambda x, i: x.gather(1, i[:, None]), (-1, 3, 4)),
    "index_select": Row(lambda x, i: x.index_select(0, i), (-1, 4)),
    "index_select columns": Row(lambda x, i: x.index_select(1, i), (-1, 3)),
    "index": Row(lambda x, i: x[i], (-5, 4)),
    "index of columns": Row(lambda x, i: x[:, i], (-4, 3)),
    "index of two axes": Row(lambda x, i: x[i, i], (-4, 3)),
    "index_put": Row(lambda x, i: x.index_put((i,), ROWS), (-5, 4)),
    "index_put of two axes": Row(lambda x, i: x.index_put((i, i), ROWS[:, 0]), (-4, 3)),
    "index_add": Row(lambda x, i: x.index_add(0, i, ROWS), (-1, 4)),
    "index_copy": Row(lambda x, i: x.index_copy(0, i, ROWS), (-1, 4)),
    "index_fill": Row(lambda x, i: x.index_fill(0, i, 2.0), (-5, 4)),
    "scatter": Row(lambda x, i: x.scatter(1, i[:, None], 1.0), (-1, 3)),
    "scatter_add": Row(lambda x, i: x.scatter_add(1, i[:, None], ROWS[:, :1]), (-1, 3)),
    "take": Row(lambda x, i: x.take(i), (-13, 12)),
    "one_hot": Row(lambda x, i: F.one_hot(i, 4) + x[:2, :1], (-1, 4)),
    "label": Row(lambda x, i: F.nll_loss(x[:2], i), (-1, 3)),
}


class Backend(NamedTuple):
    """A backend, its options, and the type of indices in its files."""

    name: str
    options: dict[str, Any]
    index_type: torch.dtype


BACKENDS = (
    Backend("tosa", {}, torch.int32),
    Backend("tosa", {"spec": "TOSA-1.0+INT+FP"}, torch.int32),
)


def lower(backend: Backend, name: str) -> tuple[Program, Any]:
    program = Program(PROGRAMS[name].function)
    options = {backend.name: backend.options} if backend.options else {}
    example = (TABLE, torch.tensor([0, 1]))
    return program, delegraph.lower(
        program, example, backends=[backend.name], options=options
    )


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", BACKENDS, ids=str)
def test_an_index_out_of_range_is_an_error(backend, name):
    program, lowered = lower(backend, name)
    right = torch.tensor([1, 0])
    torch.testing.assert_close(lowered(TABLE, right), program(TABLE, right))
    for wrong in (*PROGRAMS[name].wrong, *HUGE):
        indices = torch.tensor([1, wrong])
        with pytest.raises((IndexError, RuntimeError)):
            program(TABLE, indices)
        with pytest.raises(
            InputError, match=rf"input i has an element {wrong};|GATHER: index {wrong} "
        ):
            lowered(TABLE, indices)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_tosa_file_refuses_indices_out_of_range(name, tmp_path):
    program, lowered = lower(BACKENDS[0], name)
    path = tmp_path / "program.tosa"
    lowered.save(path)
    loaded = delegraph.load(path)
    right = torch.tensor([1, 0], dtype=torch.int32)

    torch.testing.assert_close(
        loaded(TABLE, right)[0], program(TABLE, right.long()), check_dtype=False
    )
    for wrong in PROGRAMS[name].wrong:
        indices = torch.tensor([1, wrong], dtype=torch.int32)
        text = rf"input i has an element {wrong};|GATHER: index {wrong} "
        with pytest.raises(InputError, match=text):
            loaded(TABLE, indices)
        with pytest.raises(InputError, match=text):
            TosaFormat.run(path, [TABLE.numpy(), indices.numpy()])


@pytest.mark.parametrize("name", PROGRAMS)
def test_sample_inputs_of_a_tosa_file_are_in_range(name, tmp_path):
    _, lowered = lower(BACKENDS[0], name)
    path = tmp_path / "program.tosa"
    lowered.save(path)
    for seed in range(3):
        TosaFormat.run(path, TosaFormat.sample(path, seed))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pte_file_refuses_indices_out_of_range(name, tmp_path):
    program, lowered = lower(BACKENDS[0], name)
    lowered.save(tmp_path / "program.pte")
    loaded = delegraph.load(tmp_path / "program.pte")
    right = torch.tensor([1, 0])

    torch.testing.assert_close(loaded(TABLE, right), program(TABLE, right))
    for wrong in (*PROGRAMS[name].wrong, *HUGE):
        with pytest.raises(
            InputError, match=rf"input i has an element {wrong};|GATHER: index {wrong} "
        ):
            loaded(TABLE, torch.tensor([1, wrong]))


def test_files_keep_no_ranges_without_metadata(tmp_path):
    example = (TABLE, torch.tensor([0, 1]))
    lowered = delegraph.lower(
        Program(PROGRAMS["gather rows"].function),
        example,
        backends=["tosa"],
        options={"tosa": {"metadata": False}},
    )
    lowered.save(tmp_path / "program.tosa")

    assert b"dlgrMETA" not in (tmp_path / "program.tosa").read_bytes()


COMPUTED = {
    "embedding": (lambda x, i: F.embedding(i * i, x), (2, 2**16)),
    "index": (lambda x, i: x[i * i - 1], (3, 2**16)),
    "one_hot": (lambda x, i: F.one_hot(i * i, 4) + x[:2, :1], (2, 2**16)),
    "scatter": (lambda x, i: x.scatter(1, (i * i)[:, None], 1.0), (2, 2**16)),
    "a view": (lambda x, i: F.embedding((i * i)[None].reshape(-1), x), (2, 2**16)),
    "two uses": (
        lambda x, i: F.embedding(i * i, x + 1) + F.embedding((i * i).flip(0), x),
        (2, 2**16),
    ),
}
"""Indices that the host computes, whose squares are out of range; 2**16 squared is 0
modulo 2**32.
"""


@pytest.mark.parametrize("name", COMPUTED)
def test_indices_that_the_host_computes_are_checked(name):
    function, wrongs = COMPUTED[name]
    program = Program(function)
    lowered = delegraph.lower(program, (TABLE, torch.tensor([0, 1])), backends=["tosa"])
    assert lowered.delegates
    assert lowered.report.host_operators

    right = torch.tensor([1, 0])
    torch.testing.assert_close(lowered(TABLE, right), program(TABLE, right))

    for wrong in wrongs:
        indices = torch.tensor([1, wrong])
        with pytest.raises((IndexError, RuntimeError)):
            program(TABLE, indices)
        with pytest.raises(InputError, match=f"mul.* has an element {wrong * wrong}"):
            lowered(TABLE, indices)


class KeptIndex(nn.Module):
    """The index is a buffer. Each call adds ``step`` to it."""

    def __init__(self) -> None:
        super().__init__()
        self.i: Tensor
        self.register_buffer("i", torch.tensor([1, 0]))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        rows = x.index_select(0, self.i)
        self.i.add_(step)
        return rows


def test_indices_in_a_buffer_of_the_host_are_checked():
    lowered = delegraph.lower(
        KeptIndex().eval(), (TABLE, torch.tensor(0)), backends=["tosa"]
    )
    assert "aten.index_select.default" in lowered.report.delegates[0].operators
    torch.testing.assert_close(lowered(TABLE, torch.tensor(2**32)), TABLE[[1, 0]])
    with pytest.raises(InputError, match=rf"has an element {2**32 + 1}"):
        lowered(TABLE, torch.tensor(0))


def test_indices_that_are_inputs_of_a_branch_are_checked():
    def select(x: Tensor, i: Tensor) -> Tensor:
        return torch.cond(
            x.sum() > 0,
            lambda x, i: x.index_select(0, i) * 2,
            lambda x, i: x.index_select(0, i),
            (x, i),
        )

    program = Program(select)
    lowered = delegraph.lower(program, (TABLE, torch.tensor([0, 1])), backends=["tosa"])
    assert lowered.delegates

    right = torch.tensor([1, 0])
    torch.testing.assert_close(lowered(TABLE, right), program(TABLE, right))
    with pytest.raises(InputError, match=rf"has an element {2**32 + 1}"):
        lowered(TABLE, torch.tensor([1, 2**32 + 1]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_promised_range_is_checked(name):
    program = Program(PROGRAMS[name].function)
    options = {"tosa": {"int32_inputs": ["i"]}}
    lowered = delegraph.lower(
        program, (TABLE, torch.tensor([0, 1])), backends=["tosa"], options=options
    )
    for wrong in HUGE:
        with pytest.raises(InputError, match="input i has an element"):
            lowered(TABLE, torch.tensor([1, wrong]))

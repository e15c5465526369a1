"""The kit's programs run and export, are reproducible, and do not change torch."""

import importlib.util
import sys

import pytest
import torch
from delegraph_devkit.opinfo import operator_programs
from delegraph_devkit.programs import NOTHING, PROGRAMS
from delegraph_devkit.random_programs import random_program


@pytest.mark.parametrize(
    "program", [*PROGRAMS, *NOTHING], ids=lambda program: program.name
)
def test_programs_run_and_export(program):
    module, inputs = program.make(3)
    module(*inputs)

    assert program.exported is not None
    if program.batched:
        assert program.exported_dynamic is not None


@pytest.fixture(scope="module")
def random_programs():
    return [random_program(seed) for seed in range(60)]


def test_random_programs_are_reproducible(random_programs):
    again = [random_program(seed) for seed in range(60)]

    assert [program.source for program in again] == [
        program.source for program in random_programs
    ]


@pytest.mark.parametrize(
    "feature",
    [
        ".split(",
        ".transpose(",
        ".narrow(",
        "torch.cat(",
        "_()",  # an in-place operator
        "Parameter",
    ],
)
def test_random_programs_have_all_features(feature, random_programs):
    assert any(feature in program.source for program in random_programs)


def test_random_programs_do_not_write_to_their_inputs(random_programs):
    for program in random_programs[:20]:
        module, inputs = program.make(3)
        copies = [tensor.clone() for tensor in inputs]

        module(*inputs)

        assert all(map(torch.equal, inputs, copies))


@pytest.fixture
def before():
    """Return torch's random state and number of threads before the import of OpInfo."""
    return torch.get_rng_state(), torch.get_num_threads()


@pytest.fixture
def operators(before):
    """Return the first 30 programs of single operators, which come from OpInfo."""
    stream = operator_programs()
    return [next(stream) for _ in range(30)]


def test_operator_programs_have_names_and_mostly_export(operators):
    assert len({program.name for program in operators}) == 30
    assert sum(program.exported is not None for program in operators) >= 25


def test_operator_programs_keep_the_state_of_torch(before, operators):
    random_state, threads = before

    assert torch.equal(random_state, torch.get_rng_state())
    assert threads == torch.get_num_threads()


def test_the_import_of_opinfo_is_undone(operators):
    # OpInfo forbids to set such flags
    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark
    # during the import, the kit has a stand-in for expecttest if that is missing
    assert "expecttest" not in sys.modules or importlib.util.find_spec("expecttest")

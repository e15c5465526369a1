"""The programs of the kit run, export, and do not change torch."""

import importlib.util
import sys

import pytest
import torch
from delegraph_devkit.opinfo import operator_programs
from delegraph_devkit.programs import NOTHING, PROGRAMS
from delegraph_devkit.random_programs import random_program


@pytest.mark.parametrize("program", [*PROGRAMS, *NOTHING], ids=lambda p: p.name)
def test_programs_run_and_export(program):
    module, inputs = program.make(3)
    module(*inputs)
    assert program.exported is not None
    assert not program.batched or program.exported_dynamic is not None


def test_random_programs_are_reproducible_and_have_all_features():
    programs = [random_program(seed) for seed in range(60)]
    assert [p.source for p in programs] == [
        random_program(seed).source for seed in range(60)
    ]
    texts = "\n".join(p.source for p in programs)
    assert all(
        form in texts
        for form in (
            ".split(",
            ".transpose(",
            ".narrow(",
            "torch.cat(",
            "_()",
            "Parameter",
        )
    )
    for program in programs[:20]:
        module, inputs = program.make(3)
        before = [i.clone() for i in inputs]
        module(*inputs)
        assert all(torch.equal(a, b) for a, b in zip(before, inputs, strict=True)), (
            "inputs are not written"
        )


def test_operator_programs_keep_torch_as_it_is():
    state = torch.get_rng_state()
    threads = torch.get_num_threads()
    stream = operator_programs()
    first = [next(stream) for _ in range(30)]
    assert len({p.name for p in first}) == 30
    assert sum(p.exported is not None for p in first) >= 25
    assert torch.equal(state, torch.get_rng_state())
    assert threads == torch.get_num_threads()
    # the import of OpInfo forbids this assignment; the kit restores it
    torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark
    assert "expecttest" not in sys.modules or importlib.util.find_spec("expecttest")

"""The kit tries series of programs in other processes, which may crash."""

import delegraph_devkit as devkit
import pytest

from .support import bad_backends as backends
from .support.kit import backend_under_test


@pytest.fixture(scope="module")
def crashing():
    """Return a backend that crashes for some programs of tanh, and for none of abs."""
    register = backends.BAD["accepted_compiles"]["crashes"]
    return backend_under_test(register, operators=("tanh", "abs"))


def test_a_crash_loses_only_its_own_program(crashing):
    outcomes = crashing.sweep.outcomes
    crashed = [outcome.program for outcome in outcomes if outcome.faults]
    compared = [outcome.program for outcome in outcomes if outcome.compared]

    assert "tanh, float32, sample 0" in crashed
    assert all("tanh" in name for name in crashed)
    assert any(name.startswith("abs") for name in compared)


def test_checks_explain_a_crash(crashing):
    with pytest.raises(devkit.CheckFailed) as caught:
        devkit.CHECKS["accepted_compiles"].run(crashing)

    assert "native code" in caught.value.advice
    assert "ended by SIGABRT" in str(caught.value)


def names_of_tried_programs(gate):
    backend = backend_under_test(backends.register_good, gate=gate)
    return [outcome.program for outcome in backend.sweep.outcomes]


@pytest.mark.slow
def test_equal_gates_try_equal_programs():
    names = names_of_tried_programs(gate=8)

    assert names == names_of_tried_programs(gate=8)
    assert len(names) == len(set(names))
    # 12 common and 2 random programs; special ones; and as many operators as the gate
    assert len(names) == 14 + 9 + 5 + 1 + 8

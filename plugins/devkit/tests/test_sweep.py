"""Series of programs in other processes: a crash costs one, and runs are equal."""

import delegraph_devkit as devkit
import pytest

from .support import bad_backends as backends
from .support.kit import backend_under_test


def test_crash_loses_one_program_and_is_named():
    one = backend_under_test(
        backends.BAD["accepted_compiles"]["crashes"], operators=("tanh", "abs")
    )
    outcomes = {o.program: o for o in one.sweep.outcomes}
    fatal = [name for name, o in outcomes.items() if o.faults]
    assert "tanh, float32, sample 0" in fatal
    assert all("tanh" in name for name in fatal)
    assert any(name.startswith("abs") and o.compared for name, o in outcomes.items())
    with pytest.raises(devkit.CheckFailed) as caught:
        devkit.CHECKS["accepted_compiles"].run(one)
    assert "native code" in caught.value.advice
    assert "ended by SIGABRT" in str(caught.value)


@pytest.mark.slow
def test_equal_gates_try_equal_programs():
    def tried():
        return [
            o.program
            for o in backend_under_test(backends.register_good, gate=8).sweep.outcomes
        ]

    first = tried()
    assert first == tried()
    assert len(first) == len(set(first)) == 14 + 9 + 5 + 1 + 8

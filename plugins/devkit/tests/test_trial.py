"""The kit finds out whether the backend or torch causes a difference from eager."""

from delegraph_devkit.opinfo import operator_programs
from delegraph_devkit.trial import blame_others, compare_with_eager

from .support import bad_backends as backends
from .support.kit import backend_under_test


def test_a_fault_of_torch_is_no_fault_of_the_backend():
    """The exported masked_select asserts a wrong size if its input is broadcast."""
    backend = backend_under_test(backends.register_good, operators=("masked_select",))
    programs = {
        program.name: program for program in operator_programs(("masked_select",))
    }
    attempt = backend.attempt(programs["masked_select, float32, sample 3"])

    _, fault = compare_with_eager(attempt, backend)
    cause = blame_others(attempt, backend)

    assert "Runtime assertion failed" in fault.text
    assert cause.startswith("torch: the exported program raises RuntimeError")

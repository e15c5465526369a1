"""The causes of differences from eager PyTorch."""

from delegraph_devkit.opinfo import operator_programs
from delegraph_devkit.trial import blame_others, compare_with_eager

from .support import bad_backends as backends
from .support.kit import backend_under_test


def test_a_fault_of_torch_is_no_fault_of_the_backend():
    """An exported masked_select asserts a wrong size: its input is broadcast."""
    one = backend_under_test(backends.register_good, operators=("masked_select",))
    programs = {p.name: p for p in operator_programs(("masked_select",))}
    tried = one.attempt(programs["masked_select, float32, sample 3"])

    _, fault = compare_with_eager(tried, one)
    cause = blame_others(tried, one)

    assert "Runtime assertion failed" in fault.text
    assert cause.startswith("torch: the exported program raises RuntimeError")

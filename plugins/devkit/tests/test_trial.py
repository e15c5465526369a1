"""Whose fault a difference from eager is."""

from delegraph_devkit.opinfo import operator_programs
from delegraph_devkit.trial import blame_others, compare_with_eager

from .support import bad_backends as backends
from .support.kit import under_test


def test_the_fault_of_torch_is_not_the_backend_s():
    """An exported masked_select believes that the result is no longer than the input,
    which it broadcasts.
    """
    one = under_test(backends.register_good, operators=("masked_select",))
    programs = [
        p
        for p in operator_programs(("masked_select",))
        if p.name == "masked_select, float32, sample 3"
    ]
    [tried] = [one.attempt(p) for p in programs]
    assert "Runtime assertion failed" in compare_with_eager(tried, one)[1].text
    assert blame_others(tried, one).startswith(
        "torch: the exported program raises RuntimeError"
    )

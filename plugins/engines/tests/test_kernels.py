"""``computed_by`` assigns calls of a program to the kernels of an engine.

Engines lose the names of calls that they fuse.
"""

from delegraph_engines import Kernel, computed_by

READS = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (6, 4), (6, 5)]
"""Pairs of a call and its operand: 0 -> 1 -> 2 -> 3, which 4 and 5 read; 6 adds both."""


def test_a_kernel_computes_unreported_operands_of_its_call():
    kernels = [
        Kernel("input", calls=[], reads=[]),
        Kernel("a", calls=[2], reads=["input"]),
        Kernel("b", calls=[6], reads=["a"]),
    ]

    assert computed_by(kernels, READS) == {
        "input": None,
        "a": (0, 1, 2),
        "b": (3, 4, 5, 6),
    }


def test_kernels_that_report_all_calls_compute_only_these():
    kernels = [
        Kernel("a", calls=[0], reads=[]),
        Kernel("b", calls=[1], reads=["a"]),
        Kernel("c", calls=[3, 2], reads=["b"]),
    ]

    assert computed_by(kernels, READS) == {"a": (0,), "b": (1,), "c": (2, 3)}


def test_calls_that_read_each_other_do_not_loop_forever():
    kernels = [
        Kernel("a", calls=[1], reads=[]),
        Kernel("b", calls=[2], reads=["a"]),
    ]
    cyclic_reads = [(1, 2), (2, 1), (2, 2)]

    assert computed_by(kernels, cyclic_reads)["b"] == (2,)


def test_no_kernels_compute_nothing():
    assert computed_by([], READS) == {}


def test_a_call_without_known_operands_is_computed_alone():
    assert computed_by([Kernel("a", calls=[9], reads=[])], READS) == {"a": (9,)}


def computed_with_moves(only_moves: bool) -> dict[str, tuple[int, ...] | None]:
    """Return the calls of each kernel below; its moves may be declared as such or not.

    input -> move_1 -> move_2 -> a -> move_3 -> b and c; c -> move_4 -> output
    """
    kernels = [
        Kernel("input", calls=[], reads=[]),
        Kernel("move_1", calls=[], reads=["input"], only_moves=only_moves),
        Kernel("move_2", calls=[], reads=["move_1"], only_moves=only_moves),
        Kernel("a", calls=[0], reads=["move_2"]),
        Kernel("move_3", calls=[], reads=["a"], only_moves=only_moves),
        Kernel("b", calls=[1], reads=["move_3"]),
        Kernel("c", calls=[2], reads=["move_3"]),
        Kernel("move_4", calls=[], reads=["c"], only_moves=only_moves),
        Kernel("output", calls=[], reads=["move_4"]),
    ]
    return computed_by(kernels, [])


def test_a_move_counts_for_its_only_reader():
    calls = computed_with_moves(only_moves=True)

    assert calls["move_1"] == calls["move_2"] == calls["a"] == (0,)


def test_a_move_with_two_readers_counts_for_none():
    assert computed_with_moves(only_moves=True)["move_3"] is None


def test_a_move_to_a_kernel_without_calls_counts_for_its_maker():
    calls = computed_with_moves(only_moves=True)

    assert calls["output"] is None
    assert calls["move_4"] == calls["c"] == (2,)


def test_kernels_without_calls_that_are_no_moves_compute_nothing():
    calls = computed_with_moves(only_moves=False)

    for name in ("input", "move_1", "move_2", "move_3", "move_4", "output"):
        assert calls[name] is None

"""Which calls a kernel computes, where its engine forgot names as it fused."""

from delegraph_engines import Kernel, computed_by

READS = [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (6, 4), (6, 5)]
"""0 is read by 1, and so on; 3 by 4 and 5, which 6 adds."""


def test_kernels_compute_the_calls_between_their_values():
    kernels = [Kernel("in", [], []), Kernel("a", [2], ["in"]), Kernel("b", [6], ["a"])]
    assert computed_by(kernels, READS) == {
        "in": None,
        "a": (0, 1, 2),
        "b": (3, 4, 5, 6),
    }
    whole = [Kernel("a", [0], []), Kernel("b", [1], ["a"]), Kernel("c", [3, 2], ["b"])]
    assert computed_by(whole, READS) == {"a": (0,), "b": (1,), "c": (2, 3)}
    assert computed_by(
        [Kernel("a", [1], []), Kernel("b", [2], ["a"])], [(1, 2), (2, 1), (2, 2)]
    )["b"] == (2,)
    assert computed_by([], READS) == {}
    assert computed_by([Kernel("a", [9], [])], READS) == {"a": (9,)}


def test_moves_count_for_the_reading_or_the_making_kernel():
    moves = [
        Kernel("in", [], []),
        # moved twice
        *(
            Kernel(f"m{k}", [], [of], only_moves=True)
            for k, of in enumerate(["in", "m0"])
        ),
        Kernel("a", [0], ["m1"]),
        Kernel("m2", [], ["a"], only_moves=True),
        Kernel("b", [1], ["m2"]),
        Kernel("c", [2], ["m2"]),
        Kernel("m3", [], ["c"], only_moves=True),
        Kernel("out", [], ["m3"]),
    ]
    found = computed_by(moves, [])
    assert found["m0"] == found["m1"] == (0,)  # of a, which alone reads it
    assert found["m2"] is None  # two read it
    assert found["m3"] == (2,)
    assert found["in"] is found["out"] is None
    not_moved = [kernel._replace(only_moves=False) for kernel in moves]
    assert {computed_by(not_moved, [])[name] for name in ("m0", "m1", "m2", "m3")} == {
        None
    }

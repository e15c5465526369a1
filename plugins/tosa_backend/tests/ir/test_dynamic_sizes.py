"""Arithmetic on sizes that are known at run time only, against Python's on ints."""

import math
import operator
import random

import numpy as np
import pytest
from delegraph_tosa.ir.dynamic_sizes import (
    Extreme,
    Quotient,
    Size,
    agree,
    differ,
    exceeds,
    largest,
    range_of,
    smallest,
    symbol,
    waits,
)
from delegraph_tosa.ir.graph import Undecided, Value
from delegraph_tosa.ir.operators.rules import broadcast
from delegraph_tosa.ir.size_sources import size_sources
from delegraph_tosa.ir.types import DType, Type

n = symbol("n", 2, 64)
m = symbol("m", 2, 64)


def size_at(size, **sizes):
    """The number that a size is."""
    if not isinstance(size, Size):
        return size
    total = 0
    for monomial, factor in size.terms.items():
        for one in monomial:
            factor *= atom_at(one, sizes)
        total += factor
    return total


def atom_at(one, sizes):
    if isinstance(one, Quotient):
        return size_at(one.dividend, **sizes) // size_at(one.divisor, **sizes)
    if isinstance(one, Extreme):
        return (max if one.larger else min)(
            size_at(one.left, **sizes), size_at(one.right, **sizes)
        )
    return sizes[one.name]


OPERATORS = {operator.add: operator.add, operator.sub: operator.sub, operator.mul: operator.mul} | {
    operator.floordiv: operator.floordiv, operator.mod: operator.mod, largest: max, smallest: min,
}  # fmt: skip


@pytest.mark.parametrize("seed", range(300))
def test_expressions_equal_python_and_lie_in_their_range(seed):
    draw = random.Random(seed)
    sizes = {"n": draw.randint(2, 64), "m": draw.randint(2, 64)}
    known = [
        (n, sizes["n"]),
        (m, sizes["m"]),
        *((k, k) for k in (1, 2, 3, 5, -1, 0, 7)),
    ]
    for _ in range(8):
        (left, x), (right, y) = draw.choice(known), draw.choice(known)
        apply = draw.choice(list(OPERATORS))
        if apply in (operator.floordiv, operator.mod) and range_of(right)[0] <= 0:
            continue
        found = apply(left, right)
        expected = OPERATORS[apply](x, y)
        assert size_at(found, **sizes) == expected
        low, high = range_of(found)
        assert low <= expected <= high
        known.append((found, expected))


def test_equal_expressions_have_one_form():
    assert (n + 1) * 64 // (n + 1) == 64
    assert n * m * 4 // m == 4 * n
    assert -(-n // 2) == (n + 1) // 2 == (n - 1) // 2 + 1
    assert ((n - 1) // 2) // 2 + 1 == (n + 3) // 4
    assert (2 * n) % 2 == n - n == 0
    assert type(n - n + 3) is int
    assert n != m
    assert hash(n * m) == hash(m * n)


def test_ranges_decide_comparisons():
    assert n > 1
    assert n <= 64
    assert n - n // 2 > 0
    assert max(1, n) == n
    assert differ(n, 65)
    assert exceeds(n * m, 3)
    assert not differ(n, m)
    assert agree((n, 3), (m, 3))
    assert not agree((n, 3), (m, 4))


@pytest.mark.parametrize(
    "ask",
    [
        lambda: n < 5, lambda: n > m, lambda: bool(n - 2), lambda: int(n), lambda: float(n), lambda: range(n),
        lambda: np.arange(n), lambda: np.zeros((n, 2)), lambda: np.arange(3) * n, lambda: np.arange(3) < n,
        lambda: float(n / 2), lambda: int(n * 0.5), lambda: bool(1 / n), lambda: 2**n, lambda: [0] * n,
        lambda: n**0.5 < 2, lambda: math.floor(n / 2), lambda: np.arange(3) * (n / 2), lambda: max(n / 2, 1.0),
    ],
)  # fmt: skip
def test_undecidable_comparisons_raise(ask):
    with pytest.raises(Undecided, match="known at run time only"):
        ask()


def test_a_number_that_is_computed_of_sizes_waits():
    assert all(
        map(
            waits,
            (
                n / 2,
                0.5 * n,
                1 / n,
                n**0.5,
                1 - n / m,
                -(n**0.5) + 1,
                (n + 0.5) ** 2,
                3 / (n / 2),
            ),
        )
    )
    assert 1 / n == 1 / n != n / 1
    assert len({1 / n, 1 / n, n / 2}) == 2
    assert str(2 * (n - 0.5)) == "((n + -0.5) * 2)"


def test_sizes_do_not_grow_without_end():
    """A short file can square a size again and again."""
    size = n + m + 1
    with pytest.raises(Undecided, match="too many to compute with"):
        for _ in range(20):
            size = size * size


def value_of_shape(*shape):
    return Value(Type(shape, DType.FP32))


def test_symbols_are_read_off_the_plainest_size():
    a = value_of_shape(n * m, 4)
    b = value_of_shape(2 * n + 3)
    c = value_of_shape(m + n)
    found = size_sources([a, b, c])
    assert {one.name: (w.input, w.axis, w.factor, w.rest) for one, w in found.items()} == {
        "n": (b, 0, 2, 3), "m": (c, 0, 1, n),
    }  # fmt: skip
    assert size_sources([value_of_shape(n // 2), value_of_shape(n * m)]) == {}


def test_sizes_broadcast_as_far_as_they_are_known():
    assert broadcast(value_of_shape(n, 1), value_of_shape(1, m)) == (n, m)
    assert broadcast(value_of_shape(n), value_of_shape(3)) == (3,)
    assert broadcast(value_of_shape(n), value_of_shape(m)) in [(n,), (m,)]

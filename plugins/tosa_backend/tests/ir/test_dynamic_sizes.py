"""Arithmetic on symbolic sizes equals Python's arithmetic on integers."""

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
    """Return the value of a symbolic size for given values of its symbols."""
    if not isinstance(size, Size):
        return size
    total = 0
    for monomial, factor in size.terms.items():
        for one in monomial:
            factor *= atom_at(one, sizes)
        total += factor
    return total


def atom_at(one, sizes):
    """Return the value of a symbol, a quotient or an extreme of sizes."""
    if isinstance(one, Quotient):
        return size_at(one.dividend, **sizes) // size_at(one.divisor, **sizes)
    if isinstance(one, Extreme):
        choose = max if one.larger else min
        return choose(size_at(one.left, **sizes), size_at(one.right, **sizes))
    return sizes[one.name]


# Operator on sizes -> the same operator on integers.
OPERATORS = {
    operator.add: operator.add,
    operator.sub: operator.sub,
    operator.mul: operator.mul,
    operator.floordiv: operator.floordiv,
    operator.mod: operator.mod,
    largest: max,
    smallest: min,
}


@pytest.mark.parametrize("seed", range(300))
def test_expressions_equal_python_and_lie_in_their_range(seed):
    draw = random.Random(seed)
    sizes = {"n": draw.randint(2, 64), "m": draw.randint(2, 64)}
    # Pairs of an expression and its value; each step adds one.
    pairs = [(n, sizes["n"]), (m, sizes["m"])]
    for number in (1, 2, 3, 5, -1, 0, 7):
        pairs.append((number, number))

    for _ in range(8):
        left, left_value = draw.choice(pairs)
        right, right_value = draw.choice(pairs)
        apply = draw.choice(list(OPERATORS))
        lowest_divisor, _ = range_of(right)
        if apply in (operator.floordiv, operator.mod) and lowest_divisor <= 0:
            continue

        result = apply(left, right)

        expected = OPERATORS[apply](left_value, right_value)
        assert size_at(result, **sizes) == expected
        low, high = range_of(result)
        assert low <= expected <= high
        pairs.append((result, expected))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((n + 1) * 64 // (n + 1), 64),
        (n * m * 4 // m, 4 * n),
        (-(-n // 2), (n + 1) // 2),
        ((n + 1) // 2, (n - 1) // 2 + 1),
        (((n - 1) // 2) // 2 + 1, (n + 3) // 4),
        ((2 * n) % 2, 0),
        (n - n, 0),
    ],
)
def test_equal_expressions_compare_equal(left, right):
    assert left == right


def test_different_symbols_compare_unequal():
    assert n != m


def test_sizes_without_symbols_are_integers():
    assert type(n - n + 3) is int


def test_hash_ignores_the_order_of_factors():
    assert hash(n * m) == hash(m * n)


def test_ranges_of_symbols_decide_comparisons():
    """n and m are between 2 and 64."""
    assert n > 1
    assert n <= 64
    assert n - n // 2 > 0
    assert max(1, n) == n
    assert exceeds(n * m, 3)


def test_sizes_differ_only_if_no_values_make_them_equal():
    assert differ(n, 65)
    assert not differ(n, m)


def test_shapes_agree_unless_known_sizes_differ():
    assert agree((n, 3), (m, 3))
    assert not agree((n, 3), (m, 4))


@pytest.mark.parametrize(
    "compute",
    [
        lambda: n < 5, lambda: n > m, lambda: bool(n - 2), lambda: int(n), lambda: float(n), lambda: range(n),
        lambda: np.arange(n), lambda: np.zeros((n, 2)), lambda: np.arange(3) * n, lambda: np.arange(3) < n,
        lambda: float(n / 2), lambda: int(n * 0.5), lambda: bool(1 / n), lambda: 2**n, lambda: [0] * n,
        lambda: n**0.5 < 2, lambda: math.floor(n / 2), lambda: np.arange(3) * (n / 2), lambda: max(n / 2, 1.0),
    ],
)  # fmt: skip
def test_using_an_unknown_size_as_a_number_raises(compute):
    with pytest.raises(Undecided, match="known at run time only"):
        compute()


@pytest.mark.parametrize(
    "number",
    [
        n / 2,
        0.5 * n,
        1 / n,
        n**0.5,
        1 - n / m,
        -(n**0.5) + 1,
        (n + 0.5) ** 2,
        3 / (n / 2),
    ],
    ids=str,
)
def test_fractional_numbers_of_sizes_are_computed_at_run_time(number):
    assert waits(number)


def test_equal_fractional_numbers_compare_and_hash_equal():
    assert 1 / n == 1 / n
    assert 1 / n != n / 1
    assert len({1 / n, 1 / n, n / 2}) == 2


def test_fractional_numbers_print_their_formula():
    assert str(2 * (n - 0.5)) == "((n + -0.5) * 2)"


def test_sizes_with_too_many_terms_are_refused():
    """Otherwise, a short file that squares a size repeatedly could use all memory."""
    size = n + m + 1
    with pytest.raises(Undecided, match="too many to compute with"):
        for _ in range(20):
            size = size * size


def value_of_shape(*shape):
    return Value(Type(shape, DType.FP32))


def test_symbols_are_solved_from_linear_input_sizes():
    product = value_of_shape(n * m, 4)
    linear_in_n = value_of_shape(2 * n + 3)
    sum_of_both = value_of_shape(m + n)

    sources = size_sources([product, linear_in_n, sum_of_both])

    by_name = {symbol.name: source for symbol, source in sources.items()}
    assert by_name.keys() == {"n", "m"}
    # n = (size of axis 0 - 3) / 2
    assert by_name["n"].input is linear_in_n
    assert by_name["n"].axis == 0
    assert by_name["n"].factor == 2
    assert by_name["n"].rest == 3
    # m = (size of axis 0 - n) / 1
    assert by_name["m"].input is sum_of_both
    assert by_name["m"].axis == 0
    assert by_name["m"].factor == 1
    assert by_name["m"].rest == n


def test_symbols_in_quotients_and_products_have_no_source():
    assert size_sources([value_of_shape(n // 2), value_of_shape(n * m)]) == {}


def test_unknown_sizes_broadcast_with_one():
    assert broadcast(value_of_shape(n, 1), value_of_shape(1, m)) == (n, m)


def test_unknown_size_broadcast_with_a_number_is_the_number():
    assert broadcast(value_of_shape(n), value_of_shape(3)) == (3,)


def test_two_unknown_sizes_broadcast_to_either():
    assert broadcast(value_of_shape(n), value_of_shape(m)) in [(n,), (m,)]

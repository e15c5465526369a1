"""Sizes that are known at run time only, and arithmetic on them.

A ``Size`` is a polynomial with integer coefficients of symbols, of quotients that are rounded down, and of maxima and
minima. Code that computes with sizes computes with it as with an int, and the type checker takes it for one: what comes
out without a symbol is an int again. Equal sizes have equal terms, so ``==`` compares expressions, not values: it says
False where two sizes may be equal or not. An order that the ranges of the symbols do not decide raises ``Undecided``,
and so does everything that asks for the number itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, cast

from .formulas import Formula, formula
from .illegal import Undecided

LARGEST_SIZE = (1 << 31) - 1
"""Of a tensor along one axis: files have 32 bits for it."""

Range = tuple[int, int]
"""Both ends are inside."""
ZERO = Fraction(0)


class Symbol(NamedTuple):
    """A size by its name, and the least and the greatest number that it is taken to be."""

    name: str
    low: int = 1
    high: int = LARGEST_SIZE

    def __str__(self) -> str:
        return self.name


class Quotient(NamedTuple):
    """``dividend`` divided by ``divisor`` and rounded down."""

    dividend: int
    divisor: int

    def __str__(self) -> str:
        return f"({_factor(self.dividend)}//{_factor(self.divisor)})"


class Extreme(NamedTuple):
    """The larger of two sizes, or the smaller."""

    larger: bool
    left: int
    right: int

    def __str__(self) -> str:
        return f"{'max' if self.larger else 'min'}({self.left}, {self.right})"


MOST_ATOMS = 256
"""Of a size, those inside of its quotients counted as well: a short file can ask for a polynomial without end."""

Atom = Symbol | Quotient | Extreme
Monomial = tuple[Atom, ...]
"""A product, in the order of ``str``; () is 1."""
Terms = dict[Monomial, int]


class Size:
    """A sum of monomials with coefficients, at least one of which has an atom. Immutable."""

    __slots__ = ("_hash", "_range", "atoms", "terms")

    def __init__(self, terms: Terms) -> None:
        self.atoms = sum([_atoms(one) for monomial in terms for one in monomial]) + len(terms)
        if self.atoms > MOST_ATOMS:
            raise Undecided(f"a size is made of more than {MOST_ATOMS} others, and is not followed any further")
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))
        self._range: Range | None = None

    # ---- arithmetic

    def __add__(self, other: int) -> int:
        return _beside(self, "+", other) if _terms(other) is None else _sum(self, other, 1)

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return _beside(self, "+", other, -1) if _terms(other) is None else _sum(self, other, -1)

    def __rsub__(self, other: int) -> int:
        return (-self) + other

    def __neg__(self) -> int:
        return self * -1

    def __pos__(self) -> int:
        return _as_int(self)

    def __mul__(self, other: int) -> int:
        terms = _terms(other)
        if terms is None:
            return _beside(self, "*", other)  # type: ignore[no-any-return]
        product: Terms = {}
        for mine, a in self.terms.items():
            for theirs, b in terms.items():
                both = _ordered((*mine, *theirs))
                product[both] = product.get(both, 0) + a * b
        return _made(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        return NotImplemented if _terms(other) is None else _quotient(_as_int(self), other)

    def __rfloordiv__(self, other: int) -> int:
        return NotImplemented if _terms(other) is None else _quotient(other, _as_int(self))

    def __mod__(self, other: int) -> int:
        return self - (self // other) * other

    def __rmod__(self, other: int) -> int:
        return other - (other // self) * self

    # ---- comparison

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Size) and self._hash == other._hash and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __lt__(self, other: int) -> bool:
        return _decided(self - other, f"{self} < {other}", lambda low, high: (high < 0, low >= 0))

    def __le__(self, other: int) -> bool:
        return _decided(self - other, f"{self} <= {other}", lambda low, high: (high <= 0, low > 0))

    def __gt__(self, other: int) -> bool:
        return not self <= other

    def __ge__(self, other: int) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return _decided(_as_int(self), f"{self} is 0", lambda low, high: (low > 0 or high < 0, low == high == 0))

    # ---- the number, which is not known

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def _unknown(self, *_: Any, **__: Any) -> Any:
        raise Undecided(f"it needs the size {self} at compile time, which is known at run time only")

    __index__ = __int__ = __float__ = __complex__ = __round__ = __trunc__ = __abs__ = _unknown
    __rpow__ = __lshift__ = __rlshift__ = __array__ = __array_ufunc__ = _unknown

    def __truediv__(self, other: float) -> float:
        return formula("/", _as_int(self), other)

    def __rtruediv__(self, other: float) -> float:
        return formula("/", other, _as_int(self))

    def __pow__(self, other: float) -> float:
        return formula("**", _as_int(self), other)

    def __str__(self) -> str:
        return "".join(_signed(m, c, first=k == 0) for k, (m, c) in enumerate(_sorted(self.terms))) or "0"

    __repr__ = __str__


def _beside(size: Size, function: str, other: Any, sign: int = 1) -> Any:
    """A size plus or times what is no size: a formula if that is a number."""
    return formula(function, _as_int(size), sign * other) if isinstance(other, (float, Formula)) else NotImplemented


def _factor(size: int) -> str:
    return f"({size})" if len(_terms(size) or {}) > 1 else str(size)


def _signed(monomial: Monomial, coefficient: int, first: bool) -> str:
    sign = "-" if coefficient < 0 else "" if first else "+"
    factors = [] if abs(coefficient) == 1 and monomial else [str(abs(coefficient))]
    return sign + "*".join(factors + [str(atom) for atom in monomial])


def _atoms(one: Atom) -> int:
    if isinstance(one, Symbol):
        return 1
    return 1 + sum(map(weight, one[-2:]))


def weight(size: int) -> int:
    """How many atoms a size is made of."""
    return size.atoms if isinstance(size, Size) else 0


def _as_int(size: Size) -> int:
    """What code that computes with sizes takes it for."""
    return cast(int, size)


def _ordered(atoms: Iterable[Atom]) -> Monomial:
    return tuple(sorted(atoms, key=str))


def _sorted(terms: Terms) -> list[tuple[Monomial, int]]:
    """Products of many atoms first, the number last."""
    return sorted(terms.items(), key=lambda term: (-len(term[0]), [str(atom) for atom in term[0]]))


def _terms(size: object) -> Terms | None:
    if isinstance(size, Size):
        return size.terms
    return {(): size} if isinstance(size, int) else None


def _made(terms: Terms) -> int:
    kept = {monomial: c for monomial, c in terms.items() if c}
    return _as_int(Size(kept)) if any(kept) else kept.get((), 0)


def _sum(left: object, right: object, sign: int) -> int:
    terms = dict(_terms(left) or {})
    for monomial, c in (_terms(right) or {}).items():
        terms[monomial] = terms.get(monomial, 0) + sign * c
    return _made(terms)


def _quotient(dividend: int, divisor: int) -> int:
    """``dividend // divisor``, without what divides evenly."""
    if not is_dynamic(divisor):
        return _by_number(dividend, divisor)
    whole, rest = _divided(dividend, divisor)
    return whole + (0 if _is_below(rest, divisor) else atom(Quotient(rest, divisor)))


def _is_below(rest: int, divisor: int) -> bool:
    """Whether ``rest`` is known to be from 0 to less than ``divisor``."""
    return range_of(rest)[0] >= 0 and range_of(divisor - rest)[0] > 0


def _by_number(dividend: int, divisor: int) -> int:
    if divisor < 0:
        return _by_number(-dividend, -divisor)
    if divisor == 0:
        raise ZeroDivisionError("division of a size by zero")
    terms = _terms(dividend) or {}
    whole = _made({m: c // divisor if not m else math.trunc(Fraction(c, divisor)) for m, c in terms.items()})
    rest = dividend - whole * divisor
    if _is_below(rest, divisor):
        return whole
    parts = _sorted(_terms(rest) or {})
    if parts[0][1] < 0:  # rounded up, which is rounded down with more in the dividend
        return whole - _by_number(-rest + divisor - 1, divisor)
    return whole + _rounded_down(rest, divisor)


def _rounded_down(rest: int, divisor: int) -> int:
    """A quotient in lowest terms, and one where a quotient is divided again."""
    terms = _terms(rest) or {}
    common = math.gcd(divisor, *(c for m, c in terms.items() if m))
    if common > 1:
        return _by_number(_made({m: c // common for m, c in terms.items()}), divisor // common)
    inner = next((m[0] for m, c in terms.items() if len(m) == 1 and c == 1 and isinstance(m[0], Quotient)), None)
    if inner is not None and len(terms) - (() in terms) == 1 and type(inner.divisor) is int:
        return _by_number(inner.dividend + terms.get((), 0) * inner.divisor, inner.divisor * divisor)
    return atom(Quotient(rest, divisor))


def _divided(dividend: int, divisor: int) -> tuple[int, int]:
    """Quotient and rest of two polynomials, term by term; the rest may be as large as the dividend."""
    (first, c), *_ = _sorted(_terms(divisor) or {})
    whole = rest = 0
    while dividend_terms := _sorted(_terms(dividend) or {}):
        monomial, k = dividend_terms[0]
        if k == 0:
            break
        left = _without(monomial, first)
        if left is None or k % c:
            term = _made({monomial: k})
            rest, dividend = rest + term, dividend - term
        else:
            term = _made({left: k // c})
            whole, dividend = whole + term, dividend - term * divisor
    return whole, rest


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """``monomial`` divided by ``factor``; None if it has not all of its atoms."""
    left = list(monomial)
    for one in factor:
        if one not in left:
            return None
        left.remove(one)
    return tuple(left)


# ---- making sizes and asking about them


def atom(one: Atom) -> int:
    """An atom as a size; a number if its range has only one."""
    low, high = _range_of_atom(one)
    return low if low == high else _as_int(Size({(one,): 1}))


def symbol(name: str, low: int = 1, high: int = LARGEST_SIZE) -> int:
    """A size of which the name and the range are known."""
    return atom(Symbol(name, low, high))


def is_dynamic(size: object) -> bool:
    """Whether a size is known at run time only."""
    return type(size) is Size


def waits(number: object) -> bool:
    """Whether a number is known at run time only: a size, or what is computed of one."""
    return isinstance(number, (Size, Formula))


def largest(left: int, right: int) -> int:
    """The larger size, also where it is not known which one that is."""
    return _extreme(left, right, True)


def smallest(left: int, right: int) -> int:
    """The smaller size, also where it is not known which one that is."""
    return _extreme(left, right, False)


def _extreme(left: int, right: int, larger: bool) -> int:
    low, high = range_of(left - right)
    if low >= 0:
        return left if larger else right
    if high <= 0:
        return right if larger else left
    first, second = sorted((left, right), key=str)
    return atom(Extreme(larger, first, second))


def agree(left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether two shapes are equal as far as their sizes are known."""
    return left == right or (len(left) == len(right) and not any(map(differ, left, right)))


def differ(left: int, right: int) -> bool:
    """Whether two sizes are known to be different."""
    if not is_dynamic(left) and not is_dynamic(right):
        return left != right
    low, high = range_of(left - right)
    return low > 0 or high < 0


def exceeds(left: int, right: int) -> bool:
    """Whether ``left`` is known to be greater than ``right``."""
    if not is_dynamic(left) and not is_dynamic(right):
        return left > right
    return range_of(left - right)[0] > 0


def products(size: int) -> list[tuple[int, int]]:
    """A size as (product of atoms, factor), the sum of which it is; the one without an atom comes last."""
    return [(_made({monomial: 1}), factor) for monomial, factor in _sorted(_terms(size) or {})]


def symbols(size: int) -> Iterator[Symbol]:
    """The symbols of a size, with repetitions; none of a number."""
    if not isinstance(size, Size):
        return
    for monomial in size.terms:
        for one in monomial:
            if isinstance(one, Symbol):
                yield one
            else:
                for part in one:
                    yield from symbols(part)


# ---- ranges


def range_of(size: int) -> Range:
    """The least and the greatest number that a size can be."""
    if not isinstance(size, Size):
        return size, size
    if size._range is None:
        narrow, relaxed = _range_of_terms(size.terms), _range_of_terms(*_relaxed(size.terms))
        low, high = max(narrow[0], relaxed[0]), min(narrow[1], relaxed[1])
        size._range = math.ceil(low), math.floor(high)
    return size._range


def greatest(size: int) -> int:
    """The greatest number that a size can be."""
    return range_of(size)[1]


def _range_of_terms(
    terms: Mapping[Monomial, Fraction | int], below: Fraction = ZERO, above: Fraction = ZERO
) -> tuple[Fraction, Fraction]:
    """Of a sum that is up to ``below`` less and ``above`` more than its terms say."""
    low, high = -below, above
    for monomial, c in terms.items():
        ends = [Fraction(end * c) for end in _range_of_product(monomial)]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _range_of_product(monomial: Monomial) -> Range:
    low, high = 1, 1
    for one in monomial:
        ends = [a * b for a in (low, high) for b in _range_of_atom(one)]
        low, high = min(ends), max(ends)
    return low, high


def _range_of_atom(one: Atom) -> Range:
    if isinstance(one, Symbol):
        return one.low, one.high
    if isinstance(one, Extreme):
        (a, b), (c, d) = range_of(one.left), range_of(one.right)
        return (max(a, c), max(b, d)) if one.larger else (min(a, c), min(b, d))
    (low, high), (least, most) = range_of(one.dividend), range_of(one.divisor)
    ends = [end // by for end in (low, high) for by in (max(least, 1), max(most, 1))]
    return min(ends), max(ends)


def _relaxed(terms: Terms) -> tuple[dict[Monomial, Fraction], Fraction, Fraction]:
    """The terms with x / d in place of x // d, and how far below and above that the sum can be."""
    relaxed: dict[Monomial, Fraction] = {}
    below = above = ZERO
    for monomial, c in terms.items():
        parts: Mapping[Monomial, int] = {monomial: 1}
        by = 1
        if len(monomial) == 1 and isinstance(quotient := monomial[0], Quotient) and type(quotient.divisor) is int:
            parts, by = _terms(quotient.dividend) or {}, quotient.divisor
            rounded = Fraction(c * (by - 1), by)
            below, above = below + max(rounded, ZERO), above + max(-rounded, ZERO)
        for part, k in parts.items():
            relaxed[part] = relaxed.get(part, ZERO) + Fraction(c * k, by)
    return relaxed, below, above


def _decided(size: int, what: str, answers: Callable[[int, int], tuple[bool, bool]]) -> bool:
    yes, no = answers(*range_of(size))
    if yes or no:
        return yes
    raise Undecided(f"whether {what} is known at run time only")

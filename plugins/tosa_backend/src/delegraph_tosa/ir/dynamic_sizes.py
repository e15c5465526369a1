"""Sizes that are known at run time only, and arithmetic on them.

A ``Size`` is a polynomial with integer coefficients. Its variables ("atoms") are
symbols, quotients rounded down, maxima and minima. Code computes with a Size as with an
int, and is typed for int; a result without atoms is an int again. ``==`` compares
expressions, not values: it is False for two sizes that may be equal at run time. A
comparison by ``<`` that the ranges of the symbols do not decide raises ``Undecided``,
and so does every use of the number itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, cast

from .formulas import Formula, formula
from .illegal import Undecided

LARGEST_SIZE = (1 << 31) - 1
"""The largest size of one axis of a tensor: files have 32 bits for it."""

Range = tuple[int, int]
"""(smallest, largest), both included."""
ZERO = Fraction(0)


class Symbol(NamedTuple):
    """A size by its name, with the range in which it is assumed to be."""

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


MOST_PARTS = 256
"""The most parts of a size. Files could otherwise demand endless polynomials."""

Atom = Symbol | Quotient | Extreme
Monomial = tuple[Atom, ...]
"""A product of atoms, sorted by ``str``; () is 1."""
Terms = dict[Monomial, int]
"""Monomial -> its coefficient."""


class Size:
    """A sum of monomials with coefficients, at least one of which has an atom.

    Immutable. ``parts``: the number of terms and atoms, with the atoms inside of
    others. Raises Undecided for more than MOST_PARTS.
    """

    __slots__ = ("_hash", "_range", "parts", "terms")

    def __init__(self, terms: Terms) -> None:
        atoms = [_parts_of_atom(atom) for product in terms for atom in product]
        # a term counts as a part, too, so that long sums of numbers are limited
        self.parts = sum(atoms) + len(terms)
        if self.parts > MOST_PARTS:
            raise Undecided(
                f"a size has more than {MOST_PARTS} parts, which is too many to"
                " compute with"
            )
        self.terms = terms
        self._hash = hash(frozenset(terms.items()))
        self._range: Range | None = None

    # ---- arithmetic

    def __add__(self, other: int) -> int:
        return (
            _beside(self, "+", other) if _terms(other) is None else _sum(self, other, 1)
        )

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        return (
            _beside(self, "+", other, -1)
            if _terms(other) is None
            else _sum(self, other, -1)
        )

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
        return (
            NotImplemented if _terms(other) is None else _quotient(_as_int(self), other)
        )

    def __rfloordiv__(self, other: int) -> int:
        return (
            NotImplemented if _terms(other) is None else _quotient(other, _as_int(self))
        )

    def __mod__(self, other: int) -> int:
        return self - (self // other) * other

    def __rmod__(self, other: int) -> int:
        return other - (other // self) * self

    # ---- comparison

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Size)
            and self._hash == other._hash
            and self.terms == other.terms
        )

    def __hash__(self) -> int:
        return self._hash

    def __lt__(self, other: int) -> bool:
        return _decided(
            self - other, f"{self} < {other}", lambda low, high: (high < 0, low >= 0)
        )

    def __le__(self, other: int) -> bool:
        return _decided(
            self - other, f"{self} <= {other}", lambda low, high: (high <= 0, low > 0)
        )

    def __gt__(self, other: int) -> bool:
        return not self <= other

    def __ge__(self, other: int) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return _decided(
            _as_int(self),
            f"{self} is 0",
            lambda low, high: (low > 0 or high < 0, low == high == 0),
        )

    # ---- uses of the number itself, which is not known

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def _unknown(self, *_: Any, **__: Any) -> Any:
        raise Undecided(
            f"the size {self} must be known at compile time, but is known at run time only"
        )

    __index__ = __int__ = __float__ = __complex__ = __round__ = __trunc__ = __abs__ = (
        _unknown
    )
    __rpow__ = __lshift__ = __rlshift__ = __array__ = __array_ufunc__ = _unknown

    def __truediv__(self, other: float) -> float:
        return formula("/", _as_int(self), other)

    def __rtruediv__(self, other: float) -> float:
        return formula("/", other, _as_int(self))

    def __pow__(self, other: float) -> float:
        return formula("**", _as_int(self), other)

    def __str__(self) -> str:
        return (
            "".join(
                _signed(m, c, first=k == 0)
                for k, (m, c) in enumerate(_sorted(self.terms))
            )
            or "0"
        )

    __repr__ = __str__


def _beside(size: Size, function: str, other: Any, sign: int = 1) -> Any:
    """Return a size plus or times a float or Formula, as a Formula.

    NotImplemented for anything else.
    """
    return (
        formula(function, _as_int(size), sign * other)
        if isinstance(other, (float, Formula))
        else NotImplemented
    )


def _factor(size: int) -> str:
    """Return a size as a factor in text: in parentheses if it is a sum."""
    return f"({size})" if len(_terms(size) or {}) > 1 else str(size)


def _signed(monomial: Monomial, coefficient: int, first: bool) -> str:
    """Return a term as text, with its sign unless it is a positive ``first`` term."""
    sign = "" if first else "+"
    if coefficient < 0:
        sign = "-"
    factors = [] if abs(coefficient) == 1 and monomial else [str(abs(coefficient))]
    return sign + "*".join(factors + [str(atom) for atom in monomial])


def _parts_of_atom(one: Atom) -> int:
    """Return how many atoms an atom has, those inside of it included."""
    if isinstance(one, Symbol):
        return 1
    return 1 + sum(map(weight, one[-2:]))


def weight(size: int) -> int:
    """Return how many parts a size has; 0 for a number."""
    return size.parts if isinstance(size, Size) else 0


def _as_int(size: Size) -> int:
    """Return ``size``, typed as the int for which code takes it."""
    return cast(int, size)


def _ordered(atoms: Iterable[Atom]) -> Monomial:
    """Return the product of ``atoms``."""
    return tuple(sorted(atoms, key=str))


def _sorted(terms: Terms) -> list[tuple[Monomial, int]]:
    """Return the terms in order: products of many atoms first, the number last."""
    return sorted(
        terms.items(), key=lambda term: (-len(term[0]), [str(atom) for atom in term[0]])
    )


def _terms(size: object) -> Terms | None:
    """Return the terms of a size or an int; None for anything else."""
    if isinstance(size, Size):
        return size.terms
    return {(): size} if isinstance(size, int) else None


def _made(terms: Terms) -> int:
    """Return the size with these terms; an int if no term has an atom."""
    nonzero = {monomial: c for monomial, c in terms.items() if c}
    return _as_int(Size(nonzero)) if any(nonzero) else nonzero.get((), 0)


def _sum(left: object, right: object, sign: int) -> int:
    """Return left + sign * right, of two sizes."""
    terms = dict(_terms(left) or {})
    for monomial, c in (_terms(right) or {}).items():
        terms[monomial] = terms.get(monomial, 0) + sign * c
    return _made(terms)


def _quotient(dividend: int, divisor: int) -> int:
    """Return ``dividend // divisor``.

    The part of the dividend that divides evenly is no quotient.
    """
    if not is_dynamic(divisor):
        return _by_number(dividend, divisor)
    whole, rest = _divided(dividend, divisor)
    return whole + (0 if _is_below(rest, divisor) else atom(Quotient(rest, divisor)))


def _is_below(rest: int, divisor: int) -> bool:
    """Return whether 0 <= ``rest`` < ``divisor`` is known."""
    return range_of(rest)[0] >= 0 and range_of(divisor - rest)[0] > 0


def _by_number(dividend: int, divisor: int) -> int:
    """Return ``dividend // divisor`` for an int divisor."""
    if divisor < 0:
        return _by_number(-dividend, -divisor)
    if divisor == 0:
        raise ZeroDivisionError("division of a size by zero")
    terms = _terms(dividend) or {}
    whole = _made(
        {
            m: c // divisor if not m else math.trunc(Fraction(c, divisor))
            for m, c in terms.items()
        }
    )
    rest = dividend - whole * divisor
    if _is_below(rest, divisor):
        return whole
    parts = _sorted(_terms(rest) or {})
    # whole + floor(rest / divisor); for a negative rest: -ceil(-rest / divisor)
    if parts[0][1] < 0:
        return whole - _by_number(-rest + divisor - 1, divisor)
    return whole + _rounded_down(rest, divisor)


def _rounded_down(rest: int, divisor: int) -> int:
    """Return ``rest // divisor`` as a quotient in lowest terms.

    (x // a + b) // c becomes (x + a * b) // (a * c).
    """
    terms = _terms(rest) or {}
    common = math.gcd(divisor, *(c for m, c in terms.items() if m))
    if common > 1:
        return _by_number(
            _made({m: c // common for m, c in terms.items()}), divisor // common
        )
    inner = next(
        (
            m[0]
            for m, c in terms.items()
            if len(m) == 1 and c == 1 and isinstance(m[0], Quotient)
        ),
        None,
    )
    if (
        inner is not None
        and len(terms) - (() in terms) == 1
        and type(inner.divisor) is int
    ):
        return _by_number(
            inner.dividend + terms.get((), 0) * inner.divisor, inner.divisor * divisor
        )
    return atom(Quotient(rest, divisor))


def _divided(dividend: int, divisor: int) -> tuple[int, int]:
    """Return (quotient, remainder) of two polynomials by polynomial division.

    The remainder may be larger than ``divisor``.
    """
    (first, c), *_ = _sorted(_terms(divisor) or {})
    whole = rest = 0
    while dividend_terms := _sorted(_terms(dividend) or {}):
        monomial, k = dividend_terms[0]
        if k == 0:
            break
        ratio = _without(monomial, first)
        if ratio is None or k % c:
            term = _made({monomial: k})
            rest = rest + term
            dividend = dividend - term
        else:
            term = _made({ratio: k // c})
            whole = whole + term
            dividend = dividend - term * divisor
    return whole, rest


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """Return ``monomial / factor``.

    None if ``monomial`` does not have all atoms of ``factor``.
    """
    atoms = list(monomial)
    for one in factor:
        if one not in atoms:
            return None
        atoms.remove(one)
    return tuple(atoms)


# ---- new sizes, and questions about sizes


def atom(one: Atom) -> int:
    """Return an atom as a size; an int if its range has only one number."""
    low, high = _range_of_atom(one)
    return low if low == high else _as_int(Size({(one,): 1}))


def symbol(name: str, low: int = 1, high: int = LARGEST_SIZE) -> int:
    """Return a new size with a name and a range."""
    return atom(Symbol(name, low, high))


def is_dynamic(size: object) -> bool:
    """Return whether a size is known at run time only."""
    return type(size) is Size


def waits(number: object) -> bool:
    """Return whether a number is known only at run time: a size or a formula."""
    return isinstance(number, (Size, Formula))


def largest(left: int, right: int) -> int:
    """Return the larger of two sizes.

    An Extreme if it is not known which one that is.
    """
    return _extreme(left, right, True)


def smallest(left: int, right: int) -> int:
    """Return the smaller of two sizes.

    An Extreme if it is not known which one that is.
    """
    return _extreme(left, right, False)


def _extreme(left: int, right: int, larger: bool) -> int:
    """Return ``largest`` or ``smallest``."""
    low, high = range_of(left - right)
    if low >= 0:
        return left if larger else right
    if high <= 0:
        return right if larger else left
    first, second = sorted((left, right), key=str)
    return atom(Extreme(larger, first, second))


def agree(left: Sequence[int], right: Sequence[int]) -> bool:
    """Return whether two shapes of equal rank may be equal."""
    return left == right or (
        len(left) == len(right) and not any(map(differ, left, right))
    )


def differ(left: int, right: int) -> bool:
    """Return whether two sizes are known to differ."""
    if not is_dynamic(left) and not is_dynamic(right):
        return left != right
    low, high = range_of(left - right)
    return low > 0 or high < 0


def exceeds(left: int, right: int) -> bool:
    """Return whether ``left`` is known to be greater than ``right``."""
    if not is_dynamic(left) and not is_dynamic(right):
        return left > right
    return range_of(left - right)[0] > 0


def products(size: int) -> list[tuple[int, int]]:
    """Return the terms of a size as (product of atoms, factor), the number last.

    The size is the sum of product * factor.
    """
    return [
        (_made({monomial: 1}), factor)
        for monomial, factor in _sorted(_terms(size) or {})
    ]


def symbols(size: int) -> Iterator[Symbol]:
    """Return the symbols of a size, with repetitions; none for a number."""
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
    """Return the smallest and the largest number that a size can be."""
    if not isinstance(size, Size):
        return size, size
    if size._range is None:
        # both are valid bounds; that of relaxed terms is narrower where x and x // d
        # cancel
        narrow = _range_of_terms(size.terms)
        relaxed = _range_of_terms(*_relaxed(size.terms))
        low = max(narrow[0], relaxed[0])
        high = min(narrow[1], relaxed[1])
        size._range = math.ceil(low), math.floor(high)
    return size._range


def greatest(size: int) -> int:
    """Return the largest number that a size can be."""
    return range_of(size)[1]


def _range_of_terms(
    terms: Mapping[Monomial, Fraction | int],
    below: Fraction = ZERO,
    above: Fraction = ZERO,
) -> tuple[Fraction, Fraction]:
    """Return the range of the sum of ``terms``, extended by ``below`` and ``above``."""
    low = -below
    high = above
    for monomial, c in terms.items():
        ends = [Fraction(end * c) for end in _range_of_product(monomial)]
        low = low + min(ends)
        high = high + max(ends)
    return low, high


def _range_of_product(monomial: Monomial) -> Range:
    """Return the range of a product of atoms."""
    low = 1
    high = 1
    for one in monomial:
        ends = [a * b for a in (low, high) for b in _range_of_atom(one)]
        low = min(ends)
        high = max(ends)
    return low, high


def _range_of_atom(one: Atom) -> Range:
    """Return the range of an atom; the divisor of a quotient counts as at least 1."""
    if isinstance(one, Symbol):
        return one.low, one.high
    if isinstance(one, Extreme):
        left = range_of(one.left)
        right = range_of(one.right)
        choose = max if one.larger else min
        return choose(left[0], right[0]), choose(left[1], right[1])
    low, high = range_of(one.dividend)
    least, most = range_of(one.divisor)
    ends = [end // by for end in (low, high) for by in (max(least, 1), max(most, 1))]
    return min(ends), max(ends)


def _relaxed(terms: Terms) -> tuple[dict[Monomial, Fraction], Fraction, Fraction]:
    """Return terms with x / d for x // d, and the error below and above."""
    relaxed: dict[Monomial, Fraction] = {}
    below = above = ZERO
    for monomial, c in terms.items():
        parts: Mapping[Monomial, int] = {monomial: 1}
        by = 1
        if (
            len(monomial) == 1
            and isinstance(quotient := monomial[0], Quotient)
            and type(quotient.divisor) is int
        ):
            parts = _terms(quotient.dividend) or {}
            by = quotient.divisor
            rounded = Fraction(c * (by - 1), by)
            below = below + max(rounded, ZERO)
            above = above + max(-rounded, ZERO)
        for part, k in parts.items():
            relaxed[part] = relaxed.get(part, ZERO) + Fraction(c * k, by)
    return relaxed, below, above


def _decided(
    size: int, what: str, answers: Callable[[int, int], tuple[bool, bool]]
) -> bool:
    """Return whether the condition ``what`` on ``size`` is true.

    Raises Undecided if its range does not decide. ``answers`` takes the range and
    returns (surely true, surely false).
    """
    yes, no = answers(*range_of(size))
    if yes or no:
        return yes
    raise Undecided(f"whether {what} is known at run time only")

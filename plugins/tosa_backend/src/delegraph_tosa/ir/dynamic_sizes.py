"""Sizes that are known at run time only (dynamic sizes), and arithmetic on them.

A ``Size`` is a polynomial with integer coefficients, such as ``2*n*m + n//4 + 1``. Its
variables ("atoms") are symbols, quotients rounded down, maxima and minima. Code
computes with a Size as with an int, and is typed for int; a result without atoms is an
int again. ``==`` compares expressions, not values: it is False for two sizes that may
be equal at run time. A comparison by ``<`` that the ranges of the symbols do not decide
raises ``Undecided``, and so does every use of the number itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
        return f"({_text_of_factor(self.dividend)}//{_text_of_factor(self.divisor)})"


class Extreme(NamedTuple):
    """The larger of two sizes, or the smaller if ``larger`` is False."""

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

    Immutable. ``parts`` is the number of terms and atoms, including atoms inside of
    other atoms. Raises Undecided for more than MOST_PARTS.
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
        if _terms(other) is None:
            return _formula(self, "+", other)  # type: ignore[no-any-return]
        return _sum(self, other, sign=1)

    __radd__ = __add__

    def __sub__(self, other: int) -> int:
        if _terms(other) is None:
            return _formula(self, "+", other, sign=-1)  # type: ignore[no-any-return]
        return _sum(self, other, sign=-1)

    def __rsub__(self, other: int) -> int:
        return (-self) + other

    def __neg__(self) -> int:
        return self * -1

    def __pos__(self) -> int:
        return _as_int(self)

    def __mul__(self, other: int) -> int:
        terms = _terms(other)
        if terms is None:
            return _formula(self, "*", other)  # type: ignore[no-any-return]
        product: Terms = {}
        for mine, a in self.terms.items():
            for theirs, b in terms.items():
                monomial = _ordered((*mine, *theirs))
                product[monomial] = product.get(monomial, 0) + a * b
        return _size(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> int:
        if _terms(other) is None:
            return NotImplemented
        return _quotient(_as_int(self), other)

    def __rfloordiv__(self, other: int) -> int:
        if _terms(other) is None:
            return NotImplemented
        return _quotient(other, _as_int(self))

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
        low, high = range_of(self - other)
        return _decided(f"{self} < {other}", yes=high < 0, no=low >= 0)

    def __le__(self, other: int) -> bool:
        low, high = range_of(self - other)
        return _decided(f"{self} <= {other}", yes=high <= 0, no=low > 0)

    def __gt__(self, other: int) -> bool:
        return not self <= other

    def __ge__(self, other: int) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        low, high = range_of(_as_int(self))
        return _decided(f"{self} is 0", yes=low > 0 or high < 0, no=low == high == 0)

    # ---- uses of the number itself, which is not known

    def __divmod__(self, other: int) -> tuple[int, int]:
        return self // other, self % other

    def _unknown(self, *_: Any, **__: Any) -> Any:
        """Refuse an operation that needs the number."""
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
        texts = [_text_of_term(m, c) for m, c in _sorted(self.terms)]
        return "".join(texts).removeprefix("+") or "0"

    __repr__ = __str__


def _formula(size: Size, function: str, other: Any, sign: int = 1) -> Any:
    """Return ``function`` of a size and ``sign * other``, a float or a Formula.

    NotImplemented if ``other`` is anything else.
    """
    if not isinstance(other, (float, Formula)):
        return NotImplemented
    return formula(function, _as_int(size), sign * other)


def _text_of_factor(size: int) -> str:
    """Return a size as a factor in text: in parentheses if it is a sum."""
    return f"({size})" if len(_terms(size) or {}) > 1 else str(size)


def _text_of_term(monomial: Monomial, coefficient: int) -> str:
    """Return a term as text, with its sign: ``+2*n``."""
    sign = "-" if coefficient < 0 else "+"
    factors = [str(atom) for atom in monomial]
    if abs(coefficient) != 1 or not factors:
        factors = [str(abs(coefficient)), *factors]
    return sign + "*".join(factors)


def _parts_of_atom(atom: Atom) -> int:
    """Return how many parts an atom has, including those inside of it."""
    if isinstance(atom, Symbol):
        return 1
    if isinstance(atom, Quotient):
        return 1 + parts_of(atom.dividend) + parts_of(atom.divisor)
    return 1 + parts_of(atom.left) + parts_of(atom.right)


def parts_of(size: int) -> int:
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

    def key(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
        monomial, _ = term
        return -len(monomial), [str(atom) for atom in monomial]

    return sorted(terms.items(), key=key)


def _terms(size: object) -> Terms | None:
    """Return the terms of a size or an int; None for anything else."""
    if isinstance(size, Size):
        return size.terms
    return {(): size} if isinstance(size, int) else None


def _size(terms: Terms) -> int:
    """Return the size with these terms; an int if no term has an atom."""
    nonzero = {monomial: c for monomial, c in terms.items() if c}
    if not any(nonzero):
        return nonzero.get((), 0)
    return _as_int(Size(nonzero))


def _sum(left: object, right: object, sign: int) -> int:
    """Return ``left + sign * right``, of two sizes."""
    terms = dict(_terms(left) or {})
    for monomial, c in (_terms(right) or {}).items():
        terms[monomial] = terms.get(monomial, 0) + sign * c
    return _size(terms)


def _quotient(dividend: int, divisor: int) -> int:
    """Return ``dividend // divisor``.

    Only the part of the dividend that does not divide evenly becomes a Quotient:
    ``(2*n*m + k) // n`` -> ``2*m + k//n``.
    """
    if not is_dynamic(divisor):
        return _quotient_by_int(dividend, divisor)
    whole, rest = _divide_polynomials(dividend, divisor)
    if _is_remainder(rest, divisor):
        return whole
    return whole + size_of_atom(Quotient(rest, divisor))


def _is_remainder(rest: int, divisor: int) -> bool:
    """Return whether it is known that 0 <= ``rest`` < ``divisor``."""
    return range_of(rest)[0] >= 0 and range_of(divisor - rest)[0] > 0


def _quotient_by_int(dividend: int, divisor: int) -> int:
    """Return ``dividend // divisor`` for an int ``divisor``.

    ``(9*n + 6) // 4`` -> ``2*n + 1 + (n + 2)//4``.
    """
    if divisor < 0:
        return _quotient_by_int(-dividend, -divisor)
    if divisor == 0:
        raise ZeroDivisionError("division of a size by zero")
    whole_terms: Terms = {}
    for monomial, c in (_terms(dividend) or {}).items():
        if monomial:
            whole_terms[monomial] = math.trunc(Fraction(c, divisor))
        else:
            whole_terms[monomial] = c // divisor
    whole = _size(whole_terms)
    rest = dividend - whole * divisor
    if _is_remainder(rest, divisor):
        return whole
    # the quotient is whole + floor(rest / divisor)
    _, first_coefficient = _sorted(_terms(rest) or {})[0]
    if first_coefficient < 0:
        # floor(rest / divisor) = -ceil(-rest / divisor)
        return whole - _quotient_by_int(-rest + divisor - 1, divisor)
    return whole + _quotient_in_lowest_terms(rest, divisor)


def _quotient_in_lowest_terms(rest: int, divisor: int) -> int:
    """Return ``rest // divisor`` as a quotient in lowest terms.

    ``(2*n + 1) // 4`` -> ``n // 2``; ``(x//a + b) // c`` -> ``(x + a*b) // (a*c)``.
    """
    terms = _terms(rest) or {}
    common = math.gcd(divisor, *(c for m, c in terms.items() if m))
    if common > 1:
        shortened = _size({m: c // common for m, c in terms.items()})
        return _quotient_by_int(shortened, divisor // common)
    inner = _only_quotient(terms)
    if inner is None:
        return size_of_atom(Quotient(rest, divisor))
    offset = terms.get((), 0)
    dividend = inner.dividend + offset * inner.divisor
    return _quotient_by_int(dividend, inner.divisor * divisor)


def _only_quotient(terms: Terms) -> Quotient | None:
    """Return the Quotient of terms that are a Quotient by an int, plus an int.

    None for all other terms.
    """
    with_atoms = [term for term in terms.items() if term[0]]
    if len(with_atoms) != 1:
        return None
    monomial, coefficient = with_atoms[0]
    atom = monomial[0]
    if len(monomial) != 1 or coefficient != 1 or not isinstance(atom, Quotient):
        return None
    return None if is_dynamic(atom.divisor) else atom


def _divide_polynomials(dividend: int, divisor: int) -> tuple[int, int]:
    """Return (quotient, remainder) of two polynomials by polynomial division.

    The remainder may be larger than ``divisor``.
    """
    (first, c), *_ = _sorted(_terms(divisor) or {})
    whole = 0
    rest = 0
    while dividend != 0:
        monomial, k = _sorted(_terms(dividend) or {})[0]
        ratio = _monomial_ratio(monomial, first)
        if ratio is None or k % c:
            term = _size({monomial: k})
            rest = rest + term
            dividend = dividend - term
        else:
            term = _size({ratio: k // c})
            whole = whole + term
            dividend = dividend - term * divisor
    return whole, rest


def _monomial_ratio(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """Return ``monomial / factor``.

    None if ``monomial`` does not have all atoms of ``factor``.
    """
    atoms = list(monomial)
    for atom in factor:
        if atom not in atoms:
            return None
        atoms.remove(atom)
    return tuple(atoms)


# ---- new sizes, and questions about sizes


def size_of_atom(atom: Atom) -> int:
    """Return an atom as a size; an int if its range has only one number."""
    low, high = _range_of_atom(atom)
    return low if low == high else _as_int(Size({(atom,): 1}))


def symbol(name: str, low: int = 1, high: int = LARGEST_SIZE) -> int:
    """Return a new size with a name and a range."""
    return size_of_atom(Symbol(name, low, high))


def is_dynamic(size: object) -> bool:
    """Return whether a size is known at run time only."""
    return type(size) is Size


def waits(number: object) -> bool:
    """Return whether a number is known at run time only: a Size or a Formula."""
    return isinstance(number, (Size, Formula))


def largest(left: int, right: int) -> int:
    """Return the larger of two sizes.

    An Extreme if it is not known which one that is.
    """
    return _extreme(left, right, larger=True)


def smallest(left: int, right: int) -> int:
    """Return the smaller of two sizes.

    An Extreme if it is not known which one that is.
    """
    return _extreme(left, right, larger=False)


def _extreme(left: int, right: int, larger: bool) -> int:
    """Return ``largest`` or ``smallest``."""
    low, high = range_of(left - right)
    if low >= 0:
        return left if larger else right
    if high <= 0:
        return right if larger else left
    first, second = sorted((left, right), key=str)
    return size_of_atom(Extreme(larger, first, second))


def agree(left: Sequence[int], right: Sequence[int]) -> bool:
    """Return whether two shapes may be equal."""
    if left == right:
        return True
    return len(left) == len(right) and not any(map(differ, left, right))


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


class Term(NamedTuple):
    """A term of a size: ``product``, a size, times ``factor``, an int."""

    product: int
    factor: int


def products(size: int) -> list[Term]:
    """Return the terms of which a size is the sum.

    A term without atoms comes last, with a ``product`` of 1.
    """
    terms = _sorted(_terms(size) or {})
    return [Term(_size({monomial: 1}), factor) for monomial, factor in terms]


def symbols(size: int) -> Iterator[Symbol]:
    """Return the symbols of a size, with repetitions; none for a number."""
    if not isinstance(size, Size):
        return
    for monomial in size.terms:
        for atom in monomial:
            if isinstance(atom, Symbol):
                yield atom
            else:
                for part in atom:
                    yield from symbols(part)


# ---- ranges


def range_of(size: int) -> Range:
    """Return the smallest and the largest number that a size can be."""
    if not isinstance(size, Size):
        return size, size
    if size._range is None:
        # both ranges are right; the relaxed one is narrower if x and x // d cancel
        exact_low, exact_high = _range_of_terms(size.terms)
        relaxed_low, relaxed_high = _relaxed_range(size.terms)
        low = max(exact_low, relaxed_low)
        high = min(exact_high, relaxed_high)
        size._range = math.ceil(low), math.floor(high)
    return size._range


def greatest(size: int) -> int:
    """Return the largest number that a size can be."""
    return range_of(size)[1]


def _range_of_terms(
    terms: Mapping[Monomial, Fraction | int],
) -> tuple[Fraction, Fraction]:
    """Return the range of the sum of ``terms``, as if they were independent."""
    low = ZERO
    high = ZERO
    for monomial, c in terms.items():
        ends = [Fraction(end * c) for end in _range_of_product(monomial)]
        low = low + min(ends)
        high = high + max(ends)
    return low, high


def _range_of_product(monomial: Monomial) -> Range:
    """Return the range of a product of atoms."""
    low = 1
    high = 1
    for atom in monomial:
        first, last = _range_of_atom(atom)
        ends = [low * first, low * last, high * first, high * last]
        low = min(ends)
        high = max(ends)
    return low, high


def _range_of_atom(atom: Atom) -> Range:
    """Return the range of an atom; the divisor of a quotient counts as at least 1."""
    if isinstance(atom, Symbol):
        return atom.low, atom.high
    if isinstance(atom, Extreme):
        left = range_of(atom.left)
        right = range_of(atom.right)
        choose = max if atom.larger else min
        return choose(left[0], right[0]), choose(left[1], right[1])
    low, high = range_of(atom.dividend)
    least, most = range_of(atom.divisor)
    least = max(least, 1)
    most = max(most, 1)
    ends = [low // least, low // most, high // least, high // most]
    return min(ends), max(ends)


def _relaxed_range(terms: Terms) -> tuple[Fraction, Fraction]:
    """Return the range of the sum of ``terms`` with x / d for each x // d.

    x // d is at most (d - 1) / d less than x / d, by which the range is extended.
    ``n - 2*(n//2)`` is relaxed to ``n - n`` and has the range 0 to 1.
    """
    relaxed: dict[Monomial, Fraction] = {}
    below = ZERO
    above = ZERO
    for monomial, c in terms.items():
        atom = monomial[0] if len(monomial) == 1 else None
        if not isinstance(atom, Quotient) or is_dynamic(atom.divisor):
            relaxed[monomial] = relaxed.get(monomial, ZERO) + c
            continue
        rounded = Fraction(c * (atom.divisor - 1), atom.divisor)
        below = below + max(rounded, ZERO)
        above = above + max(-rounded, ZERO)
        for part, k in (_terms(atom.dividend) or {}).items():
            share = Fraction(c * k, atom.divisor)
            relaxed[part] = relaxed.get(part, ZERO) + share
    low, high = _range_of_terms(relaxed)
    return low - below, high + above


def _decided(condition: str, yes: bool, no: bool) -> bool:
    """Return whether a condition is true, by what is known of it.

    ``yes`` is whether it is surely true, ``no`` whether it is surely false. Raises
    Undecided if it is neither; ``condition`` is its text for the message.
    """
    if yes or no:
        return yes
    raise Undecided(f"whether {condition} is known at run time only")

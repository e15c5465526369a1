"""Numbers that are computed from dynamic sizes, but are no sizes: ``n ** 0.5``.

Code computes with a ``Formula`` as with a float: arithmetic returns another Formula,
and every use of the number itself raises ``Undecided``. ``==`` compares expressions,
not values.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from .illegal import Undecided

Number = float
"""A number, a size or a formula."""


class Formula:
    """Function ``+``, ``*``, ``/`` or ``**`` of two numbers, at least one dynamic."""

    __slots__ = ("function", "left", "right")

    def __init__(self, function: str, left: Number, right: Number) -> None:
        self.function = function
        self.left = left
        self.right = right

    def _as_float(self) -> Number:
        """Return the formula, typed as the float for which code takes it."""
        return cast(float, self)

    def __add__(self, other: Number) -> Number:
        return formula("+", self._as_float(), other)

    __radd__ = __add__

    def __mul__(self, other: Number) -> Number:
        return formula("*", self._as_float(), other)

    __rmul__ = __mul__

    def __neg__(self) -> Number:
        return self * -1

    def __sub__(self, other: Number) -> Number:
        return self + -other

    def __rsub__(self, other: Number) -> Number:
        return -self + other

    def __truediv__(self, other: Number) -> Number:
        return formula("/", self._as_float(), other)

    def __rtruediv__(self, other: Number) -> Number:
        return formula("/", other, self._as_float())

    def __pow__(self, other: Number) -> Number:
        return formula("**", self._as_float(), other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and _parts(self) == _parts(other)

    def __hash__(self) -> int:
        return hash(_parts(self))

    def _unknown(self, *_: Any, **__: Any) -> Any:
        """Refuse an operation that needs the number."""
        raise Undecided(
            f"{self} must be known at compile time, but is known at run time only"
        )

    __float__ = __int__ = __index__ = __bool__ = __round__ = __trunc__ = __floor__ = (
        __ceil__
    ) = __abs__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = __mod__ = __rmod__ = __floordiv__ = (
        __rfloordiv__
    ) = __rpow__ = _unknown
    __array__ = __array_ufunc__ = _unknown

    def __str__(self) -> str:
        return f"({self.left} {self.function} {self.right})"

    __repr__ = __str__


def _parts(formula: Formula) -> tuple[Any, ...]:
    """Return the parts by which two formulas are compared."""
    return formula.function, formula.left, formula.right


def formula(function: str, left: Number, right: Number) -> Number:
    """Return a Formula, typed as the float for which code takes it."""
    return cast(float, Formula(function, left, right))


class Relation(NamedTuple):
    """A comparison of two sizes, such as ``n > 4``; its negation if ``not_``.

    ``function`` is ``>``, ``>=`` or ``==``.
    """

    function: str
    left: int
    right: int
    not_: bool = False

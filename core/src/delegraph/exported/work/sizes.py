"""Sizes that are known at run time only, in a grammar of our own: reading one evaluates no text.

A whole number is itself, a symbol ``{"s": 0}``, a float ``{"f": its bits}``, and anything else a list: the name of a
function of ``FUNCTIONS`` and its operands. Operands of commutative functions are sorted by how they are written, since
sympy's own order follows the names of symbols.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch._guards import ShapeGuard, SLoc
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.symbol import SymT, make_symbol, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges

from ...errors import FormatError

_OF_TORCH = """CeilDiv CeilToInt CleanDiv FloatPow FloatTrueDiv FloorDiv FloorToInt Identity IntTrueDiv LShift Max Min
    Mod ModularIndexing PowByNatural PythonMod RShift RoundDecimal RoundToInt ToFloat TruncToFloat TruncToInt
    Where""".split()
_CLASSES = (
    *(cls for name, cls in vars(functions).items() if name in _OF_TORCH or name.startswith("OpaqueUnaryFn_")),
    *(sympy.Add, sympy.Mul, sympy.Pow, sympy.Rational, sympy.And, sympy.Or, sympy.Not),
    *(sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge),
    *map(type, (sympy.true, sympy.false, sympy.oo, -sympy.oo, int_oo, -int_oo)),  # functions of nothing
)
FUNCTIONS: dict[str, Any] = {cls.__name__: cls for cls in _CLASSES}
"""Functions of sizes by the names that forms give them: sympy's, and those of torch."""
_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "And", "Or", "Equality", "Unequality"})
_LOGICAL = frozenset({"And", "Or", "Not", "Where"})
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
_LARGEST = 1 << 64
_KINDS = {"s": SymT.SIZE, "u": SymT.UNBACKED_INT, "zf": SymT.FLOAT, "zuf": SymT.UNBACKED_FLOAT}
_EXAMPLE = 5
"""No size that a reader gives as its example is smaller, unless the range says so: 0, 1 and 2 are special to torch."""
SYMBOLIC = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}
"""Kinds of symbolic numbers, as forms call them."""


class NoForm(Exception):
    """What the form has no words for, as text; ``write`` says of which node."""


def bits_of(number: float) -> str:
    """All of a float, NaN's payload and zero's sign included, as 16 hexadecimal digits."""
    return struct.pack(">d", number).hex()


def float_of(bits: str) -> float:
    """The inverse of ``bits_of``."""
    number: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return number


class SymbolsWritten:
    """The symbols of a program on their way into a form: numbered as they appear, whatever they are called.

    Symbols that stand alone somewhere come first, in the order of the graph; those that appear in products and the like
    only are numbered as those come. Where one expression has several new ones, their names decide: another name may
    then give another form of an equal program, and never an equal form of another.
    """

    def __init__(self, vals: Iterable[Any]) -> None:
        self.numbers: dict[sympy.Symbol, int] = {}
        self._environment: Any = None
        for number in _symbolic_numbers(vals):
            self._environment = number.node.shape_env
            if number.node.expr.is_Symbol:
                self.numbers.setdefault(number.node.expr, len(self.numbers))

    def write(self, number: Any) -> Any:
        """The form of a SymInt, SymFloat or SymBool; a Python number as it is."""
        return self._expression(number.node.expr) if type(number) in SYMBOLIC else number

    def _expression(self, given: Any) -> Any:
        """The form of a sympy expression. Symbols that are new get the next numbers."""
        for one in sorted(given.free_symbols - self.numbers.keys(), key=str):
            self.numbers[one] = len(self.numbers)
        if given.is_Symbol:
            return {"s": self.numbers[given]}
        if given.is_Integer:
            return int(given)
        if given.is_Float and given._prec == 53:
            return {"f": bits_of(float(given))}
        if given.is_Rational:
            return ["Rational", given.p, given.q]
        name = type(given).__name__
        if FUNCTIONS.get(name) is not type(given):
            raise NoForm(f"the form has no words for the size {given}, which is a {name}")
        operands = [self._expression(one) for one in given.args]
        return [name, *(sorted(operands, key=json.dumps) if name in _COMMUTATIVE else operands)]

    def table(self, constraints: Any) -> list[Any]:
        """A row for each symbol, and what torch knows of them besides: multiples, relations to each other.

        A row is its kind, what torch takes for granted of it, its two ranges, its example. torch has a range of each
        symbol for itself, and the program one for its callers; they may differ. The example, a size of the inputs with
        which the program was exported, is left out unless torch concluded something else from it than a range.
        """
        environment, known = self._environment, self._known()
        ruled = {symbol for fact in known for symbol in fact.free_symbols}
        rows = []
        for symbol in self.numbers:
            ranges = [environment.var_to_range.get(symbol), constraints.get(symbol)]
            bounds = [r and [self._expression(r.lower), self._expression(r.upper)] for r in ranges]
            kind = next((name for name, kind in _KINDS.items() if symbol_is_type(symbol, kind)), None)
            hint = environment.backed_var_to_val.get(symbol)
            if kind is None or not (hint is None or hint.is_Integer or hint.is_Float):
                raise NoForm(f"the form has no words for the symbol {symbol}, which is no number")
            example = self._expression(hint) if hint is not None and symbol in ruled else None
            granted = [bool(symbol.is_positive), symbol in environment.size_like, hint is not None]
            rows.append([kind, *granted, *bounds, example])
        return [rows, sorted((self._expression(fact) for fact in known), key=json.dumps)]

    def _known(self) -> list[Any]:
        """What torch knows of the symbols that is no bound of one of them."""
        if self._environment is None:
            return []
        asserted = itertools.chain.from_iterable(self._environment.deferred_runtime_asserts.values())
        facts = {self._environment.replace(given.expr) for given in (*self._environment.guards, *asserted)}
        return [f for f in facts if f.free_symbols and f.free_symbols <= self.numbers.keys() and not _is_bound(f)]


def _symbolic_numbers(vals: Iterable[Any]) -> Iterator[Any]:
    """The symbolic numbers among recorded values: these themselves, and sizes and strides of tensors, also in lists."""
    for val in vals:
        if type(val) in SYMBOLIC:
            yield val
        elif isinstance(val, torch.Tensor) and val._has_symbolic_sizes_strides:
            yield from (size for size in (*val.shape, *val.stride()) if type(size) in SYMBOLIC)
        elif isinstance(val, (list, tuple)):
            yield from _symbolic_numbers(val)


def _is_bound(relation: Any) -> bool:
    """Whether a relation compares one symbol with a number."""
    sides = relation.args
    return len(sides) == 2 and any(s.is_Symbol for s in sides) and any(s.is_number for s in sides)


class SymbolsRead:
    """Makes the symbols of a form anew, in a ShapeEnv. ``names`` are the writer's names for them."""

    def __init__(self, table: Sequence[Any], environment: ShapeEnv, names: Sequence[str] | None) -> None:
        rows, known = table
        self._environment, self._symbols = environment, list[sympy.Symbol]()
        self.constraints: dict[sympy.Symbol, ValueRanges[Any]] = {}
        for k, row in enumerate(rows):
            self._symbols.append(self._symbol(k, row, names[k] if names else None))
        environment.unbacked_symint_counter += len(rows)
        environment.unbacked_symfloat_counter += len(rows)
        for fact in map(self._expression, known):
            environment.guards.append(ShapeGuard(fact, SLoc("", ""), size_oblivious=False))
            environment.axioms.update(dict(environment.get_implications(fact)))

    def _symbol(self, k: int, row: Sequence[Any], name: str | None) -> sympy.Symbol:
        """Make the k-th symbol from its row (``SymbolsWritten.table``); the ShapeEnv is told what torch knew of it."""
        kind, positive, is_size, backed, *ranges, example = row
        assumed = {key: True for key, holds in (("integer", kind in "su"), ("positive", positive)) if holds}
        symbol = sympy.Symbol(name, **assumed) if name else make_symbol(_KINDS[kind], k, **assumed)
        for bounds, table in zip(ranges, (self._environment.var_to_range, self.constraints), strict=True):
            if bounds is not None:
                table[symbol] = ValueRanges(*map(self._expression, bounds))
        if is_size:
            self._environment.size_like.add(symbol)
        if backed:
            given = self._example(symbol, k) if example is None else self._expression(example)
            self._environment.backed_var_to_val[symbol] = given
        return symbol

    def _example(self, symbol: Any, k: int) -> Any:
        """A number in the symbol's range, another one for each symbol where that is possible."""
        known = self._environment.var_to_range.get(symbol, ValueRanges(0, int_oo))
        if symbol_is_type(symbol, SymT.FLOAT):
            return sympy.Float(_EXAMPLE + k)
        return sympy.Integer(min(max(_EXAMPLE, known.lower) + k, known.upper))

    def number(self, written: Any, kind: str) -> Any:
        """A number of ``kind``: ``int``, ``float`` or ``bool``; Python's if it has no symbols."""
        if type(written) is int:
            return written
        expression = self._expression(written)
        if kind == "bool":
            return self._environment.create_symboolnode(expression)
        make = {"int": self._environment.create_symintnode, "float": self._environment.create_symfloatnode}[kind]
        return make(expression, hint=None)

    def _expression(self, written: Any) -> Any:
        """The sympy expression that ``written`` stands for."""
        if type(written) is int and -_LARGEST < written < _LARGEST:
            return sympy.Integer(written)
        if isinstance(written, dict):
            ((tag, value),) = written.items()
            return self._symbols[at(value)] if tag == "s" else sympy.Float(float_of(value))
        name, *operands = written
        given = [self._expression(one) for one in operands]
        logical = name not in _LOGICAL and not all(isinstance(one, sympy.Expr) for one in given)
        power = name in _POWERS and not (_is_small(given[1], 64) and _is_small(given[0], _LARGEST))
        if logical or power:  # sympy would take days for some powers
            raise FormatError("format-invalid", f"no program has the size {written!r:.80}")
        return FUNCTIONS[name](*given)


def _is_small(number: Any, limit: int) -> bool:
    return not number.is_number or bool(abs(number) < limit)


def at(index: Any) -> int:
    """An index of a table, which counts from 0 and never from the end."""
    if type(index) is not int or index < 0:
        raise FormatError("format-invalid", f"{index!r:.80} is no index")
    return index

"""Sizes that are known at run time only, in a grammar of our own: reading one evaluates
no text.

A whole number is itself, a symbol ``{"s": 0}``, a float ``{"f": its bits}``, and
anything else a list: the name of a function of ``FUNCTIONS`` and its operands. Operands
of commutative functions are sorted by how they are written, since sympy's own order
follows the names of symbols.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from delegraph.errors import FormatError
from torch._guards import ShapeGuard, SLoc
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy import functions
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.symbol import SymT, make_symbol, symbol_is_type
from torch.utils._sympy.value_ranges import ValueRanges

_OF_TORCH = """CeilDiv CeilToInt CleanDiv FloatPow FloatTrueDiv FloorDiv FloorToInt Identity IntTrueDiv LShift Max Min
    Mod ModularIndexing PowByNatural PythonMod RShift RoundDecimal RoundToInt ToFloat TruncToFloat TruncToInt
    Where""".split()
_CLASSES = (
    *(
        cls
        for name, cls in vars(functions).items()
        if name in _OF_TORCH or name.startswith("OpaqueUnaryFn_")
    ),
    *(sympy.Add, sympy.Mul, sympy.Pow, sympy.Rational, sympy.And, sympy.Or, sympy.Not),
    *(sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge),
    # functions of nothing
    *map(type, (sympy.true, sympy.false, sympy.oo, -sympy.oo, int_oo, -int_oo)),
)
FUNCTIONS: dict[str, Any] = {cls.__name__: cls for cls in _CLASSES}
"""Functions of sizes by the names that forms give them: sympy's, and those of torch."""
_COMMUTATIVE = frozenset(
    {"Add", "Mul", "Max", "Min", "And", "Or", "Equality", "Unequality"}
)
_LOGICAL = frozenset({"And", "Or", "Not", "Where"})
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
_LARGEST = 1 << 64
_KINDS = {
    "s": SymT.SIZE,
    "u": SymT.UNBACKED_INT,
    "zf": SymT.FLOAT,
    "zuf": SymT.UNBACKED_FLOAT,
}
_EXAMPLE = 5
"""No size that a reader gives as its example is smaller, unless the range says so: 0, 1
and 2 are special to torch.
"""
SYMBOLIC = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}
"""Kinds of symbolic numbers, as forms call them."""


class NoForm(Exception):
    """The form cannot express a value; the message says which.

    ``write`` turns it into Unsupported, with the node.
    """


def bits_of(number: float) -> str:
    """The 64 bits of a float as 16 hexadecimal digits, so that NaN's payload and the
    sign of zero stay.
    """
    return struct.pack(">d", number).hex()


def float_of(bits: str) -> float:
    """The inverse of ``bits_of``."""
    number: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return number


class SymbolsWritten:
    """Numbers the symbols of a program in the order in which they appear, whatever
    their names.

    Symbols that stand alone somewhere are numbered first, in graph order. Others appear
    only inside of expressions, and are numbered when these are written. Several new
    symbols in one expression are numbered by name. So renaming symbols may change the
    form of a program, but different programs never have equal forms.
    """

    def __init__(self, vals: Iterable[Any]) -> None:
        """Number the symbols that stand alone in ``vals``, the recorded values of a
        program in graph order.
        """
        self.numbers: dict[sympy.Symbol, int] = {}  # in order of the numbers
        self._environment: Any = None
        for number in _symbolic_numbers(vals):
            self._environment = number.node.shape_env
            if number.node.expr.is_Symbol:
                self.numbers.setdefault(number.node.expr, len(self.numbers))

    def write(self, number: Any) -> Any:
        """The form of a SymInt, SymFloat or SymBool; any other value as it is."""
        return (
            self._expression(number.node.expr) if type(number) in SYMBOLIC else number
        )

    def _expression(self, expression: Any) -> Any:
        """The form of a sympy expression; its new symbols get the next numbers.

        Raises NoForm.
        """
        for symbol in sorted(expression.free_symbols - self.numbers.keys(), key=str):
            self.numbers[symbol] = len(self.numbers)
        if expression.is_Symbol:
            return {"s": self.numbers[expression]}
        if expression.is_Integer:
            return int(expression)
        # bits of precision: a double
        if expression.is_Float and expression._prec == 53:
            return {"f": bits_of(float(expression))}
        if expression.is_Rational:
            return ["Rational", expression.p, expression.q]
        name = type(expression).__name__
        if FUNCTIONS.get(name) is not type(expression):
            raise NoForm(
                f"the form has no words for the size {expression}, which is a {name}"
            )
        operands = [self._expression(part) for part in expression.args]
        return [
            name,
            *(sorted(operands, key=json.dumps) if name in _COMMUTATIVE else operands),
        ]

    def table(self, constraints: Any) -> list[Any]:
        """A row for each symbol, and the relations that torch knows between them.

        A row has the kind of the symbol, three flags (positive, size-like, backed), two
        ranges, and an example. One range is torch's, the other the program's for its
        callers; they may differ. The example is the size with which the program was
        exported; it is None unless a relation has the symbol. ``constraints``: symbol
        -> the program's range. Raises NoForm.
        """
        environment = self._environment
        relations = self._relations()
        related = {symbol for relation in relations for symbol in relation.free_symbols}
        rows = []
        for symbol in self.numbers:
            ranges = [environment.var_to_range.get(symbol), constraints.get(symbol)]
            bounds = [
                r and [self._expression(r.lower), self._expression(r.upper)]
                for r in ranges
            ]
            kind = next(
                (name for name, kind in _KINDS.items() if symbol_is_type(symbol, kind)),
                None,
            )
            hint = environment.backed_var_to_val.get(symbol)
            if kind is None or not (hint is None or hint.is_Integer or hint.is_Float):
                raise NoForm(
                    f"the form has no words for the symbol {symbol}, which is no number"
                )
            example = (
                self._expression(hint)
                if hint is not None and symbol in related
                else None
            )
            flags = [
                bool(symbol.is_positive),
                symbol in environment.size_like,
                hint is not None,
            ]
            rows.append([kind, *flags, *bounds, example])
        return [
            rows,
            sorted(
                (self._expression(relation) for relation in relations), key=json.dumps
            ),
        ]

    def _relations(self) -> list[Any]:
        """The relations between symbols that torch guards on or asserts, without bounds
        of one symbol.
        """
        if self._environment is None:
            return []
        asserted = itertools.chain.from_iterable(
            self._environment.deferred_runtime_asserts.values()
        )
        relations = {
            self._environment.replace(guard.expr)
            for guard in (*self._environment.guards, *asserted)
        }
        return [
            f
            for f in relations
            if f.free_symbols
            and f.free_symbols <= self.numbers.keys()
            and not _is_bound(f)
        ]


def _symbolic_numbers(vals: Iterable[Any]) -> Iterator[Any]:
    """The symbolic numbers among recorded values, in lists of them, and in sizes and
    strides of tensors.
    """
    for val in vals:
        if type(val) in SYMBOLIC:
            yield val
        elif isinstance(val, torch.Tensor) and val._has_symbolic_sizes_strides:
            yield from (
                size for size in (*val.shape, *val.stride()) if type(size) in SYMBOLIC
            )
        elif isinstance(val, (list, tuple)):
            yield from _symbolic_numbers(val)


def _is_bound(relation: Any) -> bool:
    """Whether a relation compares one symbol with a number."""
    sides = relation.args
    return (
        len(sides) == 2
        and any(s.is_Symbol for s in sides)
        and any(s.is_number for s in sides)
    )


class SymbolsRead:
    """Creates the symbols of a form in ``environment``, and reads sizes.

    ``table`` is that of ``SymbolsWritten.table``.

    ``names``: the writer's names for the symbols; None names them by number.
    ``constraints``: symbol -> the program's range.
    """

    def __init__(
        self, table: Sequence[Any], environment: ShapeEnv, names: Sequence[str] | None
    ) -> None:
        """Create all symbols of ``table`` in ``environment``, with their ranges,
        examples and relations.
        """
        rows, relations = table
        self._environment = environment
        self._symbols = list[sympy.Symbol]()
        self.constraints: dict[sympy.Symbol, ValueRanges[Any]] = {}
        for k, row in enumerate(rows):
            self._symbols.append(self._symbol(k, row, names[k] if names else None))
        # symbols that the ShapeEnv makes later must get other names
        environment.unbacked_symint_counter += len(rows)
        environment.unbacked_symfloat_counter += len(rows)
        # as guards, from which torch concludes what it did before
        for relation in map(self._expression, relations):
            environment.guards.append(
                ShapeGuard(relation, SLoc("", ""), size_oblivious=False)
            )
            environment.axioms.update(dict(environment.get_implications(relation)))

    def _symbol(self, k: int, row: Sequence[Any], name: str | None) -> sympy.Symbol:
        """Create symbol number ``k`` from its row, and enter its ranges and its example
        into the ShapeEnv.

        ``name``: the writer's name for the symbol; None names it by its number.
        """
        kind, positive, is_size, backed, *ranges, example = row
        # "s" and "u" are integers; sympy simplifies by what is assumed of a symbol
        assumed = {
            key: True
            for key, holds in (("integer", kind in "su"), ("positive", positive))
            if holds
        }
        symbol = (
            sympy.Symbol(name, **assumed)
            if name
            else make_symbol(_KINDS[kind], k, **assumed)
        )
        # two ranges: torch's, and the program's for its callers
        for bounds, table in zip(
            ranges, (self._environment.var_to_range, self.constraints), strict=True
        ):
            if bounds is not None:
                table[symbol] = ValueRanges(*map(self._expression, bounds))
        if is_size:
            self._environment.size_like.add(symbol)
        if backed:
            value = (
                self._example(symbol, k)
                if example is None
                else self._expression(example)
            )
            self._environment.backed_var_to_val[symbol] = value
        return symbol

    def _example(self, symbol: Any, k: int) -> Any:
        """A number in the range of ``symbol``, number ``k``; different for each symbol
        if the ranges allow it.
        """
        bounds = self._environment.var_to_range.get(symbol, ValueRanges(0, int_oo))
        if symbol_is_type(symbol, SymT.FLOAT):
            return sympy.Float(_EXAMPLE + k)
        return sympy.Integer(min(max(_EXAMPLE, bounds.lower) + k, bounds.upper))

    def number(self, written: Any, kind: str) -> Any:
        """The number of ``kind`` (int, float or bool) that ``written`` stands for;
        symbolic unless it is an int.
        """
        if type(written) is int:
            return written
        expression = self._expression(written)
        if kind == "bool":
            return self._environment.create_symboolnode(expression)
        make = {
            "int": self._environment.create_symintnode,
            "float": self._environment.create_symfloatnode,
        }[kind]
        # torch finds the example of each symbol in the environment
        return make(expression, hint=None)

    def _expression(self, written: Any) -> Any:
        """The sympy expression that ``written`` stands for, in the grammar of this
        module.

        Raises FormatError for an expression that no size has.
        """
        if type(written) is int and -_LARGEST < written < _LARGEST:
            return sympy.Integer(written)
        if isinstance(written, dict):
            ((tag, value),) = written.items()
            return (
                self._symbols[at(value)] if tag == "s" else sympy.Float(float_of(value))
            )
        name, *operands = written
        args = [self._expression(operand) for operand in operands]
        misplaced = name not in _LOGICAL and not all(
            isinstance(arg, sympy.Expr) for arg in args
        )
        too_large = name in _POWERS and not (
            self._is_small(args[1], 64) and self._is_small(args[0], _LARGEST)
        )
        # a truth value in a sum; a power that would take sympy days
        if misplaced or too_large:
            raise FormatError(
                "format-invalid", f"no program has the size {written!r:.80}"
            )
        return FUNCTIONS[name](*args)

    def _is_small(self, number: Any, limit: int) -> bool:
        """Whether the absolute value of ``number`` is below ``limit``, examples in the
        place of symbols.

        torch computes sizes with the examples of their symbols, so these count like
        numbers.
        """
        value = number.xreplace(self._environment.backed_var_to_val)
        return not value.is_number or bool(abs(value) < limit)


def at(index: Any) -> int:
    """``index`` if it is a whole number from 0 on; else FormatError, so that no file
    counts from the end of a table.
    """
    if type(index) is not int or index < 0:
        raise FormatError("format-invalid", f"{index!r:.80} is no index")
    return index

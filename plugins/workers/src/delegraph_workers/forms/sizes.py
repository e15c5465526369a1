"""Write sizes that are known at run time only as JSON, and read them without evaluating
text.

An integer is written unchanged, a symbol as ``{"s": 0}``, a float as ``{"f": bits}``.
Any other size is a list: the name of a function of ``FUNCTIONS``, and its operands.
Operands of commutative functions are sorted by their JSON: sympy's own order depends on
the names of symbols.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

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
    sympy.Add,
    sympy.Mul,
    sympy.Pow,
    sympy.Rational,
    sympy.And,
    sympy.Or,
    sympy.Not,
    sympy.Eq,
    sympy.Ne,
    sympy.Lt,
    sympy.Le,
    sympy.Gt,
    sympy.Ge,
    # functions without operands
    *map(type, (sympy.true, sympy.false, sympy.oo, -sympy.oo, int_oo, -int_oo)),
)
FUNCTIONS: dict[str, Any] = {cls.__name__: cls for cls in _CLASSES}
"""Functions of sizes by their names in forms: functions of sympy and of torch."""
_COMMUTATIVE = frozenset(
    {"Add", "Mul", "Max", "Min", "And", "Or", "Equality", "Unequality"}
)
_LOGICAL = frozenset({"And", "Or", "Not", "Where"})
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
_LARGEST = 1 << 64
"""The bound of integers and of bases of powers. torch counts sizes in 64 bits."""
_KINDS = {  # name in forms -> kind of a symbol
    "s": SymT.SIZE,
    "u": SymT.UNBACKED_INT,
    "zf": SymT.FLOAT,
    "zuf": SymT.UNBACKED_FLOAT,
}
_EXAMPLE = 5
"""The least example of a size, if its range allows it: torch treats 0, 1 and 2
specially.
"""
SYMBOLIC = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}
"""The names of kinds of symbolic numbers in forms."""


class NoForm(Exception):
    """The form cannot express a value, which the message names.

    ``write`` turns it into Unsupported, with the node.
    """


def bits_of(number: float) -> str:
    """Return the 64 bits of a float as 16 hexadecimal digits.

    They keep NaN's payload and the sign of zero.
    """
    return struct.pack(">d", number).hex()


def float_of(bits: str) -> float:
    """Return the float with these bits; the inverse of ``bits_of``."""
    number: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return number


class _SymbolRow(NamedTuple):
    """The properties of a symbol, in the order of its JSON.

    ``bounds``: torch's range. ``callers_bounds``: the program's range for its callers,
    which may differ. ``example``: the form of a number, or None.
    """

    kind: str
    is_positive: bool
    is_size: bool
    is_backed: bool
    bounds: list[Any] | None
    callers_bounds: list[Any] | None
    example: Any


class SymbolsWritten:
    """Numbers the symbols of a program in the order in which they appear.

    Symbols that are a whole size come first, in graph order. Other symbols appear only
    inside expressions; they are numbered when the expression is written. Several new
    symbols in one expression are numbered by name. So renaming symbols may change the
    form of a program, but different programs never have equal forms.
    """

    def __init__(self, vals: Iterable[Any]) -> None:
        """Number the symbols that are whole sizes of ``vals``, the recorded values of a
        program in graph order.
        """
        self.numbers: dict[sympy.Symbol, int] = {}  # in order of the numbers
        self._environment: Any = None
        for number in _symbolic_numbers(vals):
            self._environment = number.node.shape_env
            if number.node.expr.is_Symbol:
                self.numbers.setdefault(number.node.expr, len(self.numbers))

    def write(self, number: Any) -> Any:
        """Return the form of a SymInt, SymFloat or SymBool, or any other value
        unchanged.
        """
        if type(number) in SYMBOLIC:
            return self._expression(number.node.expr)
        return number

    def _expression(self, expression: Any) -> Any:
        """Return the form of a sympy expression; its new symbols get the next numbers.

        Raises NoForm.
        """
        for symbol in sorted(expression.free_symbols - self.numbers.keys(), key=str):
            self.numbers[symbol] = len(self.numbers)
        if expression.is_Symbol:
            return {"s": self.numbers[expression]}
        if expression.is_Integer:
            return int(expression)
        # a double has 53 bits of precision
        if expression.is_Float and expression._prec == 53:
            return {"f": bits_of(float(expression))}
        if expression.is_Rational:
            return ["Rational", expression.p, expression.q]
        name = type(expression).__name__
        if FUNCTIONS.get(name) is not type(expression):
            raise NoForm(f"it has the size {expression}, a {name}")
        operands = [self._expression(part) for part in expression.args]
        if name in _COMMUTATIVE:
            operands.sort(key=json.dumps)
        return [name, *operands]

    def table(self, constraints: Any) -> list[Any]:
        """Return a row for each symbol, and the relations that torch knows.

        ``constraints``: symbol -> the program's range for its callers. Raises NoForm.
        """
        relations = self._relations()
        related = set(
            itertools.chain(*(relation.free_symbols for relation in relations))
        )
        rows = []
        for symbol in self.numbers:
            callers_range = constraints.get(symbol)
            rows.append(self._row(symbol, callers_range, symbol in related))
        written = [self._expression(relation) for relation in relations]
        return [rows, sorted(written, key=json.dumps)]

    def _row(
        self, symbol: sympy.Symbol, callers_range: Any, is_related: bool
    ) -> _SymbolRow:
        """Return the row of a symbol.

        The example, the size at export, is None unless a relation contains the symbol.
        """
        environment = self._environment
        kinds = [name for name, kind in _KINDS.items() if symbol_is_type(symbol, kind)]
        hint = environment.backed_var_to_val.get(symbol)
        is_number = hint is None or hint.is_Integer or hint.is_Float
        if not kinds or not is_number:
            raise NoForm(f"it has the symbol {symbol}, which is no number")
        example = None
        if hint is not None and is_related:
            example = self._expression(hint)
        return _SymbolRow(
            kind=kinds[0],
            is_positive=bool(symbol.is_positive),
            is_size=symbol in environment.size_like,
            is_backed=hint is not None,
            bounds=self._bounds(environment.var_to_range.get(symbol)),
            callers_bounds=self._bounds(callers_range),
            example=example,
        )

    def _bounds(self, range: Any) -> list[Any] | None:
        if range is None:
            return None
        return [self._expression(range.lower), self._expression(range.upper)]

    def _relations(self) -> list[Any]:
        """Return the relations between symbols that torch guards on or asserts.

        Bounds of one symbol are left out: its range has them.
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
        found = []
        for relation in relations:
            symbols = relation.free_symbols
            is_known = symbols and symbols <= self.numbers.keys()
            if is_known and not _is_bound(relation):
                found.append(relation)
        return found


def _symbolic_numbers(vals: Iterable[Any]) -> Iterator[Any]:
    """Yield the symbolic numbers in recorded values, and in sizes and strides of
    tensors.
    """
    for val in vals:
        if type(val) in SYMBOLIC:
            yield val
        elif isinstance(val, torch.Tensor) and val._has_symbolic_sizes_strides:
            for size in (*val.shape, *val.stride()):
                if type(size) in SYMBOLIC:
                    yield size
        elif isinstance(val, (list, tuple)):
            yield from _symbolic_numbers(val)


def _is_bound(relation: Any) -> bool:
    """Return whether a relation compares one symbol with a number."""
    sides = relation.args
    if len(sides) != 2:
        return False
    return any(s.is_Symbol for s in sides) and any(s.is_number for s in sides)


class SymbolsRead:
    """Makes the symbols of ``SymbolsWritten.table`` in ``environment``, and reads sizes.

    ``names``: the writer's names for the symbols; None names them by number.
    ``constraints``: symbol -> the program's range for its callers.
    """

    def __init__(
        self, table: Sequence[Any], environment: ShapeEnv, names: Sequence[str] | None
    ) -> None:
        """Make all symbols of ``table``, with their ranges, examples and relations."""
        rows, relations = table
        self._environment = environment
        self._symbols = list[sympy.Symbol]()
        self.constraints: dict[sympy.Symbol, ValueRanges[Any]] = {}
        for k, row in enumerate(rows):
            self._symbols.append(self._symbol(k, row, names[k] if names else None))
        # later symbols of the environment must get other names
        environment.unbacked_symint_counter += len(rows)
        environment.unbacked_symfloat_counter += len(rows)
        # from guards, torch draws the same conclusions as before
        for relation in map(self._expression, relations):
            environment.guards.append(
                ShapeGuard(relation, SLoc("", ""), size_oblivious=False)
            )
            environment.axioms.update(dict(environment.get_implications(relation)))

    def _symbol(self, k: int, row: Sequence[Any], name: str | None) -> sympy.Symbol:
        """Make symbol number ``k`` from its row, with its ranges and its example.

        ``name``: the writer's name for the symbol; None names it by its number.
        """
        fields = _SymbolRow(*row)
        # sympy simplifies by the assumptions about a symbol
        assumptions = {}
        if fields.kind in ("s", "u"):
            assumptions["integer"] = True
        if fields.is_positive:
            assumptions["positive"] = True
        if name:
            symbol = sympy.Symbol(name, **assumptions)
        else:
            symbol = make_symbol(_KINDS[fields.kind], k, **assumptions)
        environment = self._environment
        if fields.bounds is not None:
            environment.var_to_range[symbol] = self._range(fields.bounds)
        if fields.callers_bounds is not None:
            self.constraints[symbol] = self._range(fields.callers_bounds)
        if fields.is_size:
            environment.size_like.add(symbol)
        if fields.is_backed:
            if fields.example is None:
                example = self._example(symbol, k)
            else:
                example = self._expression(fields.example)
            environment.backed_var_to_val[symbol] = example
        return symbol

    def _range(self, bounds: Any) -> ValueRanges[Any]:
        return ValueRanges(*map(self._expression, bounds))

    def _example(self, symbol: Any, k: int) -> Any:
        """Return a number in the range of ``symbol``, number ``k``.

        Symbols have different examples if their ranges allow it.
        """
        bounds = self._environment.var_to_range.get(symbol, ValueRanges(0, int_oo))
        if symbol_is_type(symbol, SymT.FLOAT):
            return sympy.Float(_EXAMPLE + k)
        return sympy.Integer(min(max(_EXAMPLE, bounds.lower) + k, bounds.upper))

    def number(self, written: Any, kind: str) -> Any:
        """Return the number with the form ``written``; ``kind`` is int, float or bool.

        It is symbolic unless it is an int.
        """
        if type(written) is int:
            return written
        expression = self._expression(written)
        if kind == "bool":
            return self._environment.create_symboolnode(expression)
        # without a hint, torch takes the example of each symbol from the environment
        if kind == "float":
            return self._environment.create_symfloatnode(expression, hint=None)
        if kind == "int":
            return self._environment.create_symintnode(expression, hint=None)
        raise KeyError(kind)

    def _expression(self, written: Any) -> Any:
        """Return the sympy expression with the form ``written``.

        Raises FormatError for an expression that no size has.
        """
        if type(written) is int and -_LARGEST < written < _LARGEST:
            return sympy.Integer(written)
        if isinstance(written, dict):
            ((tag, value),) = written.items()
            if tag == "s":
                return self._symbols[at(value)]
            return sympy.Float(float_of(value))
        name, *operands = written
        args = [self._expression(operand) for operand in operands]
        if not self._is_possible(name, args):
            raise FormatError(
                "format-invalid",
                f"the serialized program has an invalid size: {written!r:.80}",
            )
        return FUNCTIONS[name](*args)

    def _is_possible(self, name: str, args: Sequence[Any]) -> bool:
        """Return whether a size may have this function of ``args``."""
        # a truth value in a sum is impossible
        if name not in _LOGICAL:
            if not all(isinstance(arg, sympy.Expr) for arg in args):
                return False
        # sympy would compute a large power for days
        if name in _POWERS:
            base, exponent, *_ = args
            return self._is_small(exponent, 64) and self._is_small(base, _LARGEST)
        return True

    def _is_small(self, number: Any, limit: int) -> bool:
        """Return whether the absolute value of ``number`` is below ``limit``.

        Symbols count with their examples: torch computes sizes with these.
        """
        value = number.xreplace(self._environment.backed_var_to_val)
        return not value.is_number or bool(abs(value) < limit)


def at(index: Any) -> int:
    """Return ``index`` if it is an integer of at least 0; else raise FormatError.

    A negative index would count from the end of a table.
    """
    if type(index) is not int or index < 0:
        raise FormatError(
            "format-invalid",
            f"the serialized program has the index {index!r:.80}; indices are integers of 0 or more",
        )
    return index

"""The sizes that a program was exported for, where they are not fixed: bounds,
equalities, multiples of a number.

What torch recorded with symbols is compiled into one Python function, so that checking
a call takes a microsecond.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter

from .errors import InputError
from .exported_program import leaf_names, user_inputs
from .size_names import named

_HINT = (
    "call it with sizes that it was exported for, or export it with other"
    " dynamic_shapes"
)
_MULTIPLE = re.compile(r"\(+(?:(\d+)\*)?(.+?)\)* % (\d+)\) == 0")
"""How torch writes the guard that a size, or a number times a size, is a multiple of a
number.
"""


class Place(NamedTuple):
    """Where a size stands in the flat inputs.

    ``position``: which input. ``dim``: the dimension of that tensor; None if the input
    is a number. ``expression``: the size in torch's symbols.
    """

    position: int
    dim: int | None
    expression: Any

    @property
    def code(self) -> str:
        """A Python expression that reads the size from the inputs, a list named
        ``flat``.
        """
        return f"flat[{self.position}]" + (
            "" if self.dim is None else f".shape[{self.dim}]"
        )

    def text(self, names: Sequence[str], size: int) -> str:
        """A sentence that says that the size here is ``size``. ``names`` are the names
        of the inputs.
        """
        if self.dim is None:
            return f"input {names[self.position]} is {size}"
        return f"input {names[self.position]} has size {size} in dimension {self.dim}"


class Condition(NamedTuple):
    """A condition on the sizes of a call.

    ``code`` is the condition as a Python expression of torch's symbols and ``flat``. An
    error for a call that breaks it blames ``place``, and says that ``sizes`` are
    required there.
    """

    code: str
    place: Place
    sizes: str


class InputSizes:
    """Checks the sizes of a program's inputs that the export did not fix.

    torch traces for sizes of 2 and more, and accepts 0 and 1 as well. So a lower bound
    of 2 is no condition here. ``_sources``: see the function ``_sources``.
    ``_conditions``: what has to hold in a call.
    """

    def __init__(self, program: ExportedProgram) -> None:
        """Collect the conditions on the inputs of ``program``, and compile them into
        the function ``fits``.
        """
        places = list(_symbolic_places(program))
        self._inputs = user_inputs(program)
        self._sources = _sources(places)
        self._conditions = [
            *_bounds(program, self._sources),
            *_relations(places, self._sources),
            *_multiples(program, places),
        ]
        # the function ``fits`` as Python text: it reads each symbol from the inputs,
        # then checks all conditions
        lines = [
            "def fits(flat):",
            *(f"    {symbol} = {code}" for symbol, (_, code) in self._sources.items()),
        ]
        lines.append(
            f"    return {' and '.join(f'({c.code})' for c in self._conditions)}"
        )
        scope: dict[str, Any] = {}
        if self._conditions:
            exec("\n".join(lines), scope)
        self.fits: Callable[[Sequence[Any]], bool] | None = scope.get("fits")
        """A function that tells whether the sizes of flat inputs fit; None if the
        program has no condition on them.
        """

    def explain(self, flat: Sequence[Any], names: Sequence[str]) -> InputError:
        """The error for flat inputs for which ``fits`` is false. ``names`` are the
        caller's names for the inputs.

        It blames the first condition that fails: the size at its place, the sizes that
        are required there, and the value of each symbol in that requirement, if another
        input determines it.
        """
        # the names that the expressions use: the inputs, and each symbol with its value
        # in this call
        scope: dict[str, Any] = {"flat": flat}
        scope |= {
            symbol: eval(code, scope) for symbol, (_, code) in self._sources.items()
        }
        failed = next(c for c in self._conditions if not eval(c.code, scope))
        parts = [failed.place.text(names, eval(failed.place.code, scope))]
        parts.append(
            f"the program was exported for {named(failed.sizes, self._inputs)} there"
        )
        for symbol in sorted(map(str, failed.place.expression.free_symbols)):
            # where the symbol was read
            place, _ = self._sources.get(symbol, (failed.place, ""))
            if place is not failed.place:
                symbol_name = named(symbol, self._inputs)
                parts.append(
                    f"{symbol_name} is {scope[symbol]} as"
                    f" {place.text(names, eval(place.code, scope))}"
                )
        return InputError("input-invalid", "; ".join(parts), hint=_HINT)


def _symbolic_places(program: ExportedProgram) -> Iterator[Place]:
    """The places in the inputs whose size is symbolic."""
    for position, node in enumerate(user_inputs(program)):
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt):
            yield Place(position, None, val.node.expr)
        for dim, size in enumerate(val.shape if isinstance(val, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                yield Place(position, dim, size.node.expr)


def _sources(places: Sequence[Place]) -> dict[str, tuple[Place, str]]:
    """Symbol -> a place from which its value can be read, and the Python expression
    that reads it.

    The size at that place is the symbol itself, or else a linear expression of that
    symbol alone.
    """
    sources: dict[str, tuple[Place, str]] = {}
    for place in places:
        if place.expression.is_Symbol:
            sources.setdefault(str(place.expression), (place, place.code))
    for place in places:
        unknown = [s for s in place.expression.free_symbols if str(s) not in sources]
        # an expression of one symbol alone, which has no source yet, is linear if its
        # derivative is a number
        factor = (
            place.expression.diff(unknown[0])
            if len(unknown) == len(place.expression.free_symbols) == 1
            else None
        )
        if factor is not None and factor.is_Integer:
            # the size is factor * symbol + offset
            offset = place.expression.subs(unknown[0], 0)
            sources[str(unknown[0])] = place, f"({place.code} - {offset}) // {factor}"
    return sources


def _bounds(
    program: ExportedProgram, sources: Mapping[str, tuple[Place, str]]
) -> Iterator[Condition]:
    """For each symbol with bounds: the condition that it lies between them.

    A lower bound of 2 is left out: torch traces for sizes of 2 and more, and accepts 0
    and 1 as well. So are symbols that cannot be read from the inputs.
    """
    for symbol, bounds in program.range_constraints.items():
        if str(symbol) in sources:
            low = bounds.lower > 2
            high = bounds.upper < int_oo
            code = (
                (f"{bounds.lower} <= " if low else "")
                + str(symbol)
                + (f" <= {bounds.upper}" if high else "")
            )
            place = sources[str(symbol)][0]
            prefix = (
                ""
                if place.expression.is_Symbol
                else f"{place.expression} with {symbol} "
            )
            sizes = (
                f"{prefix}of at most {bounds.upper}"
                if high
                else f"{prefix}of at least {bounds.lower}"
            )
            if low and high:
                sizes = f"{prefix}from {bounds.lower} to {bounds.upper}"
            if low or high:
                yield Condition(code, place, f"sizes {sizes}")


def _relations(
    places: Sequence[Place], sources: Mapping[str, tuple[Place, str]]
) -> Iterator[Condition]:
    """For each place that is not the source of a symbol: the condition that its size
    equals its expression.

    Left out are places whose expression has a symbol that cannot be read from the
    inputs.
    """
    for place in places:
        symbols = [str(s) for s in place.expression.free_symbols]
        all_known = all(symbol in sources for symbol in symbols)
        if all_known and not (
            place.expression.is_Symbol and sources[symbols[0]][0] is place
        ):
            code = f"{place.code} == {PythonPrinter().doprint(place.expression)}"
            yield Condition(code, place, f"size {place.expression}")


def _multiples(
    program: ExportedProgram, places: Sequence[Place]
) -> Iterator[Condition]:
    """Conditions that a size is a multiple of a number, read from torch's guards.

    The other guards mostly distinguish sizes of 0 and 1 from those that torch traced
    for, and are no conditions here.
    """
    matches = [
        match for guard in program._guards_code if (match := _MULTIPLE.fullmatch(guard))
    ]
    names = input_names(program) if matches else []
    place_of = {
        f"{_guarded(names[p.position])}.size()[{p.dim}]": p for p in places if names
    }
    for factor, size, divisor in (match.groups() for match in matches):
        if size in place_of:
            # factor * size is a multiple of divisor exactly if size is a multiple of
            # this
            number = int(divisor) // math.gcd(int(factor or 1), int(divisor))
            yield Condition(
                f"{place_of[size].code} % {number} == 0",
                place_of[size],
                f"multiples of {number}",
            )


def _guarded(name: str) -> str:
    """The name of an input in torch's guards: ``L['pair']['a']`` for ``pair['a']``."""
    root, bracket, rest = name.partition("[")
    return f"L[{root!r}]{bracket}{rest}"


def input_names(program: ExportedProgram) -> list[str]:
    """The caller's names for the flat inputs; the graph's names if torch did not record
    the caller's.
    """
    nodes = [node.name for node in user_inputs(program)]
    signature: Any = program.module_call_graph[0].signature
    names = leaf_names(signature.in_spec, signature.forward_arg_names or ())
    return names if names is not None and len(names) == len(nodes) else nodes

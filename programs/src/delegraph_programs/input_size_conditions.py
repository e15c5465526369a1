"""Checks the symbolic sizes of a call: bounds, equalities and multiples.

torch records these conditions with symbols such as ``s77``. They are compiled into one
Python function, so that checking a call takes a microsecond.
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
"""torch's form of the guard that a size, perhaps with a factor, is a multiple of a
number: ``((4*L['x'].size()[0]) % 8) == 0``.
"""


class Place(NamedTuple):
    """The place of a size in the flat inputs.

    ``position``: which input. ``dim``: the dimension of that tensor; None if the input
    is a number. ``expression``: the size in torch's symbols.
    """

    position: int
    dim: int | None
    expression: Any

    @property
    def code(self) -> str:
        """Python code that reads the size from the inputs, a list named ``flat``."""
        value = f"flat[{self.position}]"
        return value if self.dim is None else f"{value}.shape[{self.dim}]"

    def text(self, names: Sequence[str], size: int) -> str:
        """Return the sentence "x has the size ..."; ``names`` are those of inputs."""
        if self.dim is None:
            return f"input {names[self.position]} is {size}"
        return f"input {names[self.position]} has size {size} in dimension {self.dim}"


class Condition(NamedTuple):
    """A condition on the sizes of a call.

    ``code`` is the condition as a Python expression of torch's symbols and ``flat``. If
    a call violates it, the error names ``place`` and the required ``sizes`` there.
    """

    code: str
    place: Place
    sizes: str


class InputSizes:
    """Checks the sizes of a program's inputs that the export did not fix.

    ``_sources``: symbol -> where its value is read (see the function ``_sources``).
    ``_conditions``: the conditions that each call must satisfy.
    """

    def __init__(self, program: ExportedProgram) -> None:
        """Compile the conditions on the inputs of ``program`` into ``fits``.

        An example of the function's text is::

            def fits(flat):
                s77 = flat[0].shape[0]
                return (s77 <= 64) and (flat[1].shape[0] == 2*s77)
        """
        places = list(_symbolic_places(program))
        self._inputs = user_inputs(program)
        self._sources = _sources(places)
        self._conditions = [
            *_bounds(program, self._sources),
            *_relations(places, self._sources),
            *_multiples(program, places),
        ]
        lines = ["def fits(flat):"]
        for symbol, source in self._sources.items():
            lines.append(f"    {symbol} = {source.code}")
        checks = " and ".join(f"({condition.code})" for condition in self._conditions)
        lines.append(f"    return {checks}")
        scope: dict[str, Any] = {}
        if self._conditions:
            exec("\n".join(lines), scope)
        self.fits: Callable[[Sequence[Any]], bool] | None = scope.get("fits")
        """Returns whether the sizes of flat inputs fit; None if there is no condition.
        """

    def explain(self, flat: Sequence[Any], names: Sequence[str]) -> InputError:
        """Return the error for flat inputs that ``fits`` rejects.

        It reports the first failed condition: the actual size, the required size, and
        the value of each symbol that another input determines. ``names`` are the
        caller's names for the inputs.
        """
        # the names in the code of conditions: ``flat``, and the symbols
        scope: dict[str, Any] = {"flat": flat}
        for symbol, source in self._sources.items():
            scope[symbol] = eval(source.code, scope)
        failed = next(c for c in self._conditions if not eval(c.code, scope))
        parts = [failed.place.text(names, eval(failed.place.code, scope))]
        parts.append(
            f"the program was exported for {named(failed.sizes, self._inputs)} there"
        )
        for symbol in sorted(map(str, failed.place.expression.free_symbols)):
            other = self._sources[symbol].place if symbol in self._sources else None
            if other is not None and other is not failed.place:
                found = other.text(names, eval(other.code, scope))
                name = named(symbol, self._inputs)
                parts.append(f"{name} is {scope[symbol]} as {found}")
        return InputError("input-invalid", "; ".join(parts), hint=_HINT)


def _symbolic_places(program: ExportedProgram) -> Iterator[Place]:
    """Yield the places of symbolic sizes in the inputs."""
    for position, node in enumerate(user_inputs(program)):
        val = node.meta.get("val")
        if isinstance(val, torch.SymInt):
            yield Place(position, None, val.node.expr)
        for dim, size in enumerate(val.shape if isinstance(val, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                yield Place(position, dim, size.node.expr)


class _Source(NamedTuple):
    """A place that determines a symbol, and Python code for the symbol's value."""

    place: Place
    code: str


def _sources(places: Sequence[Place]) -> dict[str, _Source]:
    """Return symbol -> its source.

    The size at that place is the symbol itself, or a linear expression of that symbol
    alone: ``2*s77 + 1`` gives ``(size - 1) // 2``.
    """
    sources: dict[str, _Source] = {}
    for place in places:
        if place.expression.is_Symbol:
            sources.setdefault(str(place.expression), _Source(place, place.code))
    for place in places:
        if len(place.expression.free_symbols) != 1:
            continue
        [symbol] = place.expression.free_symbols
        # the expression is linear if its derivative is a number
        factor = place.expression.diff(symbol)
        if str(symbol) not in sources and factor.is_Integer:
            offset = place.expression.subs(symbol, 0)
            code = f"({place.code} - {offset}) // {factor}"
            sources[str(symbol)] = _Source(place, code)
    return sources


def _bounds(
    program: ExportedProgram, sources: Mapping[str, _Source]
) -> Iterator[Condition]:
    """Yield a condition for each bounded symbol: it lies between its bounds.

    A lower bound of 2 is left out: torch traces for sizes of 2 and more, and accepts 0
    and 1 as well. Symbols that are not in ``sources`` are left out, since a call cannot
    compute them.
    """
    for symbol, bounds in program.range_constraints.items():
        if str(symbol) not in sources:
            continue
        has_low = bounds.lower > 2
        has_high = bounds.upper < int_oo
        if has_low and has_high:
            code = f"{bounds.lower} <= {symbol} <= {bounds.upper}"
            sizes = f"from {bounds.lower} to {bounds.upper}"
        elif has_high:
            code = f"{symbol} <= {bounds.upper}"
            sizes = f"of at most {bounds.upper}"
        elif has_low:
            code = f"{bounds.lower} <= {symbol}"
            sizes = f"of at least {bounds.lower}"
        else:
            continue
        place = sources[str(symbol)].place
        if not place.expression.is_Symbol:
            sizes = f"{place.expression} with {symbol} {sizes}"
        yield Condition(code, place, f"sizes {sizes}")


def _relations(
    places: Sequence[Place], sources: Mapping[str, _Source]
) -> Iterator[Condition]:
    """Yield a condition for each place: its size equals its expression in symbols.

    A place from which a symbol is read has none, since the two are always equal. A
    place has none either if a call cannot compute a symbol of its expression.
    """
    for place in places:
        expression = place.expression
        symbols = [str(symbol) for symbol in expression.free_symbols]
        if not all(symbol in sources for symbol in symbols):
            continue
        if expression.is_Symbol and sources[symbols[0]].place is place:
            continue
        code = f"{place.code} == {PythonPrinter().doprint(expression)}"
        yield Condition(code, place, f"size {expression}")


def _multiples(
    program: ExportedProgram, places: Sequence[Place]
) -> Iterator[Condition]:
    """Yield conditions that a size is a multiple of a number, from torch's guards.

    The other guards mostly distinguish sizes of 0 and 1 from those that torch traced
    for, and are no conditions here.
    """
    matches = list(filter(None, map(_MULTIPLE.fullmatch, program._guards_code)))
    if not matches:
        return
    names = input_names(program)
    # torch's text for a size -> its place
    place_of = {f"{_guarded(names[p.position])}.size()[{p.dim}]": p for p in places}
    for factor, size, divisor in map(re.Match.groups, matches):
        if size in place_of:
            # 4 * size is a multiple of 6 if size is a multiple of 3 = 6 / gcd(4, 6)
            number = int(divisor) // math.gcd(int(factor or 1), int(divisor))
            code = f"{place_of[size].code} % {number} == 0"
            yield Condition(code, place_of[size], f"multiples of {number}")


def _guarded(name: str) -> str:
    """Return an input's name in torch's guards: ``L['pair']['a']`` for ``pair['a']``."""
    root, bracket, rest = name.partition("[")
    return f"L[{root!r}]{bracket}{rest}"


def input_names(program: ExportedProgram) -> list[str]:
    """Return the caller's names for the flat inputs.

    If torch did not record them, these are the names in the graph.
    """
    nodes = [node.name for node in user_inputs(program)]
    signature: Any = program.module_call_graph[0].signature
    names = leaf_names(signature.in_spec, signature.forward_arg_names or ())
    return names if len(names) == len(nodes) else nodes

"""Finds the target that a finished graph needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..ir.graph import Graph
from ..ir.types import DType
from .operator_table import FILES, Version
from .target import MX_COMMON, alternatives, extensions, kind_of, value_alternatives

_CHOICES = (frozenset({"FP"}), frozenset({"INT"}), frozenset({"FP", "INT"}))


class Requirement(NamedTuple):
    """Profiles (FP, INT) and extensions in lower case."""

    profiles: frozenset[str]
    extensions: frozenset[str]

    def __str__(self) -> str:
        return "+".join([*sorted(self.profiles), *sorted(self.extensions)])


def required(graph: Graph, version: Version = (1, 0)) -> Requirement:
    """Return the fewest profiles, then extensions, that allow a graph.

    Operators that no target takes are left out; ``validate`` names those.
    """
    return _required(_Kinds(graph), version)


def required_version(graph: Graph) -> Version:
    """Return the first version that has everything that the graph uses."""
    return _first_version(_Kinds(graph))


def required_target(graph: Graph) -> tuple[Version, Requirement]:
    """Return ``required_version`` and the graph's requirement of it."""
    kinds = _Kinds(graph)
    version = _first_version(kinds)
    return version, _required(kinds, version)


class _Kinds:
    """The kinds of operators and types of a graph, each once."""

    def __init__(self, graph: Graph) -> None:
        graphs = graph.reachable()
        self.operators = {
            kind_of(operator): operator for g in graphs for operator in g.operators
        }.values()
        values = [
            v
            for g in graphs
            for v in (*g.inputs, *g.outputs, *g.constants())
            if v.dtype is not DType.SHAPE
        ]
        self.dtypes = dict.fromkeys([v.dtype for v in values])
        self.is_dynamic = any(v.type.is_dynamic for v in values)


def _required(kinds: _Kinds, version: Version) -> Requirement:
    needs = _distinct(_needs(kinds, version))
    found = [
        _with_profiles(profiles, needs, extensions(version)) for profiles in _CHOICES
    ]
    return min(
        (r for r in found if r),
        key=lambda r: (len(r.profiles), len(r.extensions)),
        default=_everything(needs),
    )


def _first_version(kinds: _Kinds) -> Version:
    return next((version for version in FILES if _has(kinds, version)), max(FILES))


def _has(kinds: _Kinds, version: Version) -> bool:
    if version == (1, 0) and kinds.is_dynamic:
        return False
    known = all(
        not isinstance(alternatives(operator, version), str)
        for operator in kinds.operators
    )
    return known and all(value_alternatives(dtype, version) for dtype in kinds.dtypes)


def _distinct(needs: Iterable[list[frozenset[str]]]) -> list[list[frozenset[str]]]:
    return list({tuple(n): n for n in needs}.values())


def _needs(kinds: _Kinds, version: Version) -> Iterator[list[frozenset[str]]]:
    for operator in kinds.operators:
        found = alternatives(operator, version)
        if not isinstance(found, str):
            yield found
    yield from (
        found for dtype in kinds.dtypes if (found := value_alternatives(dtype, version))
    )


def _with_profiles(
    profiles: frozenset[str],
    needs: list[list[frozenset[str]]],
    known: dict[str, frozenset[str]],
) -> Requirement | None:
    """Return the extensions needed with these profiles.

    None if the profiles do not do.
    """
    chosen: set[str] = set()
    for need in sorted(needs, key=len):
        ways = [_extensions(names) for names in need if _profiles(names) <= profiles]
        usable = [way for way in ways if all(known[e] & profiles for e in way)]
        if not usable:
            return None
        chosen |= min(usable, key=lambda way: (len(way - chosen), sorted(way)))
    if any(extension.startswith("mx") for extension in chosen):
        # the table leaves it out where only the element type requires it
        chosen.add(MX_COMMON)
    return Requirement(profiles, frozenset(chosen))


def _everything(needs: list[list[frozenset[str]]]) -> Requirement:
    names = frozenset(name for need in needs for way in need for name in way)
    return Requirement(_profiles(names), _extensions(names))


def _profiles(names: frozenset[str]) -> frozenset[str]:
    return frozenset(n[4:] for n in names if n.startswith("PRO-"))


def _extensions(names: frozenset[str]) -> frozenset[str]:
    return frozenset(n[4:].lower() for n in names if n.startswith("EXT-"))

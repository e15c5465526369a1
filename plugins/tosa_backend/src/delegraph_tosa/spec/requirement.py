"""Finds the target that a finished graph needs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Set
from typing import NamedTuple

from ..ir.graph import Graph, Operator
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
        by_kind: dict[Hashable, Operator] = {}
        dtypes: dict[DType, None] = {}
        self.is_dynamic = False
        for body in graph.reachable():
            for operator in body.operators:
                by_kind[kind_of(operator)] = operator
            for value in (*body.inputs, *body.outputs, *body.constants()):
                if value.dtype is not DType.SHAPE:
                    dtypes[value.dtype] = None
                    self.is_dynamic |= value.type.is_dynamic
        self.operators = by_kind.values()
        self.dtypes = tuple(dtypes)


def _required(kinds: _Kinds, version: Version) -> Requirement:
    """Return the fewest profiles, then extensions, of a version."""
    needs = _distinct(_needs(kinds, version))
    known = extensions(version)
    found: list[Requirement] = []
    for profiles in _CHOICES:
        requirement = _with_profiles(profiles, needs, known)
        if requirement is not None:
            found.append(requirement)
    if not found:
        return _everything(needs)
    return min(found, key=lambda r: (len(r.profiles), len(r.extensions)))


def _first_version(kinds: _Kinds) -> Version:
    """Return the first version that has all of a graph; the last one if none has."""
    for version in FILES:
        if _has(kinds, version):
            return version
    return max(FILES)


def _has(kinds: _Kinds, version: Version) -> bool:
    """Return whether a version has all operators, types and sizes of a graph."""
    if version == (1, 0) and kinds.is_dynamic:
        return False
    for operator in kinds.operators:
        if isinstance(alternatives(operator, version), str):
            return False
    return all(value_alternatives(dtype, version) for dtype in kinds.dtypes)


def _distinct(needs: Iterable[list[frozenset[str]]]) -> list[list[frozenset[str]]]:
    """Return different needs, each once."""
    return list({tuple(need): need for need in needs}.values())


def _needs(kinds: _Kinds, version: Version) -> Iterator[list[frozenset[str]]]:
    """Yield the alternatives of each operator and each type that the version has."""
    for operator in kinds.operators:
        found = alternatives(operator, version)
        if not isinstance(found, str):
            yield found
    for dtype in kinds.dtypes:
        of_values = value_alternatives(dtype, version)
        if of_values:
            yield of_values


def _with_profiles(
    profiles: frozenset[str],
    needs: list[list[frozenset[str]]],
    known: dict[str, frozenset[str]],
) -> Requirement | None:
    """Return the extensions needed with these profiles.

    None if the profiles do not do.
    """
    chosen: set[str] = set()

    def cost(way: Set[str]) -> tuple[int, list[str]]:
        """Return how many new extensions it takes, then a fixed order."""
        return len(way - chosen), sorted(way)

    for need in sorted(needs, key=len):
        ways = [_extensions(names) for names in need if _profiles(names) <= profiles]
        usable = [way for way in ways if all(known[name] & profiles for name in way)]
        if not usable:
            return None
        chosen |= min(usable, key=cost)
    if any(extension.startswith("mx") for extension in chosen):
        # the table leaves it out where only the element type requires it
        chosen.add(MX_COMMON)
    return Requirement(profiles, frozenset(chosen))


def _everything(needs: list[list[frozenset[str]]]) -> Requirement:
    """Return all profiles and extensions of all alternatives."""
    names: set[str] = set()
    for need in needs:
        names.update(*need)
    return Requirement(_profiles(names), _extensions(names))


def _profiles(names: Set[str]) -> frozenset[str]:
    """Return the profiles among ``names``: FP for PRO-FP."""
    prefix = "PRO-"
    return frozenset([n.removeprefix(prefix) for n in names if n.startswith(prefix)])


def _extensions(names: Set[str]) -> frozenset[str]:
    """Return the extensions among ``names``, in lower case: bf16 for EXT-BF16."""
    prefix = "EXT-"
    found = [n.removeprefix(prefix).lower() for n in names if n.startswith(prefix)]
    return frozenset(found)

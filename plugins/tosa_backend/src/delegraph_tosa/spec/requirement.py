"""What a finished graph needs of its target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..ir.graph import Graph, Value
from ..ir.types import DType
from .table import FILES, Version
from .target import MX_COMMON, alternatives, extensions, value_alternatives

_CHOICES = (frozenset({"FP"}), frozenset({"INT"}), frozenset({"FP", "INT"}))


class Requirement(NamedTuple):
    """Profiles (FP, INT) and extensions in lower case."""

    profiles: frozenset[str]
    extensions: frozenset[str]

    def __str__(self) -> str:
        return "+".join([*sorted(self.profiles), *sorted(self.extensions)])


def required(graph: Graph, version: Version = (1, 0)) -> Requirement:
    """The fewest profiles, then the fewest extensions, that allow every operator, constant and tensor of the graph.

    Operators that no target takes are left out; ``validate`` names those.
    """
    needs = _distinct(need for g in graph.reachable() for need in _needs(g, version))
    found = [_with_profiles(profiles, needs, extensions(version)) for profiles in _CHOICES]
    return min((r for r in found if r), key=lambda r: (len(r.profiles), len(r.extensions)), default=_everything(needs))


def required_version(graph: Graph) -> Version:
    """The first version that has every operator, with its element types, and every constant of the graph."""
    return next((v for v in FILES if all(_has(g, v) for g in graph.reachable())), max(FILES))


def _has(graph: Graph, version: Version) -> bool:
    if any(isinstance(alternatives(operator, version), str) for operator in graph.operators):
        return False
    values = (*graph.inputs, *graph.outputs, *graph.constants())
    if version == (1, 0) and any(v.type.is_dynamic for v in values):
        return False
    return all(v.dtype is DType.SHAPE or value_alternatives(v.dtype, version) for v in values)


def _distinct(needs: Iterable[list[frozenset[str]]]) -> list[list[frozenset[str]]]:
    return list({tuple(n): n for n in needs}.values())


def _needs(graph: Graph, version: Version) -> Iterator[list[frozenset[str]]]:
    for operator in graph.operators:
        found = alternatives(operator, version)
        if not isinstance(found, str):
            yield found
    for value in dict.fromkeys([*graph.inputs, *graph.outputs]):
        yield from _value_needs(value, version)
    for value in graph.constants():
        yield from _value_needs(value, version)


def _value_needs(value: Value, version: Version) -> Iterator[list[frozenset[str]]]:
    if value.dtype is not DType.SHAPE and (found := value_alternatives(value.dtype, version)):
        yield found


def _with_profiles(
    profiles: frozenset[str], needs: list[list[frozenset[str]]], known: dict[str, frozenset[str]]
) -> Requirement | None:
    """The extensions needed beside these profiles; None if the profiles do not do."""
    chosen: set[str] = set()
    for need in sorted(needs, key=len):
        ways = [_extensions(names) for names in need if _profiles(names) <= profiles]
        usable = [way for way in ways if all(known[e] & profiles for e in way)]
        if not usable:
            return None
        chosen |= min(usable, key=lambda way: (len(way - chosen), sorted(way)))
    if any(extension.startswith("mx") for extension in chosen):
        chosen.add(MX_COMMON)  # the table leaves it out where it only asks for the element type
    return Requirement(profiles, frozenset(chosen))


def _everything(needs: list[list[frozenset[str]]]) -> Requirement:
    names = frozenset(name for need in needs for way in need for name in way)
    return Requirement(_profiles(names), _extensions(names))


def _profiles(names: frozenset[str]) -> frozenset[str]:
    return frozenset(n[4:] for n in names if n.startswith("PRO-"))


def _extensions(names: frozenset[str]) -> frozenset[str]:
    return frozenset(n[4:].lower() for n in names if n.startswith("EXT-"))

"""Dataclasses that are flatbuffer tables: each field says its id in the schema and how
it is stored.

The classes in ``tables`` and ``flat_tensor`` are the only description of the format.
``serialize`` writes and reads any of them, so a field is added in one line.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

SCALARS = {"b": 1, "B": 1, "?": 1, "i": 4, "I": 4, "q": 8, "Q": 8, "d": 8}
"""``struct`` letter of a stored number -> its width in bytes."""


@dataclass(frozen=True)
class Scalar:
    """A number that is stored in the table itself; ``enum`` lists the values that it
    may have, None for any.
    """

    form: str
    default: Any = 0
    enum: frozenset[int] | None = None


@dataclass(frozen=True)
class Text:
    """A string."""


@dataclass(frozen=True)
class Sub:
    """A table."""

    cls: type[Any]


@dataclass(frozen=True)
class Numbers:
    """A vector of numbers; ``raw`` ones are bytes to Python, too, and may be absent."""

    form: str
    raw: bool = False

    @property
    def optional(self) -> bool:
        return self.raw


@dataclass(frozen=True)
class Tables:
    """A vector of tables. An empty one is stored unless it is ``optional``: runtimes
    read the others unchecked.
    """

    cls: type[Any]
    optional: bool = False


@dataclass(frozen=True)
class Either:
    """A union: the field ``id`` holds the number of the member (1, 2, ...), the field
    ``id + 1`` its table.
    """

    members: tuple[type[Any], ...]


Kind = Scalar | Text | Sub | Numbers | Tables | Either


@dataclass(frozen=True)
class Field:
    """One field of a table: its name in the class, its id in the schema, how it is
    stored.
    """

    name: str
    id: int
    kind: Kind


def _stored(id: int, kind: Kind, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={"id": id, "kind": kind})


def scalar(id: int, form: str, default: Any = 0, enum: Any = None) -> Any:
    """A number, by its ``struct`` letter; ``enum`` is a class of ints whose values are
    the only valid ones.
    """
    return _stored(
        id,
        Scalar(
            form, default, None if enum is None else frozenset(int(v) for v in enum)
        ),
        default,
    )


def text(id: int) -> Any:
    """A string, empty if absent."""
    return _stored(id, Text(), "")


def sub(id: int, cls: type[Any]) -> Any:
    """A table, None if absent."""
    return _stored(id, Sub(cls), None)


def numbers(id: int, form: str) -> Any:
    """A vector of numbers; a file in which it is absent is damaged."""
    return _stored(id, Numbers(form), ())


def raw(id: int) -> Any:
    """A vector of bytes, empty if absent."""
    return _stored(id, Numbers("B", raw=True), b"")


def tables(id: int, cls: type[Any], optional: bool = False) -> Any:
    """A vector of tables; only if it is ``optional`` may it be absent, and is empty
    then.
    """
    return _stored(id, Tables(cls, optional), ())


def union(id: int, members: Any) -> Any:
    """A table of one of the classes of a ``A | B`` union; its order is the schema's.
    None if absent.
    """
    return _stored(id, Either(get_args(members)), None)


@cache
def fields_of(cls: type[Any]) -> tuple[Field, ...]:
    """The stored fields of a table's class."""
    return tuple(
        Field(f.name, f.metadata["id"], f.metadata["kind"])
        for f in dataclasses.fields(cls)
    )

"""Declare dataclasses as flatbuffer tables: each field has its id and storage.

Example: ``offset: int = scalar(0, "Q")`` is field 0 of its table, an unsigned 64-bit
integer. The classes in ``pte_tables`` and ``flat_tensor`` are the only description of
the format. ``serialize`` writes and reads any of them, so a new field is one line.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

SCALARS = {"b": 1, "B": 1, "?": 1, "i": 4, "I": 4, "q": 8, "Q": 8, "d": 8}
"""``struct`` letter of a number -> its width in bytes."""


@dataclass(frozen=True)
class Scalar:
    """A number in the table itself; ``enum`` lists its valid values, None for any."""

    form: str
    default: Any = 0
    enum: frozenset[int] | None = None


@dataclass(frozen=True)
class Text:
    """A string."""


@dataclass(frozen=True)
class Sub:
    """A table inside the table."""

    cls: type[Any]


@dataclass(frozen=True)
class Numbers:
    """A vector of numbers.

    ``raw``: whether it is ``bytes`` in Python. Only such a vector may be absent.
    """

    form: str
    raw: bool = False

    @property
    def optional(self) -> bool:
        """Whether the vector may be absent."""
        return self.raw


@dataclass(frozen=True)
class Tables:
    """A vector of tables.

    ``optional``: whether it may be absent. Runtimes read other vectors unchecked, so
    even an empty one is stored.
    """

    cls: type[Any]
    optional: bool = False


@dataclass(frozen=True)
class Either:
    """A union of tables.

    The field ``id`` holds the number of the member (1, 2, ...), ``id + 1`` its table.
    """

    members: tuple[type[Any], ...]


Kind = Scalar | Text | Sub | Numbers | Tables | Either


@dataclass(frozen=True)
class Field:
    """A field of a table: its name in the class, its id in the schema, and its storage."""

    name: str
    id: int
    kind: Kind


def _stored(id: int, kind: Kind, default: Any) -> Any:
    """Return the field of a dataclass that is stored as ``kind``."""
    return dataclasses.field(default=default, metadata={"id": id, "kind": kind})


def scalar(id: int, form: str, default: Any = 0, enum: Any = None) -> Any:
    """Declare a number field.

    ``form``: the letter of its type in ``struct``. ``enum``: the class of its valid
    values, if they are limited.
    """
    valid = None if enum is None else frozenset(int(value) for value in enum)
    return _stored(id, Scalar(form, default, valid), default)


def text(id: int) -> Any:
    """Declare a string, empty if absent."""
    return _stored(id, Text(), "")


def sub(id: int, cls: type[Any]) -> Any:
    """Declare a table, None if absent."""
    return _stored(id, Sub(cls), None)


def numbers(id: int, form: str) -> Any:
    """Declare a vector of numbers. A file without it is damaged."""
    return _stored(id, Numbers(form), ())


def raw(id: int) -> Any:
    """Declare a vector of bytes, empty if absent."""
    return _stored(id, Numbers("B", raw=True), b"")


def tables(id: int, cls: type[Any], optional: bool = False) -> Any:
    """Declare a vector of tables.

    Only an ``optional`` vector may be absent, and is then read as empty.
    """
    return _stored(id, Tables(cls, optional), ())


def union(id: int, members: Any) -> Any:
    """Declare a table of one of several classes; None if the table is absent.

    ``members``: the classes as ``A | B``, in the order of the schema's union.
    """
    return _stored(id, Either(get_args(members)), None)


@cache
def fields_of(cls: type[Any]) -> tuple[Field, ...]:
    """Return the stored fields of a table's class."""
    return tuple(
        Field(f.name, f.metadata["id"], f.metadata["kind"])
        for f in dataclasses.fields(cls)
    )

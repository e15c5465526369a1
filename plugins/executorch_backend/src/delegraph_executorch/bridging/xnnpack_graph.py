"""XNNPACK's graphs in fewer bytes: ExecuTorch's blobs, with equal parts once and names of constants that are short.

A file of a small language model is its weights and the graphs of some twenty delegates. What flatc writes has every
list of sizes again for each value that has them, and ExecuTorch names a constant by 64 digits, in each blob and in the
program around them. The graph is read by the schema that the wheel has, so that nothing of it is left out.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from dataclasses import make_dataclass, replace
from functools import cache, reduce
from importlib.resources import files
from itertools import starmap
from operator import or_
from typing import Any

from delegraph.errors import FormatError
from delegraph.io.flatbuffer import root

from ..program.schema import numbers, scalar, sub, tables, text, union
from ..serialize.builder import Builder
from ..serialize.unpack import Unpacker
from ..serialize.xnnpack_blob import HEADER

_ALIGNMENT = 16
"""Bytes that ExecuTorch aligns the graph in a blob to, and constants behind it."""
_DIGEST = re.compile("[0-9a-f]{64}$")
_SHORT = 15
"""Characters of a short name: 90 bits of the digest. Two constants of a billion share one by a chance of 1 in 10^9."""

_FORMS = {"uint": "I", "int": "i", "short": "h", "uint64": "Q", "float": "I"}
"""``struct`` letters of what fields hold; floats are copied by their bits."""
_DECLARATION = re.compile(r"(table|union|enum)\s+(\w+)\s*(?::\s*(\w+)\s*)?\{(.*?)\}", re.DOTALL)
_FIELD = re.compile(r"(\w+)\s*:\s*(\[?)(\w+)\]?([^;]*);")
_MEMBER = re.compile(r"(\w+)(?:\s*:\s*(\w+))?")


def short_key(key: str) -> str:
    """A name with the digest at its end, as ``scale_`` and 64 digits, cut short; any other name as it is."""
    return _DIGEST.sub(lambda digest: urlsafe_b64encode(bytes.fromhex(digest[0])).decode()[:_SHORT], key)


def shrink(blob: bytes) -> bytes:
    """The same graph in fewer bytes, with its constants by ``short_key``.

    A blob that is not as ExecuTorch's compiler writes them stays as it is.
    """
    if len(blob) < HEADER.size:
        return blob
    zeros, magic, length, start, size, _, constants = HEADER.unpack_from(blob)
    if magic != b"XH00" or length != HEADER.size or constants or start + size > len(blob):
        return blob
    try:
        graph: Any = Unpacker().table(graph_class(), root(blob[start : start + size], "XN01", "blob of XNNPACK"))
    except FormatError:
        return blob
    named = tuple(replace(c, named_key=short_key(c.named_key)) for c in graph.constant_data)
    builder = Builder()
    made = builder.finish(builder.add(replace(graph, constant_data=named)), "XN01", lambda size: b"")
    start = length + -length % _ALIGNMENT
    header = HEADER.pack(zeros, magic, length, start, len(made), start + len(made), 0)
    return header.ljust(start, b"\0") + made


@cache
def graph_class() -> type[Any]:
    """The class of a graph's root table, made from ExecuTorch's schema, with those that it refers to."""
    path = files("executorch.backends.xnnpack.serialization") / "schema.fbs"
    return _Classes(path.read_text("utf-8")).of("XNNGraph")


class _Classes:
    """Classes for the tables of a flatbuffer schema, none of which refers to itself."""

    def __init__(self, schema: str) -> None:
        declared = _DECLARATION.findall(re.sub(r"//.*", "", schema))
        self._bodies = {name: body for kind, name, _, body in declared if kind != "enum"}
        self._unions = {name for kind, name, _, _ in declared if kind == "union"}
        self._enums = {name: stored for kind, name, stored, _ in declared if kind == "enum"}
        self._known: dict[str, type[Any]] = {}

    def of(self, table: str) -> type[Any]:
        if table not in self._known:
            fields, number = [], 0
            for name, bracket, kind, attributes in _FIELD.findall(self._bodies[table]):
                if "deprecated" not in attributes:
                    fields.append((name, Any, self._stored(number, kind, bool(bracket))))
                number += 2 if kind in self._unions else 1  # a union has the number of its member in front
            self._known[table] = make_dataclass(table, fields, frozen=True, slots=True)
        return self._known[table]

    def _stored(self, number: int, kind: str, is_list: bool) -> Any:
        """The field of a class, as ``schema`` has it, that is field ``number`` of a table and holds ``kind``."""
        if kind in self._unions:
            members = starmap(self._member, _MEMBER.findall(self._bodies[kind]))
            return union(number, reduce(or_, members))
        if kind == "string":
            return text(number)
        if kind in self._bodies:
            return tables(number, self.of(kind)) if is_list else sub(number, self.of(kind))
        form = _FORMS[self._enums.get(kind, kind)]
        return numbers(number, form) if is_list else scalar(number, form)

    def _member(self, name: str, table: str) -> type[Any]:
        """The class of a member of a union. Members of one table have classes of their own, by which they are told."""
        return make_dataclass(name, (), bases=(self.of(table),), frozen=True, slots=True) if table else self.of(name)

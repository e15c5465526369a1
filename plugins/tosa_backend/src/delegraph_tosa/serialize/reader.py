"""Reading a TOSA flatbuffer from an untrusted source: a graph, or one FormatError that
says what is wrong.
"""

from __future__ import annotations

from delegraph.errors import FormatError
from delegraph.io.flatbuffer import Table, root

from ..ir.graph import Graph, Operator
from ..spec import TosaSpec, required, required_target
from ..spec.operator_table import FILES, OLDER
from .regions import Block, Regions
from .schema import FEATURES, IDENTIFIER, CompatibilityField, GraphField


def read(data: bytes | bytearray | memoryview) -> Graph:
    """The graph of a ``.tosa`` file of version 1.0, 1.1 or 0.80. Raises FormatError."""
    return read_numbered(data)[0]


def read_numbered(
    data: bytes | bytearray | memoryview,
) -> tuple[Graph, dict[Operator, int]]:
    """As ``read``, with the number in the file of each operator of the program, as a
    ``TosaFile`` counts them.
    """
    table = root(data, IDENTIFIER, "TOSA file")
    block: type[Block] = Block
    if _version(table) < (1, 0):
        from .older import OlderBlock

        block = OlderBlock
    else:
        _check_features(table)
    regions = Regions(table, block)
    graph = regions.graph(None, ())
    numbers = dict(zip(graph.operators, regions.numbers, strict=True))
    graph.operators[:0] = regions.declared_inside
    return graph, numbers


def target_of(data: bytes | bytearray | memoryview, graph: Graph) -> TosaSpec:
    """The smallest target that takes a file and the ``graph`` in it.

    It is of 0.80 if the file is, else of the first version that has all of it.
    """
    version = _version(root(data, IDENTIFIER, "TOSA file"))
    if version in OLDER:
        return TosaSpec(version, *required(graph, version))
    version, needs = required_target(graph)
    return TosaSpec(version, *needs)


def stated_version(data: bytes) -> tuple[int, int]:
    """The version that a file of any version says it has, of which only the beginning
    has to be there.

    Raises FormatError if it is not in there.
    """
    return _stated(root(data, IDENTIFIER, "TOSA file"))


def _stated(table: Table) -> tuple[int, int]:
    version = table.table(GraphField.VERSION, "version")
    if version is None:
        raise table.damaged("it has no version")
    return version.scalar(0, "i", -1), version.scalar(1, "i", -1)


def _version(table: Table) -> tuple[int, int]:
    major, minor = _stated(table)
    if (major, minor) not in {**FILES, **OLDER}:
        raise FormatError(
            "format-invalid",
            f"a TOSA file of version {major}.{minor}; 0.80, 1.0 and 1.1 are read here",
        )
    return major, minor


def _check_features(table: Table) -> None:
    """Refuse a file with features that are not known here: it must not be read as if it
    were without.

    Features are what says so; the version of the official serializer that should read
    it says nothing of this reader.
    """
    held = table.table(GraphField.COMPATIBILITY, "compatibility")
    unknown = (held.scalar(CompatibilityField.FEATURES, "Q") if held else 0) & ~FEATURES
    if unknown:
        bits = [bit for bit in range(64) if unknown >> bit & 1]
        raise FormatError(
            "format-invalid",
            f"a TOSA file with compatibility features {bits}, which are not known here",
        )

"""Reads TOSA flatbuffers from untrusted sources."""

from __future__ import annotations

from delegraph.errors import FormatError
from delegraph_engines.flatbuffer import Table, root

from ..ir.graph import Graph, Operator
from ..spec import TosaSpec, required, required_target
from ..spec.operator_table import FILES, OLDER
from .regions import Block, Regions
from .schema import FEATURES, IDENTIFIER, CompatibilityField, GraphField


def read(data: bytes | bytearray | memoryview) -> Graph:
    """Read a ``.tosa`` file of version 1.0, 1.1 or 0.80. Raises FormatError."""
    return read_numbered(data)[0]


def read_numbered(
    data: bytes | bytearray | memoryview,
) -> tuple[Graph, dict[Operator, int]]:
    """As ``read``, but also return the number of each operator in the file.

    Numbers are those of ``TosaFile``.
    """
    table = root(data, IDENTIFIER, "TOSA file")
    block: type[Block] = Block
    if _version(table) < (1, 0):
        from .older import OlderBlock

        block = OlderBlock
    else:
        _check_features(table)
    regions = Regions(table, block)
    graph = regions.program()
    numbers = dict(zip(graph.operators, regions.numbers, strict=True))
    # the program declares variables that only control flow graphs use
    graph.operators[:0] = regions.declared_inside
    return graph, numbers


def target_of(data: bytes | bytearray | memoryview, graph: Graph) -> TosaSpec:
    """Return the smallest target that supports a file with this ``graph``.

    Its version is 0.80 for files of 0.80, otherwise the first that has all operators.
    """
    version = _version(root(data, IDENTIFIER, "TOSA file"))
    if version in OLDER:
        return TosaSpec(version, *required(graph, version))
    version, needs = required_target(graph)
    return TosaSpec(version, *needs)


def stated_version(data: bytes) -> tuple[int, int]:
    """Return the version in a file's header. The beginning of the file is enough.

    The version may be one that this reader does not support. Raises FormatError if the
    header is incomplete.
    """
    return _stated(root(data, IDENTIFIER, "TOSA file"))


def _stated(table: Table) -> tuple[int, int]:
    """Return the version in the root table of a file."""
    version = table.table(GraphField.VERSION, "version")
    if version is None:
        raise table.damaged("it has no version")
    return version.scalar(0, "i", -1), version.scalar(1, "i", -1)


def _version(table: Table) -> tuple[int, int]:
    """Return the version of a file. Raises FormatError if it is not supported."""
    major, minor = _stated(table)
    if (major, minor) not in {**FILES, **OLDER}:
        raise FormatError(
            "format-invalid",
            f"the TOSA file has version {major}.{minor}; supported are 0.80, 1.0 and 1.1",
        )
    return major, minor


def _check_features(table: Table) -> None:
    """Refuse a file with unknown features, which this reader would misread.

    The features decide, not the reader version in the file: that one refers to the
    official serializer.
    """
    compatibility = table.table(GraphField.COMPATIBILITY, "compatibility")
    if compatibility is None:
        return
    unknown = compatibility.scalar(CompatibilityField.FEATURES, "Q") & ~FEATURES
    if unknown:
        bits = [bit for bit in range(64) if unknown >> bit & 1]
        raise FormatError(
            "format-invalid",
            f"the TOSA file needs the compatibility features {bits}, which delegraph-tosa"
            " does not support",
        )

"""Reads VGF files: what they take, return and hold. Every offset and count of a file is checked before it is followed.

Facts of the format (https://github.com/arm/ai-ml-sdk-vgf-library): a header of 128 bytes, then four sections: modules
(SPIR-V), model sequence (inputs, outputs, segments), resources (type and shape of every tensor), and constants. The
first three are flatbuffers without identifiers; numbers of fields below are those of its schema.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from delegraph.errors import FormatError
from delegraph.io.flatbuffer import Buffer, Table

VERSION = (0, 5)
"""Newest version of the format that is read; a file of an older minor version is read as well."""
FORMATS = {
    13: ("uint8", "R8Uint", 1),
    14: ("int8", "R8Sint", 1),
    75: ("int16", "R16Sint", 2),
    76: ("float16", "R16Sfloat", 2),
    99: ("int32", "R32Sint", 4),
    100: ("float32", "R32Sfloat", 4),
    111: ("int64", "R64Sint", 8),
    1000460000: ("bool", "R8BoolArm", 1),
    1000460001: ("bfloat16", "R16Bfloat16Arm", 2),
    1000460002: ("float8_e4m3fn", "R8Float8E4M3Arm", 1),
    1000460003: ("float8_e5m2", "R8Float8E5M2Arm", 1),
}
"""VkFormat -> torch's name of the type, the scenario runner's name of the format, bytes of an element."""
_HEADER = struct.Struct("<4sH2x3B5x8Q")
_SIZE = 128
_CONSTANTS, _CONSTANT = struct.Struct("<8sQ"), struct.Struct("<IiQQ")
_INPUT, _OUTPUT, _CONSTANT_CATEGORY = 0, 1, 3


@dataclass(frozen=True)
class Tensor:
    """An input, output or constant. ``slot``: the binding at which a caller finds it; of a constant its number."""

    name: str
    slot: int
    format: int
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        """Torch's name of the type, or the number of the VkFormat."""
        return FORMATS[self.format][0] if self.format in FORMATS else f"VkFormat {self.format}"


@dataclass(frozen=True)
class Content:
    """What a VGF file says of itself.

    ``extents``: first byte in the file, and bytes, of each constant. ``modules``: name and number of SPIR-V words.
    """

    version: tuple[int, int, int]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    extents: tuple[tuple[int, int], ...]
    modules: tuple[tuple[str, int], ...]
    segments: tuple[str, ...]


def version_of(beginning: bytes | memoryview) -> tuple[int, int, int]:
    """The version in a file's header. FormatError for what is no VGF file, or one of a version that is not read."""
    if len(beginning) < _SIZE or bytes(beginning[:4]) != b"VGF1":
        raise FormatError("format-invalid", "no VGF file: it does not begin as one")
    major, minor, patch = beginning[8:11]
    if major != VERSION[0] or minor > VERSION[1]:
        text = f"a VGF file of version {major}.{minor}.{patch}; versions up to {VERSION[0]}.{VERSION[1]} are read"
        raise FormatError("format-invalid", text)
    return major, minor, patch


def content_of(data: bytes | memoryview) -> Content:
    """What a VGF file holds, whatever stands behind it. FormatError if it is damaged."""
    whole = memoryview(data)
    version = version_of(whole)
    places = _HEADER.unpack_from(whole)[5:]
    sections = [_section(whole, *place) for place in zip(places[::2], places[1::2], strict=True)]
    modules, sequence, table = map(_root, sections[:3])
    resources = [(e.scalar(1, "I"), e.scalar(2, "B"), _shape(e)) for e in table.tables(0, "resource")]

    def tensors(slots: int, names: int, category: int) -> tuple[Tensor, ...]:
        named = sequence.strings(names, "name")
        rows = [(slot.scalar(0, "I"), slot.scalar(1, "I")) for slot in sequence.tables(slots, "slot")]
        named += [""] * (len(rows) - len(named))
        return tuple(
            Tensor(name, slot, *_at(resources, k, category)) for name, (slot, k) in zip(named, rows, strict=False)
        )

    constants = list(_constants(sections[3], places[6]))
    return Content(
        version,
        inputs=tensors(1, 3, _INPUT),
        outputs=tensors(2, 4, _OUTPUT),
        constants=tuple(Tensor("", k, *_at(resources, c[0], _CONSTANT_CATEGORY)) for k, c in enumerate(constants)),
        extents=tuple(c[1:] for c in constants),
        modules=tuple((m.string(1, "name"), _words(m)) for m in modules.tables(0, "module")),
        segments=tuple(segment.string(1, "name") for segment in sequence.tables(0, "segment")),
    )


def _section(whole: memoryview, start: int, length: int) -> memoryview:
    if start < _SIZE or start + length > len(whole):
        raise _damaged(f"a section of {length} bytes at {start} is outside of it")
    return whole[start : start + length]


def _root(section: memoryview) -> Table:
    buffer = Buffer(section, "VGF file")
    return Table(buffer, buffer.follow(0, "root table"), "root table")


def _shape(resource: Table) -> tuple[int, ...]:
    described = resource.table(3, "description")
    return tuple(described.numbers(0, "i8", "shape")) if described else ()


def _words(module: Table) -> int:
    code = module.table(4, "code")
    return len(code.numbers(0, "u4", "words")) if code else 0


def _at(resources: Sequence[tuple[int, int, tuple[int, ...]]], k: int, category: int) -> tuple[int, tuple[int, ...]]:
    """Format and shape of a resource."""
    if k >= len(resources) or resources[k][1] != category:
        raise _damaged(f"resource {k} is not there, or of another kind than what refers to it")
    return resources[k][0], resources[k][2]


def _constants(section: memoryview, start: int) -> Iterator[tuple[int, int, int]]:
    """(number of its resource, first byte, bytes) of each constant, in a section that begins at ``start``."""
    if len(section) < _CONSTANTS.size or bytes(section[:8]) != b"CONST00\0":
        raise _damaged("its constants are of another version")
    count = _CONSTANTS.unpack_from(section)[1]
    data = _CONSTANTS.size + count * _CONSTANT.size
    if data > len(section):
        raise _damaged(f"it has no room for {count} constants")
    for k in range(count):
        resource, _, size, offset = _CONSTANT.unpack_from(section, _CONSTANTS.size + k * _CONSTANT.size)
        if data + offset + size > len(section):
            raise _damaged(f"constant {k} is outside of it")
        yield resource, start + data + offset, size


def _damaged(why: str) -> FormatError:
    return FormatError("format-invalid", f"a damaged VGF file: {why}")

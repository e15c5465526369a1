"""Reads the inputs, outputs and constants of VGF files.

Every offset and count is checked before it is used. Facts of the format
(https://github.com/arm/ai-ml-sdk-vgf-library): a header of 128 bytes, then four
sections. These are modules (SPIR-V), model sequence (inputs, outputs, segments),
resources (type and shape of every tensor), and constants. The first three are
flatbuffers without identifiers; numbers of fields below are those of its schema.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

from delegraph.errors import FormatError
from delegraph_engines.flatbuffer import Buffer, Table

if TYPE_CHECKING:
    from delegraph_engines import Signature

MARK = b"delegraph-vgf-3"
"""The end of each blob of ``VgfBackend``: a VGF file, sealed with its signature."""
VERSION = (0, 5)
"""The newest version of the format that is read, together with older minor versions."""


class Format(NamedTuple):
    """A type of elements: torch's name, and the scenario runner's."""

    dtype: str
    runner: str


FORMATS = {
    13: Format("uint8", "R8Uint"),
    14: Format("int8", "R8Sint"),
    75: Format("int16", "R16Sint"),
    76: Format("float16", "R16Sfloat"),
    99: Format("int32", "R32Sint"),
    100: Format("float32", "R32Sfloat"),
    111: Format("int64", "R64Sint"),
    1000460000: Format("bool", "R8BoolArm"),
    1000460001: Format("bfloat16", "R16Bfloat16Arm"),
    1000460002: Format("float8_e4m3fn", "R8Float8E4M3Arm"),
    1000460003: Format("float8_e5m2", "R8Float8E5M2Arm"),
}
"""VkFormat -> the type of elements."""
_SECTIONS = struct.Struct("<16x8Q")
"""The header: 16 bytes that are skipped, then start and length of each section."""
_HEADER_SIZE = 128
_CONSTANTS = struct.Struct("<8sQ")
"""The beginning of the section of constants: its version, and their number."""
_CONSTANT = struct.Struct("<IiQQ")
"""A constant: its resource, a sparsity dimension, size and offset of its bytes."""

# categories of resources
_INPUT = 0
_OUTPUT = 1
_CONSTANT_CATEGORY = 3


@dataclass(frozen=True)
class Tensor:
    """An input, output or constant.

    ``slot``: the binding of an input or output, the number of a constant. ``start`` and
    ``bytes``: offset and size of a constant's elements in the file.
    """

    name: str
    slot: int
    format: int
    shape: tuple[int, ...]
    start: int = 0
    bytes: int = 0

    @property
    def dtype(self) -> str:
        """torch's name of the type, or the number of the VkFormat."""
        if self.format in FORMATS:
            return FORMATS[self.format].dtype
        return f"VkFormat {self.format}"


@dataclass(frozen=True)
class Content:
    """The inputs, outputs and constants of a VGF file, without the SPIR-V."""

    version: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]

    def why_mismatch(self, signature: Signature) -> str | None:
        """Return how the file's inputs and outputs differ from ``signature``, or None."""
        wrong_input = _why_mismatch("takes", self.inputs, signature.inputs)
        return wrong_input or _why_mismatch("returns", self.outputs, signature.outputs)


def _why_mismatch(
    verb: str, tensors: Sequence[Tensor], types: Sequence[tuple[str, tuple[int, ...]]]
) -> str | None:
    """Return how the tensors of a file differ from ``types``, or None.

    ``verb``: "takes" for inputs, or "returns" for outputs.
    """
    found = [(tensor.dtype, tensor.shape) for tensor in tensors]
    # TOSA's integer types have no sign
    wanted = [("int8" if dtype == "uint8" else dtype, shape) for dtype, shape in types]
    if found == wanted:
        return None
    return f"the file {verb} {found}, but the partition {verb} {wanted}"


def version_of(beginning: bytes | memoryview) -> str:
    """Return the version in a file's header.

    Raises FormatError for other files, and for versions that cannot be read.
    """
    if len(beginning) < _HEADER_SIZE or bytes(beginning[:4]) != b"VGF1":
        raise FormatError(
            "format-invalid",
            "the file is not a VGF file: it does not begin with a VGF header",
        )
    # bytes 8 to 10 of the header
    major, minor, patch = beginning[8:11]
    if major != VERSION[0] or minor > VERSION[1]:
        text = (
            f"the VGF file has version {major}.{minor}.{patch}; delegraph-vgf reads"
            f" versions up to {VERSION[0]}.{VERSION[1]}"
        )
        raise FormatError("format-invalid", text)
    return f"{major}.{minor}.{patch}"


def content_of(data: bytes | memoryview) -> Content:
    """Return the content of a VGF file; FormatError if it is damaged.

    Bytes after its end are ignored.
    """
    file = memoryview(data)
    version = version_of(file)
    _, sequence, resource_table, constants = (_section(file, k) for k in range(4))
    # resource: 1 is its VkFormat, 2 its category (input, output or constant), 3 its
    # description, which has the shape
    resources = [
        _Resource(entry.scalar(1, "I"), _shape(entry), entry.scalar(2, "B"))
        for entry in _root(resource_table).tables(0, "resource")
    ]
    # model sequence: 1 and 2 are the slots of inputs and outputs, 3 and 4 their names
    model = _root(sequence)
    inputs = _arguments(model, resources, slots=1, names=3, category=_INPUT)
    outputs = _arguments(model, resources, slots=2, names=4, category=_OUTPUT)
    start_of_constants = _SECTIONS.unpack_from(file)[6]
    stored: list[Tensor] = []
    for constant in _constants(constants, start_of_constants):
        resource = _resource(resources, constant.resource, _CONSTANT_CATEGORY)
        stored.append(
            Tensor(
                name="",
                slot=len(stored),
                format=resource.format,
                shape=resource.shape,
                start=constant.start,
                bytes=constant.bytes,
            )
        )
    return Content(version, inputs, outputs, tuple(stored))


def _arguments(
    model: Table, resources: Sequence[_Resource], slots: int, names: int, category: int
) -> tuple[Tensor, ...]:
    """Return inputs or outputs. ``slots`` and ``names``: the fields that list them."""
    # a file may leave names out
    all_names = chain(model.strings(names, "name"), repeat(""))
    arguments: list[Tensor] = []
    for name, slot in zip(all_names, model.tables(slots, "slot"), strict=False):
        # slot: 0 is its binding, 1 its resource
        resource = _resource(resources, slot.scalar(1, "I"), category)
        binding = slot.scalar(0, "I")
        arguments.append(Tensor(name, binding, resource.format, resource.shape))
    return tuple(arguments)


def _resource(resources: Sequence[_Resource], number: int, category: int) -> _Resource:
    """Return a resource; FormatError if it is missing, or has another category."""
    if number >= len(resources) or resources[number].category != category:
        raise _damaged(
            f"resource {number} is missing, or of another kind than its reference"
        )
    return resources[number]


class _Resource(NamedTuple):
    """An entry of the table of tensors: VkFormat, shape and category."""

    format: int
    shape: tuple[int, ...]
    category: int


def _section(whole: memoryview, number: int) -> memoryview:
    """Return the bytes of a section of a file; FormatError if it exceeds the file."""
    start, length = _SECTIONS.unpack_from(whole)[2 * number : 2 * number + 2]
    if start < _HEADER_SIZE or start + length > len(whole):
        raise _damaged(
            f"section {number} of {length} bytes at {start} lies outside of the file"
        )
    return whole[start : start + length]


def _root(section: memoryview) -> Table:
    """Return the root table of a flatbuffer without an identifier."""
    buffer = Buffer(section, "VGF file")
    return Table(buffer, buffer.follow(0, "root table"), "root table")


def _shape(resource: Table) -> tuple[int, ...]:
    """Return the shape in the description (field 3) of a resource; () without one."""
    described = resource.table(3, "description")
    return tuple(described.numbers(0, "i8", "shape")) if described else ()


class _StoredConstant(NamedTuple):
    """The number of a constant's resource; offset and size of its bytes in the file."""

    resource: int
    start: int
    bytes: int


def _constants(section: memoryview, start: int) -> Iterator[_StoredConstant]:
    """Yield the constants of a section, which begins at ``start`` in the file."""
    if len(section) < _CONSTANTS.size or bytes(section[:8]) != b"CONST00\0":
        raise _damaged("the section of constants has another version")
    count = _CONSTANTS.unpack_from(section)[1]
    data = _CONSTANTS.size + count * _CONSTANT.size
    if data > len(section):
        raise _damaged(f"it is too short for {count} constants")
    for k in range(count):
        resource, _, size, offset = _CONSTANT.unpack_from(
            section, _CONSTANTS.size + k * _CONSTANT.size
        )
        if data + offset + size > len(section):
            raise _damaged(f"constant {k} lies outside of the file")
        yield _StoredConstant(resource, start + data + offset, size)


def _damaged(why: str) -> FormatError:
    return FormatError("format-invalid", f"the VGF file is damaged: {why}")

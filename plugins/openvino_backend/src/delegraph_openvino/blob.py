"""What a delegate is stored as: OpenVINO's IR, without the weights, which are named data."""

from __future__ import annotations

import hashlib
import struct

from delegraph.errors import FormatError

MAGIC = b"delegraph-openvino 1\n"
_SIZES = struct.Struct("<QQ")


def encode(xml: bytes, constants: bytes) -> bytes:
    """The two files of an IR behind a digest of them: OpenVINO's own reader trusts what it reads."""
    content = _SIZES.pack(len(xml), len(constants)) + xml + constants
    return MAGIC + hashlib.sha256(content).digest() + content


def decode(blob: bytes) -> tuple[bytes, bytes]:
    """The two files of the IR. Raises FormatError for a blob that is damaged, or of another version."""
    if not blob.startswith(MAGIC):
        raise FormatError("format-invalid", f"a blob of OpenVINOBackend begins with {MAGIC!r}, not {blob[:24]!r}")
    digest, content = blob[len(MAGIC) : len(MAGIC) + 32], blob[len(MAGIC) + 32 :]
    if len(content) < _SIZES.size or hashlib.sha256(content).digest() != digest:
        raise FormatError("format-invalid", "a damaged blob of OpenVINOBackend: its digest is another one")
    size = _SIZES.unpack_from(content)[0]
    xml = content[_SIZES.size : _SIZES.size + size]
    if not xml.startswith(b"<?xml"):  # OpenVINO reads other formats as well, and ONNX names files to read
        raise FormatError("format-invalid", f"a blob of OpenVINOBackend holds an IR in XML, not {xml[:16]!r}")
    return xml, content[_SIZES.size + size :]


def key_of(data: memoryview) -> str:
    """The key of a weight among the named data. Equal weights have one key, whatever program they come from."""
    return f"openvino/{hashlib.sha256(data).hexdigest()}"

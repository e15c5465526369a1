"""Named data: data by key that is stored beside the blobs of delegates (names as in
ExecuTorch).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .errors import FormatError, NamedDataError, NamedDataTypeError
from .io.blob import Blob, TensorBlob, digest, equal, head, is_blob

if TYPE_CHECKING:
    import torch

__all__ = [
    "DataEntry",
    "NamedDataStore",
    "NamedDataStoreOutput",
    "TensorLayout",
    "expect_data",
]

_COMPARED_FIRST = 64
"""Buffers of the same length are compared completely only if this many first bytes are
equal.
"""


@dataclass(frozen=True)
class TensorLayout:
    """How to read the bytes of a named tensor: its element type and sizes, in C order."""

    dtype: torch.dtype
    sizes: tuple[int, ...]


@dataclass
class DataEntry:
    """One piece of named data: index of its buffer, alignment in bytes, and layout
    (None if it is no tensor).
    """

    buffer_index: int
    alignment: int
    tensor_layout: TensorLayout | None = None


@dataclass
class NamedDataStoreOutput:
    """The content of a ``NamedDataStore``.

    ``buffers``: the different buffers; those added as a tensor or Blob are Blobs.
    ``pte_data``: key -> entry, for data in the program file. ``external_data``: name of
    an external file -> key -> entry.
    """

    buffers: list[bytes | Blob] = field(default_factory=list)
    pte_data: dict[str, DataEntry] = field(default_factory=dict)
    external_data: dict[str, dict[str, DataEntry]] = field(default_factory=dict)


class NamedDataStore:
    """Collects named data. Equal contents are stored once, also if they have several
    keys.

    A key is unique over the program file and all external files. It may be added again
    with equal data for the same file; its alignment then becomes the least common
    multiple of both. Data that cannot be stored raises NamedDataError and changes
    nothing.
    """

    def __init__(self) -> None:
        self._output = NamedDataStoreOutput()
        # (length, first bytes) -> indices of the buffers with these
        self._alike: dict[tuple[int, bytes], list[int]] = {}
        # key -> name of its external file; None for the program file
        self._home: dict[str, str | None] = {}

    def add_named_data(
        self,
        key: str,
        data: bytes | Blob | torch.Tensor,
        alignment: int | None = 1,
        external_tag: str | None = None,
        tensor_layout: TensorLayout | None = None,
    ) -> None:
        """Add ``data`` under ``key``.

        ``data``: bytes, a Blob, or a tensor, whose elements are stored in C order. A
        tensor or Blob is stored by reference and must not change until it is written.
        ``alignment``: in bytes; None means 1. ``external_tag``: name of the external
        file; None: the program file. ``tensor_layout``: layout of ``data``; a tensor
        has its own.

        Raises NamedDataTypeError for other kinds of data, NamedDataError for what the
        class forbids and for wrong arguments.
        """
        alignment = 1 if alignment is None else alignment
        _expect_arguments(key, alignment, external_tag, tensor_layout)
        content, layout = _content(key, data, tensor_layout)
        # only buffers of the same length with the same first bytes are compared as a
        # whole
        length_and_head = len(content), head(content, _COMPARED_FIRST)
        alike = self._alike.get(length_and_head, ())
        index = next(
            (k for k in alike if equal(self._output.buffers[k], content)), None
        )
        self._expect_same_entry(key, index, external_tag, layout)
        if index is None:
            index = len(self._output.buffers)
            self._output.buffers.append(content)
            self._alike.setdefault(length_and_head, []).append(index)
        self._home[key] = external_tag
        entries = self._output.pte_data
        if external_tag is not None:
            entries = self._output.external_data.setdefault(external_tag, {})
        # an entry of an earlier call with the same key stays, with an alignment that
        # fits both calls
        entry = entries.get(key, DataEntry(index, alignment, layout))
        entries[key] = replace(entry, alignment=math.lcm(entry.alignment, alignment))

    def add_by_content(
        self, prefix: str, tensor: torch.Tensor, alignment: int = 1
    ) -> str:
        """Add a tensor under a key that begins with ``prefix`` and is made of its type,
        shape and elements.

        So tensors that are equal have one key, whatever program they come from. Returns
        the key. It reads all elements.
        """
        # imported late: data that is bytes needs no torch
        from delegraph_programs.tensor_memory import fingerprint

        key = prefix + fingerprint(tensor)
        try:
            self.add_named_data(key, tensor, alignment)
        except NamedDataError:
            # another tensor may have this name, which would be a rare chance; or it
            # cannot be added
            key += digest(_content(key, tensor, None)[0]).hex()
            self.add_named_data(key, tensor, alignment)
        return key

    def get_named_data_store_output(self) -> NamedDataStoreOutput:
        return self._output

    def merge_named_data_store(self, other: NamedDataStoreOutput) -> None:
        """Add all data of ``other``, or nothing and raise NamedDataError if a part of
        it cannot be stored.
        """
        check_output(other)
        merged = self._independent_copy()  # so that an error changes nothing here
        # None: the program file
        for tag, entries in [(None, other.pte_data), *other.external_data.items()]:
            for key, entry in entries.items():
                data = other.buffers[entry.buffer_index]
                merged.add_named_data(
                    key, data, entry.alignment, tag, entry.tensor_layout
                )
        self._alike = merged._alike
        self._home = merged._home
        # in place: callers may have this object already
        vars(self._output).update(vars(merged._output))

    def externalize_pte_data(self, max_data_bytes: int, tag_prefix: str) -> None:
        """Move the data of the program file to external files of at most
        ``max_data_bytes`` bytes each.

        Files are filled in the sorted order of the keys. A file's name is
        ``{tag_prefix}_{digest}``, with a digest of its keys. Keys with the same buffer
        get the same file. Raises NamedDataError for wrong arguments, if a buffer is
        larger than the limit, or if an external file of that name exists already.
        """
        if not _is_positive(max_data_bytes):
            text = f"max_data_bytes is a positive integer, not {max_data_bytes!r}"
            raise NamedDataError("contract-violation", text)
        if not isinstance(tag_prefix, str) or not tag_prefix:
            text = f"tag_prefix is {tag_prefix!r}; the prefix must be nonempty text"
            raise NamedDataError("contract-violation", text)
        files: dict[str, list[str]] = {}  # name of a new file -> its keys
        for keys in _shards(self._output, max_data_bytes):
            digest = hashlib.sha256(chr(0).join(keys).encode()).hexdigest()
            files[f"{tag_prefix}_{digest}"] = keys
        for tag, keys in files.items():
            if tag in self._output.external_data:
                raise _error(
                    keys[0],
                    f"would go to {tag}, which exists already: an external data tag"
                    " collision",
                )
        for tag, keys in files.items():
            self._output.external_data[tag] = {
                k: self._output.pte_data.pop(k) for k in keys
            }
            self._home.update(dict.fromkeys(keys, tag))

    def _independent_copy(self) -> NamedDataStore:
        """A store with the same content that can be changed without changing this one.
        Buffers are shared.
        """
        copy = NamedDataStore()
        output = self._output
        external = {tag: dict(entries) for tag, entries in output.external_data.items()}
        copy._output = NamedDataStoreOutput(
            list(output.buffers), dict(output.pte_data), external
        )
        copy._alike, copy._home = (
            {kind: list(indices) for kind, indices in self._alike.items()},
            dict(self._home),
        )
        return copy

    def _expect_same_entry(
        self, key: str, index: int | None, tag: str | None, layout: TensorLayout | None
    ) -> None:
        """Raise NamedDataError if ``key`` was added before with other data, another
        layout or for another file.

        ``index``: the stored buffer that equals the new data; None if no buffer does.
        ``tag``: name of the external file; None: the program file. ``layout``: of the
        new data.
        """
        if key not in self._home:
            return
        home = self._home[key]
        entry = (
            self._output.pte_data if home is None else self._output.external_data[home]
        )[key]
        if entry.buffer_index != index:
            raise _error(key, "was added before with different data")
        if home != tag:
            raise _error(
                key,
                f"is in {home or 'the program file'} already, and cannot go to"
                f" {tag or 'that'} too",
            )
        if entry.tensor_layout != layout:
            raise _error(
                key, f"was added before with layout {entry.tensor_layout}, not {layout}"
            )


def expect_data(named_data: Mapping[str, bytes], key: str, size: int) -> bytes:
    """The data of ``key``, for a runtime. Raises FormatError unless it is there and has
    ``size`` bytes.
    """
    data = named_data.get(key)
    if data is None or len(data) != size:
        given = "is missing" if data is None else f"has {len(data)} bytes"
        raise FormatError(
            "format-invalid",
            f"the named data {key:.80} {given}, and the blob wants {size} bytes",
        )
    return data


def check_output(output: Any) -> None:
    """Raise NamedDataError unless ``output`` is a valid NamedDataStoreOutput, or
    NamedDataTypeError for wrong types.
    """
    if isinstance(output, NamedDataStore):
        text = "a NamedDataStore is no NamedDataStoreOutput"
        raise NamedDataTypeError(
            "contract-violation", text, hint="call its get_named_data_store_output()"
        )
    if not isinstance(output, NamedDataStoreOutput):
        text = f"a NamedDataStoreOutput is wanted, not {type(output).__name__}"
        raise NamedDataTypeError("contract-violation", text)
    for entries in (output.pte_data, *output.external_data.values()):
        for key, entry in entries.items():
            if not isinstance(entry, DataEntry) or entry.buffer_index not in range(
                len(output.buffers)
            ):
                raise _error(
                    key,
                    f"has the entry {entry!r:.80}, and there are {len(output.buffers)}"
                    " buffers",
                )
            if not _is_positive(entry.alignment):
                raise _error(
                    key,
                    f"has the alignment {entry.alignment!r:.80}, which is no positive"
                    " whole number",
                )
            data = output.buffers[entry.buffer_index]
            if not isinstance(data, bytes) and not is_blob(data):
                raise _type_error(key, data)


def _expect_arguments(key: Any, alignment: Any, tag: Any, layout: Any) -> None:
    """Raise NamedDataError for wrong arguments of ``add_named_data``, or
    NamedDataTypeError for a wrong key.
    """
    if not isinstance(key, str):
        raise NamedDataTypeError(
            "contract-violation", f"the key of named data is a str, not {key!r:.80}"
        )
    if not _is_positive(alignment):
        raise _error(
            key,
            f"cannot be aligned: alignment {alignment!r:.80} is not positive, or no"
            " whole number",
        )
    if tag is not None and (not isinstance(tag, str) or not tag):
        raise _error(key, f"goes to an external file by its name, not to {tag!r:.80}")
    if layout is not None and not isinstance(layout, TensorLayout):
        raise _error(key, f"has a TensorLayout or none, not {layout!r:.80}")


def _is_positive(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0


def _content(
    key: str, data: Any, layout: TensorLayout | None
) -> tuple[bytes | Blob, TensorLayout | None]:
    """(``data`` as bytes or a Blob, its layout), for data that is added with
    ``layout``.

    ``layout``: None if the caller states none; the layout of a tensor is known even so.
    ``key``: for errors. Raises NamedDataTypeError for other types, NamedDataError for a
    tensor without bytes or of another layout.
    """
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data), layout
    if is_blob(data):
        return data, layout
    import torch  # imported late: data that is bytes needs no torch
    from delegraph_programs import why_no_bytes

    if not isinstance(data, torch.Tensor):
        raise _type_error(key, data)
    why = why_no_bytes(data)
    if why is not None:
        raise _error(key, f"is a tensor without bytes: {why}")
    actual = TensorLayout(data.dtype, tuple(data.shape))
    if layout not in (None, actual):
        raise _error(
            key, f"is a tensor of layout {actual}, and {layout} was given with it"
        )
    return TensorBlob(data), actual


def _shards(output: NamedDataStoreOutput, limit: int) -> list[list[str]]:
    """The keys of ``pte_data`` in groups, one for each external file of at most
    ``limit`` bytes; each group is sorted.

    Buffers go in the order of their first keys into the current file, until one does
    not fit: it begins the next file. Raises NamedDataError for a buffer that is larger
    than the limit.
    """
    keys_of_buffer: dict[int, list[str]] = {}
    for key in sorted(output.pte_data):
        keys_of_buffer.setdefault(output.pte_data[key].buffer_index, []).append(key)
    shards: list[list[str]] = []
    room = 0  # bytes that the last file can still take
    for index, keys in keys_of_buffer.items():
        size = len(output.buffers[index])
        if size > limit:
            raise _error(
                keys[0],
                f"has {size} bytes, which exceeds external data shard cap {limit}",
            )
        if size > room or not shards:
            shards.append([])
            room = limit
        shards[-1] += keys
        room -= size
    return [sorted(keys) for keys in shards]


def _type_error(key: Any, data: Any) -> NamedDataTypeError:
    """The error for ``data`` of a wrong type under ``key``."""
    text = (
        f"named data {key!r} is {type(data).__name__}; bytes or a tensor are wanted, or"
        " a Blob"
    )
    return NamedDataTypeError("contract-violation", text)


def _error(key: str, why: str) -> NamedDataError:
    """The error about the data under ``key``; ``why`` continues its text."""
    return NamedDataError("contract-violation", f"named data {key!r} {why}")

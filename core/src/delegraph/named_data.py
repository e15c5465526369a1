"""Named data: data by key that is stored next to the blobs of delegates (names as in
ExecuTorch).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .errors import NamedDataError, NamedDataTypeError
from .io.blob_pieces import Blob, TensorBlob, equal, head, is_blob

if TYPE_CHECKING:
    import torch

__all__ = [
    "DataEntry",
    "NamedDataStore",
    "NamedDataStoreOutput",
    "TensorLayout",
]

_COMPARED_FIRST = 64
"""Buffers of the same length are compared completely only if this many first bytes are
equal.
"""


@dataclass(frozen=True)
class TensorLayout:
    """The element type and the sizes of a named tensor. Its bytes are in C order."""

    dtype: torch.dtype
    sizes: tuple[int, ...]


@dataclass
class DataEntry:
    """One piece of named data.

    ``alignment``: in bytes. ``tensor_layout``: None if the data is not a tensor.
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

    def files(self) -> list[tuple[str | None, dict[str, DataEntry]]]:
        """Return (name, entries) of each file; the name of the program file is None."""
        return [(None, self.pte_data), *self.external_data.items()]


class NamedDataStore:
    """Collects named data, and stores equal contents once.

    A key is unique over the program file and all external files. It may be added again
    with equal data for the same file; its alignment then becomes the least common
    multiple of both.
    """

    def __init__(self) -> None:
        self._output = NamedDataStoreOutput()
        # (length, first bytes) -> indices of the buffers that have these
        self._candidates: dict[tuple[int, bytes], list[int]] = {}

    def add_named_data(
        self,
        key: str,
        data: bytes | Blob | torch.Tensor,
        alignment: int | None = 1,
        external_tag: str | None = None,
        tensor_layout: TensorLayout | None = None,
    ) -> None:
        """Add ``data`` under ``key``.

        ``data``: bytes, a Blob, or a tensor, stored in C order. A tensor or Blob is
        stored by reference and must not change until it is written. ``alignment``: in
        bytes; None means 1. ``external_tag``: name of the external file; None: the
        program file. ``tensor_layout``: layout of ``data``, not needed for a tensor.

        Raises NamedDataTypeError for data or a key of another type. Raises
        NamedDataError for other wrong arguments, and for a key that is in use.
        """
        alignment = 1 if alignment is None else alignment
        _check_arguments(key, alignment, external_tag, tensor_layout)
        content, layout = _content(key, data, tensor_layout)
        # only buffers of this length and with these first bytes are compared completely
        length_and_head = len(content), head(content, _COMPARED_FIRST)
        candidates = self._candidates.get(length_and_head, ())
        buffers = self._output.buffers
        equal_buffers = (k for k in candidates if equal(buffers[k], content))
        index = next(equal_buffers, None)
        self._check_same_entry(key, index, external_tag, layout)
        if index is None:
            index = len(buffers)
            buffers.append(content)
            self._candidates.setdefault(length_and_head, []).append(index)
        entries = self._output.pte_data
        if external_tag is not None:
            entries = self._output.external_data.setdefault(external_tag, {})
        # if the key was added before, its entry gets an alignment that fits both calls
        entry = entries.get(key, DataEntry(index, alignment, layout))
        entries[key] = replace(entry, alignment=math.lcm(entry.alignment, alignment))

    def get_named_data_store_output(self) -> NamedDataStoreOutput:
        """Return the collected data itself: data that is added later is in it, too."""
        return self._output

    def merge_named_data_store(self, other: NamedDataStoreOutput) -> None:
        """Add all data of ``other``, entry by entry.

        Raises the errors of ``check_output`` before anything is added. Also raises the
        errors of ``add_named_data``; then the entries before the faulty one stay.
        """
        check_output(other)
        for tag, entries in other.files():
            for key, entry in entries.items():
                data = other.buffers[entry.buffer_index]
                self.add_named_data(
                    key, data, entry.alignment, tag, entry.tensor_layout
                )

    def _check_same_entry(
        self, key: str, index: int | None, tag: str | None, layout: TensorLayout | None
    ) -> None:
        """Raise NamedDataError if ``key`` was added before with other data, another
        layout or for another file.

        ``index``: of the stored buffer that equals the new data; None if there is none.
        ``tag``: the external file for the new data; None for the program file.
        ``layout``: the layout of the new data.
        """
        for earlier_tag, entries in self._output.files():
            if key not in entries:
                continue
            entry = entries[key]
            if entry.buffer_index != index:
                raise _error(key, "was added before with different data")
            if earlier_tag != tag:
                file = earlier_tag or "the program file"
                other = tag or "the program file"
                raise _error(key, f"is in {file} already, and cannot go to {other} too")
            if entry.tensor_layout != layout:
                text = f"layout {entry.tensor_layout}, not {layout}"
                raise _error(key, f"was added before with {text}")


def check_output(output: Any) -> None:
    """Raise an error unless ``output`` is a valid NamedDataStoreOutput.

    Raises NamedDataTypeError if ``output`` has another type, or if the buffer of an
    entry is neither bytes nor a Blob. Raises NamedDataError for an entry that is no
    DataEntry, an index without a buffer, or an alignment that is no positive integer.
    """
    if isinstance(output, NamedDataStore):
        raise NamedDataTypeError(
            "contract-violation",
            "a NamedDataStore was given instead of a NamedDataStoreOutput",
            hint="call its get_named_data_store_output()",
        )
    if not isinstance(output, NamedDataStoreOutput):
        raise NamedDataTypeError(
            "contract-violation",
            f"a NamedDataStoreOutput is wanted, not {type(output).__name__}",
        )
    count = len(output.buffers)
    indices = range(count)
    for _, entries in output.files():
        for key, entry in entries.items():
            if not isinstance(entry, DataEntry) or entry.buffer_index not in indices:
                raise _error(
                    key, f"has the entry {entry!r:.80}, and there are {count} buffers"
                )
            if not _is_positive(entry.alignment):
                raise _error(
                    key,
                    f"has the alignment {entry.alignment!r:.80}, which is not a"
                    " positive integer",
                )
            data = output.buffers[entry.buffer_index]
            if not isinstance(data, bytes) and not is_blob(data):
                raise _type_error(key, data)


def _check_arguments(key: Any, alignment: Any, tag: Any, layout: Any) -> None:
    """Check the arguments of ``add_named_data``, except the data.

    Raises NamedDataTypeError if the key is not a str, NamedDataError if another
    argument is wrong.
    """
    if not isinstance(key, str):
        raise NamedDataTypeError(
            "contract-violation", f"the key of named data is a str, not {key!r:.80}"
        )
    if not _is_positive(alignment):
        raise _error(
            key,
            f"cannot be aligned: alignment {alignment!r:.80} is not positive, or not an"
            " integer",
        )
    if tag is not None and not (isinstance(tag, str) and tag):
        raise _error(key, f"goes to an external file by its name, not to {tag!r:.80}")
    if layout is not None and not isinstance(layout, TensorLayout):
        raise _error(key, f"has a TensorLayout or none, not {layout!r:.80}")


def _is_positive(number: Any) -> bool:
    """Return whether ``number`` is an int above 0; a bool is not."""
    return type(number) is int and number > 0


def _content(
    key: str, data: Any, layout: TensorLayout | None
) -> tuple[bytes | Blob, TensorLayout | None]:
    """Return ``data`` as bytes or a Blob, and its layout.

    ``layout``: the caller's; None if the caller gives none. ``key``: for errors. Raises
    NamedDataTypeError for other types, NamedDataError for a tensor without bytes or of
    another layout.
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


def _type_error(key: Any, data: Any) -> NamedDataTypeError:
    """Return the error about data of a wrong type under ``key``."""
    kind = type(data).__name__
    return NamedDataTypeError(
        "contract-violation",
        f"named data {key!r} is {kind}; bytes or a tensor are wanted, or a Blob",
    )


def _error(key: str, why: str) -> NamedDataError:
    """Return the error about the data under ``key``; ``why`` continues its text."""
    return NamedDataError("contract-violation", f"named data {key!r} {why}")

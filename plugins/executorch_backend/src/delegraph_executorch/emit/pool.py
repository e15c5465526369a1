"""Collect bytes that a file stores once: constants, initial states and delegate blobs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import BinaryIO

import torch
from delegraph.backend import Blob, NamedDataStore
from delegraph.io.blob_pieces import equal, head

from ..serialize.file import write_content

_COMPARED_FIRST = 64
"""Bytes to compare first. Only contents with the same first bytes are compared whole."""


class Pool:
    """Contents by position. Equal contents are stored once, and nothing is copied.

    ``alignment`` is the least alignment of all contents. A content that is added with
    several alignments gets their least common multiple.
    """

    def __init__(self, alignment: int = 1) -> None:
        self._store = NamedDataStore()
        self._count = 0
        self._alignment = alignment
        self._alignments: dict[int, int] = {}
        # (length, first bytes) -> positions. Filled by the first search, since most
        # programs search for nothing.
        self._by_start: dict[tuple[int, bytes], list[int]] | None = None

    def add(self, content: torch.Tensor | bytes | Blob, alignment: int = 1) -> int:
        """Add a content unless an equal one is stored; return its position, from 0.

        Raises NamedDataError for a tensor that has no bytes of its own.
        """
        key = str(self._count)
        self._count += 1
        self._store.add_named_data(key, content)
        position = self._store.get_named_data_store_output().pte_data[key].buffer_index
        self._align(position, alignment)
        self._by_start = None
        return position

    def find(self, content: bytes | Blob, alignment: int) -> int | None:
        """Return the position of an equal content; None if there is none.

        The stored content is then aligned to ``alignment`` as well.
        """
        if self._by_start is None:
            self._by_start = defaultdict(list)
            for position, known in enumerate(self.contents):
                key = len(known), head(known, _COMPARED_FIRST)
                self._by_start[key].append(position)
        key = len(content), head(content, _COMPARED_FIRST)
        for position in self._by_start.get(key, ()):
            if equal(self.contents[position], content):
                self._align(position, alignment)
                return position
        return None

    @property
    def contents(self) -> list[bytes | Blob]:
        """Return the contents in the order of their positions."""
        return self._store.get_named_data_store_output().buffers

    @property
    def alignments(self) -> list[int]:
        """Return the alignment of each content."""
        return [self._alignments[position] for position in range(len(self.contents))]

    def _align(self, position: int, alignment: int) -> None:
        self._alignments[position] = math.lcm(
            self._alignments.get(position, self._alignment), alignment
        )


class Concatenation:
    """Contents one after the other, each aligned, as one ``delegraph.backend.Blob``."""

    def __init__(
        self, contents: Sequence[bytes | Blob], alignments: Sequence[int]
    ) -> None:
        self._contents = contents
        self.offsets: list[int] = []
        self._size = 0
        for content, alignment in zip(contents, alignments, strict=True):
            # ``-size % alignment`` bytes of padding
            start = self._size + -self._size % alignment
            self.offsets.append(start)
            self._size = start + len(content)

    def __len__(self) -> int:
        return self._size

    def write_to(self, file: BinaryIO) -> None:
        """Append the bytes to ``file``."""
        position = 0
        for content, offset in zip(self._contents, self.offsets, strict=True):
            file.write(bytes(offset - position))
            write_content(content, file)
            position = offset + len(content)

"""Bytes that the file holds once, whoever uses them: constants, initial states, blobs
of delegates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import BinaryIO

import torch
from delegraph.backend import Blob, NamedDataStore
from delegraph.io.blob import equal, head

from ..serialize.file import write_content

_COMPARED_FIRST = 64
"""Contents of one length are compared as a whole only if they begin with the same
bytes, as many as this.
"""


class Pool:
    """Contents by position, equal ones once, each aligned to what every use of it
    needs; no tensor is copied or joined.

    ``alignment``: bytes that every content is aligned to.
    """

    def __init__(self, alignment: int = 1) -> None:
        self._store = NamedDataStore()
        self._count = 0
        self._alignment = alignment
        self._alignments: dict[int, int] = {}
        # made by the first search
        self._alike: dict[tuple[int, bytes], list[int]] | None = None

    def add(self, content: torch.Tensor | bytes | Blob, alignment: int = 1) -> int:
        """The position of a content, from 0. Raises NamedDataError for a tensor without
        bytes of its own.
        """
        key = str(self._count)
        self._count += 1
        self._store.add_named_data(key, content)
        position = self._store.get_named_data_store_output().pte_data[key].buffer_index
        self._align(position, alignment)
        self._alike = None
        return position

    def find(self, content: bytes | Blob, alignment: int) -> int | None:
        """The position of a content that is here already, from now on aligned so; None
        if it is not.
        """
        if self._alike is None:
            self._alike = defaultdict(list)
            for position, known in enumerate(self.contents):
                self._alike[len(known), head(known, _COMPARED_FIRST)].append(position)
        alike = self._alike.get((len(content), head(content, _COMPARED_FIRST)), ())
        found = next(
            (position for position in alike if equal(self.contents[position], content)),
            None,
        )
        if found is not None:
            self._align(found, alignment)
        return found

    @property
    def contents(self) -> list[bytes | Blob]:
        return self._store.get_named_data_store_output().buffers

    @property
    def alignments(self) -> list[int]:
        return [self._alignments[position] for position in range(len(self.contents))]

    def _align(self, position: int, alignment: int) -> None:
        self._alignments[position] = math.lcm(
            self._alignments.get(position, self._alignment), alignment
        )


class Concatenation:
    """Contents one after the other, each aligned, as one segment (a
    ``delegraph.backend.Blob``).
    """

    def __init__(
        self, contents: Sequence[bytes | Blob], alignments: Sequence[int]
    ) -> None:
        self._contents = contents
        self.offsets: list[int] = []
        self._size = 0
        for content, alignment in zip(contents, alignments, strict=True):
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

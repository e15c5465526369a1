"""Bytes that the file holds once, whoever uses them: constants, initial states, blobs of delegates."""

from __future__ import annotations

from typing import BinaryIO

import torch
from delegraph.backend import Blob, NamedDataStore

from ..serialize.file import write_content


class Pool:
    """Contents by position, equal ones once; no tensor is copied or joined."""

    def __init__(self) -> None:
        self._store = NamedDataStore()
        self._count = 0

    def add(self, content: torch.Tensor | bytes | Blob) -> int:
        """The position of a content, from 0. Raises NamedDataError for a tensor without bytes of its own."""
        key = str(self._count)
        self._count += 1
        self._store.add_named_data(key, content)
        return self._store.get_named_data_store_output().pte_data[key].buffer_index

    @property
    def contents(self) -> list[bytes | Blob]:
        return self._store.get_named_data_store_output().buffers


class Concatenation:
    """Contents one after the other, each aligned, as one segment (a ``delegraph.backend.Blob``)."""

    def __init__(self, contents: list[bytes | Blob], alignment: int) -> None:
        self._contents = contents
        self.offsets: list[int] = []
        self._size = 0
        for content in contents:
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

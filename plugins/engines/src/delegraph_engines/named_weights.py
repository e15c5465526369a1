"""Weights of several programs in named data, each stored once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from delegraph.backend import NamedDataStore
from delegraph.errors import FormatError, NamedDataError
from delegraph.io.blob_pieces import TensorBlob, digest
from delegraph_programs import why_no_bytes
from delegraph_programs.tensor_bytes import fingerprint

if TYPE_CHECKING:
    import torch


def add_by_content(
    store: NamedDataStore, prefix: str, tensor: torch.Tensor, alignment: int = 1
) -> str:
    """Add a tensor to ``store`` and return its key.

    The key is ``prefix`` with a fingerprint of the type, the shape and the elements. So
    equal tensors have one key in all programs. Reads all elements.
    """
    key = prefix + fingerprint(tensor)
    try:
        store.add_named_data(key, tensor, alignment)
    except NamedDataError:
        if why_no_bytes(tensor) is not None:
            raise
        # a different tensor has the same fingerprint
        key += digest(TensorBlob(tensor)).hex()
        store.add_named_data(key, tensor, alignment)
    return key


def expect_data(named_data: Mapping[str, bytes], key: str, size: int) -> bytes:
    """Return the data of ``key``, for a runtime.

    Raises FormatError unless it is there and has ``size`` bytes.
    """
    data = named_data.get(key)
    if data is None or len(data) != size:
        given = "is missing" if data is None else f"has {len(data)} bytes"
        text = f"the named data {key:.80} {given}, and the blob needs {size} bytes"
        raise FormatError("format-invalid", text)
    return data

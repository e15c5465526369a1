"""Reads arrays from ``.npy`` and ``.npz`` files that are not trusted."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    import numpy as np

_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    AttributeError,
    TypeError,
    KeyError,
    OverflowError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
)
"""Errors that numpy, zipfile and their parsers raise for damaged files. A header may
state a shape that is larger than the memory.
"""


def read_array(path: Path) -> np.ndarray[Any, Any]:
    """Return the array in a ``.npy`` file. Raises InputError for any other file."""
    import numpy as np

    with _reading(path, ".npy"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = ", ".join(
                    name.removesuffix(".npy") for name in archive.namelist()
                )
            text = f"{path} is an archive of arrays: {names}"
            raise InputError(
                "input-invalid",
                text,
                hint="give an .npy file for each input, in the order of the inputs",
            )
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    return array


def read_arrays(path: Path) -> Mapping[str, np.ndarray[Any, Any]]:
    """Return name -> array in a ``.npz`` file. Raises InputError for any other file."""
    import numpy as np

    with _reading(path, ".npz"), np.load(path, allow_pickle=False) as opened:
        return {key: opened[key] for key in opened.files}


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """A block that turns errors about a damaged file into an InputError. ``kind``: the
    expected suffix, for errors.
    """
    try:
        yield
    except InputError:
        raise
    except _UNREADABLE as e:
        raise InputError(
            "input-invalid", f"{path} is not a readable {kind} file: {e}"
        ) from e

"""Reads arrays from ``.npy`` files and archives of them, believing nothing: a header may state any shape."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..errors import InputError

if TYPE_CHECKING:
    import numpy as np

_UNREADABLE = (OSError, ValueError, EOFError, AttributeError, TypeError, KeyError, OverflowError, RuntimeError)
"""Errors that numpy, zipfile and the parsers that they call raise for damaged files."""


def read_array(path: Path) -> np.ndarray[Any, Any]:
    """The array of a ``.npy`` file.

    Raises InputError for any other file, and for one shorter than its header states.
    """
    import numpy as np

    with _reading(path, ".npy"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                names = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
            text = f"{path} is an archive of arrays: {names}"
            raise InputError("input-invalid", text, hint="give an .npy file for each input, in the order of the inputs")
        with path.open("rb") as file:
            _expect_whole(file, path.stat().st_size, str(path))
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    return array


def read_arrays(path: Path) -> Mapping[str, np.ndarray[Any, Any]]:
    """The arrays of a ``.npz`` file by name.

    Raises InputError for any other file, and for arrays that are too short.
    """
    import numpy as np

    with _reading(path, ".npz"):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    _expect_whole(file, member.file_size, f"{path}: {member.filename}")
        with np.load(path, allow_pickle=False) as opened:
            arrays = {key: opened[key] for key in opened.files}
    return arrays


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """A block in which errors of a damaged file become InputErrors; an InputError passes."""
    try:
        yield
    except InputError:
        raise
    except (*_UNREADABLE, zipfile.BadZipFile) as e:
        raise InputError("input-invalid", f"{path} is not a readable {kind} file: {e}") from e


def _expect_whole(file: IO[bytes], size: int, where: str) -> None:
    """Raise InputError if a file of ``size`` bytes does not hold the elements that its header states."""
    from numpy.lib import format as untyped

    npy: Any = untyped
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:  # later versions are for named fields, which no tensor has
        raise ValueError(f"{where} is of version {version}")
    shape, _, dtype = readers[version](file)
    stated, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if stated > held or any(size < 0 for size in shape):
        raise InputError("input-invalid", f"{where} states an array of shape {shape}, {stated} bytes, and holds {held}")

"""Reads arrays from ``.npy`` and ``.npz`` files that are not trusted: a header may
state any shape.
"""

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

_UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    AttributeError,
    TypeError,
    KeyError,
    OverflowError,
    RuntimeError,
)
"""Errors that numpy, zipfile and their parsers raise for damaged files."""


def read_array(path: Path) -> np.ndarray[Any, Any]:
    """The array in a ``.npy`` file. Raises InputError for any other file, or one
    shorter than its header states.
    """
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
        with path.open("rb") as file:
            _expect_whole(file, path.stat().st_size, str(path))
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    return array


def read_arrays(path: Path) -> Mapping[str, np.ndarray[Any, Any]]:
    """Name -> array in a ``.npz`` file.

    Raises InputError for any other file, or if an array is shorter than its header
    states.
    """
    import numpy as np

    with _reading(path, ".npz"):
        # numpy would reserve the memory that a header states before it reads
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                with archive.open(member) as file:
                    _expect_whole(file, member.file_size, f"{path}: {member.filename}")
        with np.load(path, allow_pickle=False) as opened:
            arrays = {key: opened[key] for key in opened.files}
    return arrays


@contextlib.contextmanager
def _reading(path: Path, kind: str) -> Iterator[None]:
    """A block that turns errors about a damaged file into an InputError. ``kind``: the
    expected suffix, for errors.
    """
    try:
        yield
    except InputError:
        raise
    except (*_UNREADABLE, zipfile.BadZipFile) as e:
        raise InputError(
            "input-invalid", f"{path} is not a readable {kind} file: {e}"
        ) from e


def _expect_whole(file: IO[bytes], size: int, where: str) -> None:
    """Raise InputError if an ``.npy`` file of ``size`` bytes is too short for the array
    that its header states.

    ``file``: open at its beginning. Other damage raises one of ``_UNREADABLE``, also a
    version of the format that is not read here. ``where`` names the file in errors.
    """
    from numpy.lib import format as untyped

    npy: Any = untyped
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    # later versions are for arrays with named fields, which no tensor has
    if version not in readers:
        raise ValueError(f"{where} is of version {version}")
    shape, _, dtype = readers[version](file)
    # bytes of the array alone
    stated = math.prod(shape) * dtype.itemsize
    present = size - file.tell()
    if stated > present or any(size < 0 for size in shape):
        raise InputError(
            "input-invalid",
            f"{where} states an array of shape {shape}, {stated} bytes, and holds"
            f" {present}",
        )

"""``.aimodel.zip`` files: an ``.aimodel`` folder in one archive, to copy it to a Mac."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from delegraph.errors import FormatError
from delegraph.formats import (
    DelegateFormat,
    LoadDelegate,
    ProgramContents,
    StoredBlob,
    Summary,
    Verdict,
    write_whole,
)

from .format import BYTECODE, DIGEST, METADATA, CoreAIFormat

SUFFIX = ".aimodel"
_PARTS = (BYTECODE, DIGEST, METADATA)
"""The files of a folder that are read. Core AI can make all others again."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Methods that are accepted. Python reads others without a bound of the memory."""
_EXPANSION = 32
"""How many times larger than the archive its files may be: weights compress little."""
_SMALL = 1 << 30
"""The bytes that the files of any archive may have."""


class ZippedCoreAIFormat(DelegateFormat):
    """A Core AI model in an archive. All work is that of ``CoreAIFormat``."""

    backend_id = CoreAIFormat.backend_id
    holds_named_data = True

    @classmethod
    def write(
        cls, program: ProgramContents, path: Path, options: Mapping[str, Any]
    ) -> None:
        """Write the archive. Unpacked, it is a folder with the name of the archive."""
        name = path.name[: -len(".zip")]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary, name)
            CoreAIFormat.write(program, folder, options)
            archive = Path(temporary, "archive.zip")
            with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
                for part in sorted(folder.iterdir()):
                    file.write(part, f"{name}/{part.name}")
            write_whole(path, archive.read_bytes())

    @classmethod
    def read(
        cls, path: Path, load_delegate: LoadDelegate
    ) -> Mapping[str, Callable[..., Any]]:
        with _unpacked(path) as folder:
            return CoreAIFormat.read(folder, load_delegate)

    @classmethod
    def blobs(cls, path: Path) -> Sequence[StoredBlob]:
        with _unpacked(path) as folder:
            return CoreAIFormat.blobs(folder)

    @staticmethod
    def inspect(path: Path) -> Summary:
        """Return the summary of the folder."""
        with _unpacked(path) as folder:
            return CoreAIFormat.inspect(folder)

    @staticmethod
    def summarize(path: Path) -> Summary:
        """Return the same as ``inspect``."""
        return ZippedCoreAIFormat.inspect(path)

    @staticmethod
    def sample(path: Path, seed: int) -> list[np.ndarray[Any, Any]]:
        """Return random inputs."""
        with _unpacked(path) as folder:
            return CoreAIFormat.sample(folder, seed)

    @staticmethod
    def verify(path: Path) -> Sequence[Verdict]:
        """Return the judgement of Core AI's compiler for this host."""
        with _unpacked(path) as folder:
            return CoreAIFormat.verify(folder)


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Yield a temporary folder with the model of an archive.

    Raises FormatError for an archive that is damaged, or has not exactly one model.
    """
    with tempfile.TemporaryDirectory(suffix=SUFFIX) as temporary:
        folder = Path(temporary)
        try:
            with zipfile.ZipFile(path) as archive:
                prefix = _prefix_of(archive.namelist())
                members = [archive.getinfo(prefix + part) for part in _PARTS]
                _expect_small(members, path.stat().st_size)
                for member, part in zip(members, _PARTS, strict=True):
                    # only these names are used: those in an archive may lead elsewhere
                    with (
                        archive.open(member) as source,
                        (folder / part).open("wb") as f,
                    ):
                        shutil.copyfileobj(source, f)
        except (
            zipfile.BadZipFile,
            zlib.error,
            KeyError,
            EOFError,
            OSError,
            ValueError,  # a name that is no UTF-8
            RuntimeError,  # it has a password, or a newer version
        ) as error:
            # EINVAL: offsets in a damaged archive lead before its beginning; other
            # errors of the system are no fault of the archive
            if isinstance(error, OSError) and error.errno != errno.EINVAL:
                raise
            text = str(error).strip("'\"") or type(error).__name__
            raise FormatError(
                "format-invalid", f"no Core AI model in this archive: {text:.200}"
            ) from error
        yield folder


def _expect_small(members: Sequence[zipfile.ZipInfo], size: int) -> None:
    """Raise FormatError if an archive of ``size`` bytes may fill the disk."""
    for member in members:
        if member.compress_type not in _METHODS:
            raise FormatError(
                "format-invalid",
                f"{member.filename!r:.80} is compressed by method"
                f" {member.compress_type}; delegraph reads archives that are stored or"
                " deflated",
            )
    total = sum(member.file_size for member in members)
    if total > max(_SMALL, _EXPANSION * size):
        raise FormatError(
            "format-invalid",
            f"the archive of {size} bytes declares files of {total} bytes; delegraph"
            f" unpacks at most {_EXPANSION} times its size",
        )


def _prefix_of(names: Sequence[str]) -> str:
    """Return the path of the one model in an archive, which ends with "/" or is ""."""
    found = [
        name.removesuffix(BYTECODE)
        for name in names
        if os.path.basename(name) == BYTECODE and not name.startswith("__MACOSX/")
    ]
    if len(found) != 1:
        raise FormatError(
            "format-invalid",
            f"an archive holds one Core AI model; this one has {len(found)} files"
            f" {BYTECODE}",
        )
    return found[0]

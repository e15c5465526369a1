"""``.aimodel.zip`` files: an ``.aimodel`` folder in one archive, to copy it to a Mac."""

from __future__ import annotations

import os
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
                for part in _PARTS:
                    # only these names are used: those in an archive may lead elsewhere
                    (folder / part).write_bytes(archive.read(prefix + part))
        except (
            zipfile.BadZipFile,
            zlib.error,
            KeyError,
            EOFError,
            RuntimeError,  # it has a password
            NotImplementedError,  # an unknown compression
        ) as error:
            text = str(error).strip("'\"") or type(error).__name__
            raise FormatError(
                "format-invalid", f"no Core AI model in this archive: {text:.200}"
            ) from error
        yield folder


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

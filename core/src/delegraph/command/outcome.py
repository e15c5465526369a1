"""What a command hands back to ``main``, and what it shows meanwhile."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import DelegraphError, InternalError, UsageError
from ..io.atomic_write import expect_writable
from ..io.escape import printable
from . import terminal


@dataclass(frozen=True)
class Outcome:
    """The result of a command: as JSON (``schema`` and ``content``), as text, and its exit code."""

    schema: str
    content: dict[str, Any]
    text: str
    code: int = 0


class Failed(Exception):
    """A DelegraphError after which there is something to tell: ``content``, as JSON."""

    def __init__(self, error: DelegraphError, content: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error, self.content = error, content


def defect(error: BaseException) -> DelegraphError:
    """What a command says of an exception that nobody expected: a requirement is not installed, or it is a defect."""
    lacking = _requirement(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if lacking:
        text = f"delegraph requires {lacking}, which is not installed in this environment ({sys.prefix})"
        return DelegraphError("requirement-missing", text, hint=f"python -m pip install '{lacking}'")
    hint = "this is a defect of delegraph or of a plugin; run it again with --debug and report what that shows"
    return InternalError("internal", f"{type(error).__name__}: {error}", hint=hint)


def _requirement(module: str) -> str | None:
    """What delegraph requires that has this module. All of it is called as its module is."""
    try:
        requirements = metadata.requires("delegraph") or []
    except metadata.PackageNotFoundError:  # it runs from its sources
        return None
    wanted = module.partition(".")[0].replace("_", "-").lower()
    return next((text for text in requirements if re.split(r"[^\w.-]", text)[0].lower() == wanted), None)


def describe_error(error: DelegraphError) -> dict[str, Any]:
    """The fields of ``delegraph.error/1``."""
    where = None if error.source is None else str(error.source)
    said = {"code": error.code, "message": error.message, "source": where, "hint": error.hint}
    return {**said, "raised_by": error.raised_by}


def as_json(outcome: Outcome) -> str:
    """One object whose first field is the schema. Infinity and NaN, which JSON lacks, are null."""
    named = {name: value for name, value in outcome.content.items() if name != "schema"}  # a report has its own
    content = _plain({"schema": outcome.schema, **named})
    return json.dumps(content, indent=2, default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.__name__ if isinstance(value, type) else value


def expect_file(path: Path) -> None:
    """Raise UsageError unless ``path`` is a file that can be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError("usage-invalid", f"{path} is no regular file")
        path.open("rb").close()
    except FileNotFoundError:
        raise UsageError("usage-invalid", f"there is no file {path}") from None
    except OSError as e:
        raise UsageError("usage-invalid", f"cannot read {path}: {e.strerror or e}") from e


def expect_places(written: Iterable[Path], read: Iterable[Path]) -> None:
    """Check where files are to be written before the work. What is read must not be lost, nor one of two outputs.

    Raises WriteError for a place that cannot be written, UsageError for one that is given twice or is read.
    """
    taken = {_file_identity(path): "is read" for path in read}
    for path in written:
        expect_writable(path)
        place = _file_identity(path)
        if place in taken and not os.fspath(path).startswith(("/dev/", "/proc/")):  # which take one after another
            raise UsageError("usage-invalid", f"{path} {taken[place]}; write to another file")
        taken[place] = "is given for two files"


def _file_identity(path: Path) -> object:
    """What is the same for all names of a file: hard links too, through which an existing file is written."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def output_path(text: str) -> Path:
    """For argparse: where to write. ``/dev/stdout`` is where the result goes, which need not be descriptor 1."""
    if text in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        with contextlib.suppress(OSError, AttributeError):  # closed, or replaced by what is no file
            return Path(f"/dev/fd/{sys.stdout.fileno()}")
    return Path(text)


def natural_number(text: str) -> int:
    """For argparse: 0, 1, 2, ..."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative")
    return number


natural_number.__name__ = "natural number"  # what argparse calls the value in its error


def show(text: str) -> None:
    """Show a line on a terminal in the place of the last one; nothing where nobody watches."""
    if terminal.is_watched():
        terminal.clear_line()
        terminal.tell(text, end="")


@contextlib.contextmanager
def progress(text: str) -> Iterator[None]:
    """Show what is going on, on a terminal only, and take it away again."""
    if not terminal.is_watched():
        yield
        return
    terminal.tell(f"{printable(text)} ...", end="")
    try:
        yield
    finally:
        terminal.clear_line()

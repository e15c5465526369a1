"""What a command returns to ``main``, and what it shows while it works."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import re
import stat
import sys
import threading
import time
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
    """The result of a command: for JSON (``schema`` and ``content``), as text, and its exit code."""

    schema: str
    content: dict[str, Any]
    text: str
    code: int = 0


class Failed(Exception):
    """A DelegraphError with more to tell than the error: ``content``, for JSON."""

    def __init__(self, error: DelegraphError, content: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error, self.content = error, content


def defect(error: BaseException) -> DelegraphError:
    """The error for an unexpected exception: a missing requirement of delegraph, or a defect."""
    lacking = _requirement_with_module(error.name or "") if isinstance(error, ModuleNotFoundError) else None
    if lacking:
        text = f"delegraph requires {lacking}, which is not installed in this environment ({sys.prefix})"
        return DelegraphError("requirement-missing", text, hint=f"python -m pip install '{lacking}'")
    hint = "this is a defect of delegraph or of a plugin; run it again with --debug and report what that shows"
    return InternalError("internal", f"{type(error).__name__}: {error}", hint=hint)


def _requirement_with_module(module: str) -> str | None:
    """The requirement of delegraph that has ``module``; None if none has.

    Each distribution is called like its module.
    """
    try:
        requirements = metadata.requires("delegraph") or []
    except metadata.PackageNotFoundError:  # delegraph runs from its sources
        return None
    wanted = module.partition(".")[0].replace("_", "-").lower()
    return next((text for text in requirements if re.split(r"[^\w.-]", text)[0].lower() == wanted), None)


def describe_error(error: DelegraphError) -> dict[str, Any]:
    """The fields of ``delegraph.error/1``."""
    where = None if error.source is None else str(error.source)
    said = {"code": error.code, "message": error.message, "source": where, "hint": error.hint}
    return {**said, "raised_by": error.raised_by}


def as_json(outcome: Outcome) -> str:
    """An outcome as one JSON object, its schema first; null stands for infinity and NaN, which JSON lacks."""
    named = {name: value for name, value in outcome.content.items() if name != "schema"}  # a report has its own
    content = _plain({"schema": outcome.schema, **named})
    return json.dumps(content, indent=2, default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    """``value`` made of types that JSON has."""
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
    """Check, before the work, that files can be written, and that none of them is read or is written twice.

    Raises WriteError for a place that cannot be written, UsageError for one that is given twice or is read.
    """
    taken = {_file_identity(path): "is read" for path in read}
    for path in written:
        expect_writable(path)
        place = _file_identity(path)
        if place in taken and not os.fspath(path).startswith(("/dev/", "/proc/")):  # streams take several contents
            raise UsageError("usage-invalid", f"{path} {taken[place]}; write to another file")
        taken[place] = "is given for two files"


def _file_identity(path: Path) -> object:
    """A key that is equal for all names of a file, also for hard links, because writing to one of them changes all."""
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def output_path(text: str) -> Path:
    """For argparse: where to write. ``/dev/stdout`` becomes the stream for results, which need not be descriptor 1."""
    if text in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        with contextlib.suppress(OSError, AttributeError):  # it is closed, or replaced by an object that is no file
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
    """Show a line on a terminal, in the place of the last one; does nothing if stderr is no terminal."""
    if terminal.is_watched():
        terminal.clear_line()
        terminal.tell(text, end="")


INTERVAL = 30.0
"""Seconds between the lines that say where a long command is, if nobody watches stderr: a file of it stays short."""


@contextlib.contextmanager
def progress(text: str) -> Iterator[None]:
    """Show what is going on and for how long: in one line of a terminal, which is taken away again, else now and then.

    What the lowering logs meanwhile, such as which partition a backend compiles, is shown as well.
    """
    where, over, start = _Where(text), threading.Event(), time.monotonic()
    watched = terminal.is_watched()

    def say() -> None:
        """Every second on a terminal. Elsewhere a short command says nothing."""
        while not over.wait(1.0 if watched else INTERVAL):
            line = f"{where.text}, {time.monotonic() - start:.0f} s ..."
            show(line) if watched else terminal.tell(line)

    if watched:
        terminal.tell(f"{where.text} ...", end="")
    thread = threading.Thread(target=say, daemon=True)
    logger = logging.getLogger("delegraph.progress")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(where)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        logger.removeHandler(where)
        logger.setLevel(level)
        if watched:
            terminal.clear_line()


class _Where(logging.Handler):
    """Keeps what was logged last, behind what the command said itself."""

    def __init__(self, doing: str) -> None:
        super().__init__()
        self._doing = self.text = printable(doing)

    def emit(self, record: logging.LogRecord) -> None:
        self.text = f"{self._doing}: {printable(record.getMessage())}"

"""The result of a command, checks of its files, and the progress that it shows."""

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
from ..io.escape_for_terminal import printable
from . import terminal


@dataclass(frozen=True)
class Outcome:
    """The result of a command. ``text`` is printed, or with ``--json`` the object
    ``content`` with its ``schema``.

    ``code``: the exit code.
    """

    schema: str
    content: dict[str, Any]
    text: str
    code: int = 0


class Failed(Exception):
    """A command failed with ``error``. With ``--json``, ``content`` is added to the
    error: the results of the command so far.
    """

    def __init__(self, error: DelegraphError, content: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.content = content


def defect(error: BaseException) -> DelegraphError:
    """Return the DelegraphError for an exception that no command expects.

    If a module that delegraph requires is missing, the error names the package to
    install. Any other exception is reported as a defect.
    """
    requirement = None
    if isinstance(error, ModuleNotFoundError):
        requirement = _requirement_with_module(error.name or "")
    if requirement:
        return DelegraphError(
            "requirement-missing",
            f"delegraph requires {requirement}, which is not installed in this"
            f" environment ({sys.prefix})",
            hint=f"python -m pip install '{requirement}'",
        )
    return InternalError(
        "internal",
        f"{type(error).__name__}: {error}",
        hint=(
            "this is a defect of delegraph or of a plugin; run it again with --debug"
            " and report the output"
        ),
    )


def _requirement_with_module(module: str) -> str | None:
    """Return the requirement of delegraph, such as ``pluggy>=1.5``, that provides
    ``module``; None if none does.

    The requirement is the one with the same name as the module: each distribution that
    delegraph requires is called like its module.
    """
    try:
        requirements = metadata.requires("delegraph") or []
    except metadata.PackageNotFoundError:  # delegraph runs from its sources
        return None
    distribution = module.partition(".")[0].replace("_", "-").lower()
    for requirement in requirements:
        # the name ends before the version or the extra
        name = re.split(r"[^\w.-]", requirement)[0]
        if name.lower() == distribution:
            return requirement
    return None


def describe_error(error: DelegraphError) -> dict[str, Any]:
    """Return the fields of the JSON form ``delegraph.error/1``."""
    return {
        "code": error.code,
        "message": error.message,
        "source": None if error.source is None else str(error.source),
        "hint": error.hint,
        "raised_by": error.raised_by,
    }


def as_json(outcome: Outcome) -> str:
    """Return an outcome as the text of one JSON object, with its schema first."""
    # if the content is a report, it has a key "schema" of its own, which is left out
    fields = {
        name: value for name, value in outcome.content.items() if name != "schema"
    }
    return json_text({"schema": outcome.schema, **fields})


def json_text(content: Any) -> str:
    """Return ``content`` as JSON. Infinity and NaN become null, classes become their
    names, and other objects without a form in JSON become their ``str``.
    """
    return json.dumps(_plain(content), indent=2, default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return a copy of ``value`` for JSON: keys become str, infinity and NaN become
    None, classes become their names, at any depth.
    """
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, type):
        return value.__name__
    return value


def expect_file(path: Path) -> None:
    """Raise UsageError unless ``path`` is a regular file that can be read.

    A folder is accepted if files of its format are folders.
    """
    if _is_package(path):
        return
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError("usage-invalid", f"{path} is no regular file")
        path.open("rb").close()
    except FileNotFoundError:
        raise UsageError("usage-invalid", f"there is no file {path}") from None
    except OSError as e:
        raise UsageError(
            "usage-invalid", f"cannot read {path}: {e.strerror or e}"
        ) from e


def expect_places(written: Iterable[Path], read: Iterable[Path]) -> None:
    """Check, before the work, the files that a command will write and read.

    Raises WriteError if a file in ``written`` cannot be written. Raises UsageError if a
    file occurs twice in ``written``, or in both ``written`` and ``read``. Streams such
    as ``/dev/stdout`` may occur several times.
    """
    # file -> why the command must not write to it
    taken = {_file_identity(path): "is read" for path in read}
    for path in written:
        # A package is a folder. Writing makes a new folder next to it and renames that,
        # so the folder that contains the package must be writable: check a name there.
        expect_writable(path.parent / ".new" if _is_package(path) else path)
        file = _file_identity(path)
        # "/dev/" and "/proc/": several outputs may go to one stream
        if file in taken and not os.fspath(path).startswith(("/dev/", "/proc/")):
            raise UsageError(
                "usage-invalid", f"{path} {taken[file]}; write to another file"
            )
        taken[file] = "is given for two files"


def _is_package(path: Path) -> bool:
    """Return whether ``path`` is a folder, and files of the format with its suffix are
    folders.
    """
    # for a name that is too long, os.path returns False, and a Path raises OSError
    if not os.path.isdir(path):
        return False
    # imported late because these modules need pluggy
    from ..discovery.registry import default_registry
    from ..plugin import FormatSpec

    try:
        return default_registry().find(FormatSpec, os.fspath(path)).folder
    except DelegraphError:
        return False


def _file_identity(path: Path) -> object:
    """Return a key that is equal for all paths to the same file, including symbolic and
    hard links to it.
    """
    try:
        status = os.stat(path)
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino


def output_path(text: str) -> Path:
    """Convert ``text`` to a path to write to, for argparse.

    While a command runs, descriptor 1 is stderr, and the original stdout has another
    descriptor (``cli.native_output``). ``sys.stdout`` has this other descriptor while
    arguments are parsed. So ``/dev/stdout`` becomes the path of this descriptor.
    """
    if text in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        # suppressed: sys.stdout is closed, or replaced by an object that is no file
        with contextlib.suppress(OSError, AttributeError):
            return Path(f"/dev/fd/{sys.stdout.fileno()}")
    return Path(text)


def natural_number(text: str) -> int:
    """Convert ``text`` to an integer from 0 on, for argparse. Raises ArgumentTypeError
    for a negative number, ValueError if it is no integer.
    """
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} is negative")
    return number


natural_number.__name__ = "natural number"  # argparse shows this name in errors


def show(text: str) -> None:
    """Replace the current line of the terminal by ``text``. If stderr is no terminal,
    do nothing.
    """
    if terminal.is_watched():
        terminal.clear_line()
        terminal.tell(text, end="")


@contextlib.contextmanager
def working_directory_kept() -> Iterator[None]:
    """A block after which the working directory is as before, so that paths of the
    command line keep their meaning.

    Code of a model may change the working directory, for example in its file or in
    ``forward``.
    """
    before = None
    with contextlib.suppress(OSError):  # the directory may have been deleted
        before = os.getcwd()
    try:
        yield
    finally:
        if before is not None:
            with contextlib.suppress(OSError):
                os.chdir(before)


INTERVAL = 30.0
"""Seconds between lines of progress if stderr is no terminal, so that a log file stays
short.
"""


@contextlib.contextmanager
def progress(text: str) -> Iterator[None]:
    """A block during which stderr shows ``text``, the seconds elapsed, and the last
    message of ``delegraph.progress``.

    On a terminal this is one line, which is removed at the end. Otherwise a line is
    written every INTERVAL seconds. The engine logs to ``delegraph.progress``, for
    example which partition a backend compiles. The block also restores the working
    directory (``working_directory_kept``).
    """
    handler = _ProgressHandler(text)
    over = threading.Event()
    start = time.monotonic()
    watched = terminal.is_watched()

    def write_lines() -> None:
        """Write a line each second, or each INTERVAL, until the block is over. Runs in
        a thread of its own.
        """
        while not over.wait(1.0 if watched else INTERVAL):
            line = f"{handler.text}, {time.monotonic() - start:.0f} s ..."
            if watched:
                show(line)
            else:
                terminal.tell(line)

    if watched:
        terminal.tell(f"{handler.text} ...", end="")
    thread = threading.Thread(target=write_lines, daemon=True)
    logger = logging.getLogger("delegraph.progress")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    thread.start()
    try:
        with working_directory_kept():
            yield
    finally:
        over.set()
        thread.join()
        logger.removeHandler(handler)
        logger.setLevel(level)
        if watched:
            terminal.clear_line()


class _ProgressHandler(logging.Handler):
    """Keeps the line of progress in ``text``: the activity of the command, and the last
    message that was logged.
    """

    def __init__(self, activity: str) -> None:
        super().__init__()
        self._activity = self.text = printable(activity)

    def emit(self, record: logging.LogRecord) -> None:
        self.text = f"{self._activity}: {printable(record.getMessage())}"

"""The command line: ``delegraph`` and ``python -m delegraph``.

Exit codes: 0 fine, 1 the work failed, 2 wrong usage. Results go to stdout, everything else (progress, warnings, what
models and plugins print) to stderr. An error is one paragraph, or with ``--json`` one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

from .. import __version__
from ..errors import BackendNotFound, DelegraphError, DelegraphWarning, InternalError, OptionError
from .outcome import Outcome, UsageError, as_json

_MODULES = {
    "backends": "listing",
    "doctor": "listing",
    "lower": "lowering",
    "run": "files",
    "inspect": "files",
    "check": "check",
    "new-backend": "new_backend",
    "completion": "completion",
}
"""Command -> the module here that has it. Only the module of the command that is given is imported."""

_USAGE = (UsageError, OptionError, BackendNotFound)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    flags = words[: words.index("--")] if "--" in words else words
    debug = "--debug" in flags
    try:
        outcome = _run(words)
    except SystemExit as e:  # --help and --version
        return int(e.code or 0)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except DelegraphError as e:
        outcome = _failure(e, debug)
    except Exception as e:
        text = f"{type(e).__name__}: {e}"
        hint = "this is a defect of delegraph or of a plugin; run it again with --debug and report what that shows"
        outcome = _failure(InternalError("internal", text, hint=hint), debug, e)
    return _show(outcome, "--json" in flags)


def _run(words: Sequence[str]) -> Outcome:
    args = parser(words).parse_args(words)
    with contextlib.redirect_stdout(sys.stderr), _readable_warnings():
        outcome: Outcome = args.command(args)
    return outcome


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage as an error of ours, so that ``--json`` holds for it too."""

    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError("usage-invalid", f"{message}\n{self.format_usage().rstrip()}", hint=f"{self.prog} --help")


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command that ``words`` begin with; of all commands if they begin with none."""
    made = _Parser(prog="delegraph", description="Lower PyTorch programs to hardware backends.")
    made.add_argument("--version", action="version", version=f"delegraph {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object with a schema field")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    wanted = [_MODULES[words[0]]] if words and words[0] in _MODULES else dict.fromkeys(_MODULES.values())
    for name in wanted:
        import_module(f".{name}", __name__).add(commands, common)
    return made


@contextlib.contextmanager
def _readable_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("always", DelegraphWarning)
        warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
        yield


def _show_warning(other: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    if issubclass(category, DelegraphWarning):
        print(f"warning: {message}", file=sys.stderr)
    else:
        other(message, category, *where)


def _failure(error: DelegraphError, debug: bool, shown: BaseException | None = None) -> Outcome:
    """The error on stderr, also with ``--json``: a log then holds what a person can read."""
    if debug:
        traceback.print_exception(shown or error)
    print(f"error [{error.code}]: {error}", file=sys.stderr)
    where = None if error.source is None else str(error.source)
    content = {"code": error.code, "message": error.message, "source": where, "hint": error.hint}
    return Outcome("delegraph.error/1", content, "", 2 if isinstance(error, _USAGE) else 1)


def _show(outcome: Outcome, json: bool) -> int:
    text = as_json(outcome) if json else outcome.text
    try:
        if text:
            print(text, flush=True)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return outcome.code

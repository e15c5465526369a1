"""The command line: ``delegraph`` and ``python -m delegraph``.

Exit codes: 0 fine, 1 the work failed, 2 wrong usage. Results go to stdout, everything else (progress, warnings, what
models and plugins print) to stderr. An error is one paragraph, or with ``--json`` one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from .. import __version__
from ..command import terminal
from ..command.outcome import Failed, Outcome, as_json, defect, describe_error
from ..errors import (
    BackendNotFound,
    DelegraphError,
    DelegraphWarning,
    FormatNotFound,
    OptionError,
    UsageError,
    WriteError,
)
from ..io.escape import printable
from . import native
from .watchdog import watchdog

__all__ = ["main", "parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: of a signal that ended the work, 128 and its number."""
    if "_ARGCOMPLETE" in os.environ:  # the script that `delegraph completion` prints runs this program at each TAB
        from .completion import complete

        complete(parser)
    words = list(sys.argv[1:] if argv is None else argv)
    terminal.occupy_closed_descriptors()
    try:
        with _stoppable(), native.stdout_kept(to_the_end=argv is None):
            return _finish(words)
    except KeyboardInterrupt as e:
        stop = e.args[0] if isinstance(e, _Stopped) else signal.SIGINT
        terminal.tell("interrupted" if stop == signal.SIGINT else f"stopped by {stop.name}")
        return 128 + stop


class _Stopped(KeyboardInterrupt):
    """A signal ends the work, which is cleaned up after as after SIGINT; its one argument is the signal."""


def _stop(number: int, frame: object) -> NoReturn:
    raise _Stopped(signal.Signals(number))


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM and SIGHUP leave nothing behind either. A signal that is ignored (nohup) or handled stays so."""
    candidates = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # not on Windows
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread handle signals
        candidates = []
    ours = [s for s in candidates if signal.getsignal(s) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _finish(words: Sequence[str]) -> int:
    """Run the command and show what comes of it."""
    flags = words[: words.index("--")] if "--" in words else words
    debug = "--debug" in flags
    text = None
    try:
        outcome = _run(words)
    except _Answered as e:
        outcome, text = Outcome("", {}, ""), str(e)
    except Failed as e:
        outcome = _failure(e.error, debug, e.error.__cause__ if e.error.code == "internal" else None, e.content)
    except DelegraphError as e:
        outcome = _failure(e, debug)
    except (Exception, SystemExit) as e:  # whoever wants to exit: without a result the work has failed
        outcome = _failure(defect(e), debug, e)
    if text is None:
        text = as_json(outcome) if "--json" in flags else outcome.text
    try:
        terminal.show(text) if text else None
    except WriteError as e:
        return _failure(e, debug).code
    return outcome.code


def _run(words: Sequence[str]) -> Outcome:
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr), _readable_warnings(), watchdog(), native.end_explained():
        command_line = parser(words)
        with contextlib.redirect_stdout(stdout):  # which arguments such as /dev/stdout mean
            args, unknown = command_line.parse_known_args(words)
            if unknown:  # argparse would show the usage of delegraph, not that of the command
                args.refuse(f"unrecognized arguments: {' '.join(unknown)}")
        outcome: Outcome = args.run_command(args)
    return outcome


class _Answered(Exception):
    """--help or --version was all that was asked; the text is the answer."""


class _Parser(argparse.ArgumentParser):
    """Neither prints nor exits: wrong usage is an error of ours, so that ``--json`` holds for it too."""

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage-invalid", f"{message}\n{self.format_usage().rstrip()}", hint=f"{self.prog} --help")

    def _print_message(self, message: str, file: object = None) -> None:
        raise _Answered(message.rstrip("\n"))


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command that ``words`` begin with; if they begin with none, it knows only what all are for."""
    from .lookup import find_command, list_commands  # which need pluggy and others: see ``defect``

    top = _Parser(prog="delegraph", description="Lower PyTorch programs to hardware backends.")
    top.add_argument("--version", action="version", version=f"delegraph {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    if words and not words[0].startswith("-"):
        command = find_command(words[0])
        chosen = commands.add_parser(words[0])
        chosen.add_argument("--json", action="store_true", help="print one JSON object with a schema field")
        chosen.add_argument("--debug", action="store_true", help="show the traceback of an error")
        command.add_arguments(chosen)
        chosen.set_defaults(run_command=command.run, refuse=chosen.error)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DelegraphWarning)  # nobody reads them here
            for name, summary in list_commands():
                commands.add_parser(name, help=printable(summary).replace("%", "%%"))
    return top


@contextlib.contextmanager
def _readable_warnings() -> Iterator[None]:
    """A warning of delegraph is one line; others look as Python writes them."""

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
        ours = issubclass(category, DelegraphWarning)
        text = f"warning: {message}\n" if ours else warnings.formatwarning(message, category, filename, lineno)
        terminal.tell(text, end="")

    with warnings.catch_warnings():
        warnings.simplefilter("always", DelegraphWarning)
        warnings.showwarning = show
        yield


def _failure(
    error: DelegraphError, debug: bool, shown: BaseException | None = None, content: Mapping[str, Any] | None = None
) -> Outcome:
    """The error on stderr, also with ``--json``: a log then holds what a person can read.

    ``content``: what there is besides it, such as a report.
    """
    if debug:
        terminal.tell("".join(traceback.format_exception(shown or error)), end="")
    terminal.tell(f"error [{error.code}]: {error}")
    wrong_usage = isinstance(error, (UsageError, OptionError, BackendNotFound, FormatNotFound))
    return Outcome("delegraph.error/1", {**describe_error(error), **(content or {})}, "", 2 if wrong_usage else 1)

"""The command line: ``delegraph`` and ``python -m delegraph``.

Exit codes: 0 fine, 1 the work failed, 2 wrong usage. If a command was done, its exit code counts, however the process
that carried it out ends. Results go to stdout, everything else (progress, warnings, what models and plugins print) to
stderr. An error is one paragraph, or with ``--json`` one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

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
from . import native, worker
from .watchdog import watchdog

if TYPE_CHECKING:
    from ..discovery.record import PluginRecord

__all__ = ["main", "parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns its exit code; 128 plus its number for a signal that ended the work.

    Without ``argv``, this process is the command. Then a fork of it carries the command out and returns from here,
    while this process waits for the fork and ends as it does.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    completes = "_ARGCOMPLETE" in os.environ  # the script of `delegraph completion` runs this program at each TAB
    if not completes:
        terminal.occupy_closed_descriptors()
    if argv is not None or not worker.is_possible():
        return _carry_out(words, completes, to_the_end=argv is None)
    end = worker.supervise(partial(_carry_out, words, completes))
    if not isinstance(end, worker.End):  # this is the worker
        return end
    if not end.done and not completes:
        _explain(end, "--json" in _flags(words))
    worker.leave(end, worker.exit_code(end, completes))


def _carry_out(
    words: Sequence[str],
    completes: bool,
    page: worker.Page | None = None,
    refused: Mapping[worker.Key, str] = MappingProxyType({}),
    to_the_end: bool = True,
) -> int:
    """Carry out the command in this process; returns the exit code.

    ``page`` is told how far the work is. ``refused`` are plugins whose light modules ended an earlier worker.
    ``to_the_end``: nothing follows the command in this process.
    """
    if completes:
        from .completion import complete

        with _reporting_to(page, refused):
            complete(parser)
    try:
        with _stoppable(to_the_end), native.stdout_kept(to_the_end):
            code = _finish(words, page, refused)
    except KeyboardInterrupt as e:
        stop = e.args[0] if e.args else signal.SIGINT
        terminal.tell("interrupted" if stop == signal.SIGINT else f"stopped by {stop.name}")
        code = 128 + stop
    if page is not None:
        page.finish(code)
    return code


def _explain(end: worker.End, as_object: bool) -> None:
    """Show the error for a command whose worker ended before it was done."""
    if end.during:
        error = DelegraphError("plugin-crashed", f"{end.during}, {end.how}")
        error.raised_by = end.during
    else:
        hint = "no plugin was at work: the model's own code ended it, or another process did"
        error = DelegraphError("process-ended", f"before the command was done, something {end.how}", hint=hint)
    outcome = _failure(error, debug=False)
    if as_object and not end.shown:
        with contextlib.suppress(WriteError):
            terminal.show(as_json(outcome))


_APART = 1.0
"""In seconds. A signal that comes again sooner is taken for the same one.

Sent to all processes of a job, and passed on.
"""


@contextlib.contextmanager
def _stoppable(to_the_end: bool) -> Iterator[None]:
    """A block in which SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that they leave nothing behind.

    Signals that are ignored (nohup), or that the program handles itself, stay so. ``to_the_end``: the process ends
    after the block; once stopped, it ignores the signal that stopped it, which may come a second time.
    """
    candidates = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():  # Python lets no other thread handle signals
        candidates = []
    before = {s: signal.getsignal(s) for s in candidates}
    ours = [s for s, handler in before.items() if handler in (signal.SIG_DFL, signal.default_int_handler)]
    last = -math.inf

    def stop(number: int, frame: object) -> None:
        nonlocal last
        again, last = time.monotonic() - last < _APART, time.monotonic()
        if not again:  # else it would interrupt the cleaning up after the first signal
            raise KeyboardInterrupt(signal.Signals(number))

    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        stopped = to_the_end and last > -math.inf
        for number in ours:
            signal.signal(number, signal.SIG_IGN if stopped else before[number])


@contextlib.contextmanager
def _reporting_to(page: worker.Page | None, refused: Mapping[worker.Key, str]) -> Iterator[None]:
    """A block in which ``page`` is told what is at work and imported; plugins in ``refused`` are not imported."""
    if page is None:
        yield
        return
    # imported late because they need pluggy: if that is missing, the command line says so
    from ..discovery.attribution import watched
    from ..discovery.import_watch import watched_imports
    from ..discovery.registry import default_registry

    def imported(record: PluginRecord | None) -> None:
        """Tell the page which plugin's module is being imported; None when it has been."""
        page.begin_import(None if record is None else (record.distribution, record.name))

    default_registry().refuse(refused)
    with watched(page.begin_work), watched_imports(imported):
        yield


def _flags(words: Sequence[str]) -> Sequence[str]:
    """The words that may be flags: those before ``--``."""
    return words[: words.index("--")] if "--" in words else words


def _finish(words: Sequence[str], page: worker.Page | None, refused: Mapping[worker.Key, str]) -> int:
    """Run the command and show its result; returns the exit code."""
    flags = _flags(words)
    debug = "--debug" in flags
    text = None
    try:
        outcome = _run(words, page, refused)
    except _HelpShown as e:
        outcome, text = Outcome("", {}, ""), str(e)
    except Failed as e:
        outcome = _failure(e.error, debug, e.error.__cause__ if e.error.code == "internal" else None, e.content)
    except DelegraphError as e:
        outcome = _failure(e, debug)
    except (Exception, SystemExit) as e:  # also an exit: without a result the work has failed
        outcome = _failure(defect(e), debug, e)
    if text is None:
        text = as_json(outcome) if "--json" in flags else outcome.text
    if page is not None:
        page.show()
    try:
        terminal.show(text) if text else None
    except WriteError as e:
        return _failure(e, debug).code
    return outcome.code


def _run(words: Sequence[str], page: worker.Page | None, refused: Mapping[worker.Key, str]) -> Outcome:
    """Parse the words and run the command that they name."""
    stdout = sys.stdout
    with contextlib.redirect_stdout(sys.stderr), _readable_warnings(), watchdog(), _reporting_to(page, refused):
        command_line = parser(words)
        with contextlib.redirect_stdout(stdout):  # which arguments such as /dev/stdout mean
            args, unknown = command_line.parse_known_args(words)
            if unknown:  # argparse would show the usage of delegraph, not that of the command
                args.refuse(f"unrecognized arguments: {' '.join(unknown)}")
        outcome: Outcome = args.run_command(args)
    return outcome


class _HelpShown(Exception):
    """--help or --version was asked for; the text is the answer."""


class _Parser(argparse.ArgumentParser):
    """A parser that neither prints nor exits.

    Wrong usage is an error of ours, so that ``--json`` applies to it, too.
    """

    def error(self, message: str) -> NoReturn:
        raise UsageError("usage-invalid", f"{message}\n{self.format_usage().rstrip()}", hint=f"{self.prog} --help")

    def _print_message(self, message: str, file: object = None) -> None:
        raise _HelpShown(message.rstrip("\n"))


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser for the command that ``words`` begin with.

    Without a command, one that only knows what all commands are for.
    """
    from .lookup import find_command, list_commands  # imported late because they need pluggy: see ``defect``

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
            warnings.simplefilter("ignore", DelegraphWarning)  # nobody would read them here
            for name, summary in list_commands():
                commands.add_parser(name, help=printable(summary).replace("%", "%%"))
    return top


@contextlib.contextmanager
def _readable_warnings() -> Iterator[None]:
    """A block in which a warning of delegraph is one line on stderr; others look as Python writes them."""

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
    """Show an error on stderr, also with ``--json``, so that a log can be read; returns the outcome.

    ``shown``: the exception whose traceback --debug shows. ``content``: what else there is for JSON, such as a report.
    """
    if debug:
        terminal.tell("".join(traceback.format_exception(shown or error)), end="")
    terminal.tell(f"error [{error.code}]: {error}")
    wrong_usage = isinstance(error, (UsageError, OptionError, BackendNotFound, FormatNotFound))
    return Outcome("delegraph.error/1", {**describe_error(error), **(content or {})}, "", 2 if wrong_usage else 1)

"""The command line: ``delegraph`` and ``python -m delegraph``.

Exit codes: 0 success, 1 the work failed, 2 wrong usage. Results go to stdout.
Everything else goes to stderr: progress, warnings, prints of models and plugins. An
error is one paragraph, or with ``--json`` one JSON object.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from .. import __version__
from ..command import terminal
from ..command.outcome import Failed, Outcome, as_json, defect, describe_error
from ..discovery import import_by_name
from ..errors import (
    BackendNotFound,
    DelegraphError,
    DelegraphWarning,
    FormatNotFound,
    OptionError,
    UsageError,
    WriteError,
)
from ..io.escape_for_terminal import printable
from . import native_output

__all__ = ["main", "parser", "run"]


def run() -> NoReturn:
    """Run the command line of this process, then end the process with the exit code of
    the command. This is the entry point of the ``delegraph`` program.

    The process ends by ``os._exit``, so that the teardown of a plugin's native code
    cannot change the exit code.
    """
    # if native code crashes, print Python's stack, which shows the plugin's file
    faulthandler.enable(file=2)
    # if the import of a plugin takes seconds, print the stack, too
    import_by_name.shows_hangs = True
    code = main(ends_process=True)
    # Exit handlers remove temporary files, for example, and ``os._exit`` does not run
    # them. A handler that fails does not change the exit code.
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # suppressed: the stream is closed or None
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)


def main(argv: Sequence[str] | None = None, *, ends_process: bool = False) -> int:
    """Run one command, print its result or error, and return its exit code. If a signal
    ended the work, the code is 128 plus the signal's number.

    ``argv``: the words of the command line after the program's name; None for those of
    this process. ``ends_process``: the process exits after the command, so signal
    handlers are not restored.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # a shell calls this program at each TAB (`delegraph completion`)
    if "_ARGCOMPLETE" in os.environ:
        from .completion import complete

        complete(parser)  # does not return
    terminal.occupy_closed_descriptors()
    # In the blocks below, code of models and plugins cannot print to stdout, and cannot
    # keep messages from stderr.
    try:
        with (
            _stoppable(ends_process),
            native_output.stdout_kept(),
            terminal.messages_kept(),
        ):
            return _finish(words)
    except KeyboardInterrupt as e:
        # ``_stoppable`` raises KeyboardInterrupt with the signal as argument. If code of
        # the model raises KeyboardInterrupt without a signal, that counts as SIGINT.
        stop = signal.SIGINT
        if e.args and isinstance(e.args[0], signal.Signals):
            stop = e.args[0]
        terminal.tell(
            "interrupted" if stop == signal.SIGINT else f"stopped by {stop.name}"
        )
        return 128 + int(stop)


_REPEATED_WITHIN = 1.0
"""A signal is ignored if it comes less than this number of seconds after another one.

A process may get a signal twice: from the terminal, and from the program that started
it and passes the signal on.
"""


@contextlib.contextmanager
def _stoppable(ends_process: bool) -> Iterator[None]:
    """A block in which SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, so that
    temporary files are removed.

    A signal keeps its handler if it is ignored (nohup) or if the program has set a
    handler of its own. Outside of the main thread the block changes nothing.
    ``ends_process``: the process exits after the block. The signals are then ignored, so
    that a late signal does not interrupt the exit. Otherwise the block restores the
    handlers.
    """
    candidates = [
        getattr(signal, name)
        for name in ("SIGINT", "SIGTERM", "SIGHUP")
        if hasattr(signal, name)
    ]
    # Python lets only the main thread set handlers
    if threading.current_thread() is not threading.main_thread():
        candidates = []
    handlers = {s: signal.getsignal(s) for s in candidates}
    # the signals that get the handler ``stop``
    ours = [
        s
        for s, handler in handlers.items()
        if handler in (signal.SIG_DFL, signal.default_int_handler)
    ]
    last = -math.inf  # the time of the last signal that ``stop`` handled

    def stop(number: int, frame: object) -> None:
        """The handler: raise KeyboardInterrupt with the signal, unless the signal is
        repeated.
        """
        nonlocal last
        now = time.monotonic()
        is_repeated = now - last < _REPEATED_WITHIN
        last = now
        # a second exception would interrupt the clean-up after the first
        if not is_repeated:
            raise KeyboardInterrupt(signal.Signals(number))

    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_IGN if ends_process else handlers[number])


def _flags(words: Sequence[str]) -> Sequence[str]:
    """Return the words before the word ``--``: words after it are never flags."""
    return words[: words.index("--")] if "--" in words else words


def _finish(words: Sequence[str]) -> int:
    """Run the command, print its result or error, and return the exit code."""
    # search --debug and --json in the words: parsing the words may raise the error
    flags = _flags(words)
    debug = "--debug" in flags
    is_json = "--json" in flags
    try:
        outcome = _run(words)
    except _HelpShown as e:
        outcome = Outcome("", {}, str(e))
        is_json = False  # help and version are always printed as text
    except Failed as e:
        # for a defect, --debug shows the traceback of the exception that caused it
        cause = e.error.__cause__ if e.error.code == "internal" else None
        outcome = _failure(e.error, debug, shown=cause, content=e.content)
    except DelegraphError as e:
        outcome = _failure(e, debug)
    except (Exception, SystemExit, import_by_name.ProcessExit) as e:
        # a command that exits has returned no result: that is a defect, too
        outcome = _failure(defect(e), debug, shown=e)
    text = as_json(outcome) if is_json else outcome.text
    try:
        if text:
            terminal.show(text)
    except WriteError as e:
        return _failure(e, debug).code
    return outcome.code


def _run(words: Sequence[str]) -> Outcome:
    """Parse the words and run the command that they name.

    Raises ``_HelpShown`` for --help and --version, UsageError for wrong words, and the
    errors of ``find_command``, of ``_use_settings`` and of the command.
    """
    # kept here, because ``streams_guarded`` replaces ``sys.stdout``
    stdout = sys.stdout
    # --debug also shows exceptions of backends that become refusals
    tracebacks = (
        _showing_failures() if "--debug" in _flags(words) else contextlib.nullcontext()
    )
    with (
        terminal.streams_guarded(),
        _readable_warnings(),
        tracebacks,
        import_by_name.exits_raise(),
    ):
        # imported late: if pluggy is missing, this block reports the ImportError
        from ..command.compiler_flags import refuse_flags_of_absent_compilers

        _use_settings(_flags(words))
        command_line = parser(words)
        # ``streams_guarded`` made ``sys.stdout`` write to stderr. The parser gets the
        # original stdout back, because ``--output /dev/stdout`` needs its descriptor.
        with contextlib.redirect_stdout(stdout):
            # not ``parse_args``: for unknown words, it would show the usage of
            # delegraph, and not the usage of the command
            args, unknown = command_line.parse_known_args(words)
            if unknown:
                # flags of a compiler that is not installed get an error of their own
                refuse_flags_of_absent_compilers(unknown)
                args.refuse(f"unrecognized arguments: {' '.join(unknown)}")
        outcome: Outcome = args.run_command(args)
    return outcome


def _use_settings(flags: Sequence[str]) -> None:
    """If ``flags`` have ``--config``, put its path into the environment variable from
    which plugins read their settings.

    Call this before ``parser``, which loads plugins. Raises PluginUnavailable if the
    flag is given and delegraph-workers, which reads settings files, is not installed.
    """
    # imported late because the module needs pluggy, which may be missing
    from ..discovery.first_party import provided

    for k, word in enumerate(flags):
        name, equals, value = word.partition("=")
        # ``--config=FILE`` or ``--config FILE``
        if name == "--config" and (equals or k + 1 < len(flags)):
            # the result is not needed: the call raises if delegraph-workers is missing
            provided("delegraph_workers.config:settings", "--config")
            os.environ["DELEGRAPH_CONFIG"] = os.path.abspath(
                value if equals else flags[k + 1]
            )


class _HelpShown(Exception):
    """Raised for --help and --version, with the text to print."""


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError or ``_HelpShown`` where argparse would print and
    exit.

    So ``--json`` applies to wrong usage, too.
    """

    def error(self, message: str) -> NoReturn:
        """Raise UsageError. argparse calls this for wrong usage."""
        raise UsageError(
            "usage-invalid",
            f"{message}\n{self.format_usage().rstrip()}",
            hint=f"{self.prog} --help",
        )

    def _print_message(self, message: str, file: object = None) -> None:
        """Raise ``_HelpShown``. argparse calls this for --help and --version."""
        raise _HelpShown(message.rstrip("\n"))


def parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser for the command that ``words[0]`` names. Raises the errors of
    ``find_command``.

    The parsed arguments have ``run_command``, which runs the command, and ``refuse``,
    which raises UsageError. If ``words`` are empty or begin with a flag, the parser only
    has the names and summaries of all commands, for --help.
    """
    # imported late because the module needs pluggy, which may be missing
    from .find_command import find_command, list_commands

    top = _Parser(
        prog="delegraph", description="Lower PyTorch programs to hardware backends."
    )
    top.add_argument("--version", action="version", version=f"delegraph {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    if words and not words[0].startswith("-"):
        command = find_command(words[0])
        chosen = commands.add_parser(words[0])
        chosen.add_argument(
            "--json",
            action="store_true",
            help="print one JSON object with a schema field",
        )
        chosen.add_argument(
            "--debug", action="store_true", help="show the traceback of an error"
        )
        chosen.add_argument(
            "--config",
            metavar="FILE",
            help=(
                "read settings from FILE and not from the user's file; they name"
                " backends in other environments (delegraph-workers)"
            ),
        )
        command.add_arguments(chosen)
        chosen.set_defaults(run_command=command.run, refuse=chosen.error)
    else:
        with warnings.catch_warnings():
            # warnings about broken plugins would clutter the help
            warnings.simplefilter("ignore", DelegraphWarning)
            for name, summary in list_commands():
                # argparse formats the help with ``%``
                commands.add_parser(name, help=printable(summary).replace("%", "%%"))
    return top


@contextlib.contextmanager
def _readable_warnings() -> Iterator[None]:
    """A block in which each DelegraphWarning is shown as one line on stderr. Other
    warnings have their usual form.
    """

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        *_: Any,
        **__: Any,
    ) -> None:
        """Show a warning. Python calls this in place of ``warnings.showwarning``."""
        if issubclass(category, DelegraphWarning):
            text = f"warning: {message}\n"
        else:
            text = warnings.formatwarning(message, category, filename, lineno)
        terminal.tell(text, end="")

    with warnings.catch_warnings():
        warnings.simplefilter("always", DelegraphWarning)
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _showing_failures() -> Iterator[None]:
    """A block in which stderr shows exceptions of backends with their tracebacks, even
    if they become refusals.

    The engine logs these exceptions to ``delegraph.failures``.
    """
    logger = logging.getLogger("delegraph.failures")
    level = logger.level
    handler = _FailureHandler()
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _FailureHandler(logging.Handler):
    """Shows each record on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        terminal.tell(logging.Formatter().format(record))


def _failure(
    error: DelegraphError,
    debug: bool,
    shown: BaseException | None = None,
    content: Mapping[str, Any] | None = None,
) -> Outcome:
    """Print an error to stderr, even with ``--json``, and return the outcome for it.

    ``debug``: also print the traceback of the exception ``shown``, or of ``error`` if
    ``shown`` is None. ``content``: additional fields for JSON, such as a report. The
    exit code is 2 for wrong usage, else 1.
    """
    if debug:
        terminal.tell("".join(traceback.format_exception(shown or error)), end="")
    terminal.tell(f"error [{error.code}]: {error}")
    wrong_usage = isinstance(
        error, (UsageError, OptionError, BackendNotFound, FormatNotFound)
    )
    return Outcome(
        "delegraph.error/1",
        {**describe_error(error), **(content or {})},
        "",
        code=2 if wrong_usage else 1,
    )

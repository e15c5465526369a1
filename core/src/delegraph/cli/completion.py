"""``delegraph completion``: completion in a shell, by argcomplete. Nothing here imports
torch.

The printed script runs ``delegraph`` at each TAB, so it offers the commands, backends
and options that are installed. An answer takes as long as ``delegraph backends``.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from argcomplete.completers import FilesCompleter
from argcomplete.finders import CompletionFinder
from argcomplete.lexers import split_line
from argcomplete.shell_integration import shellcode

from ..command.outcome import Outcome
from ..discovery.registry import default_registry
from ..errors import DelegraphError, DelegraphWarning
from ..plugin import FormatSpec


class Completion:
    """``delegraph completion``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "shell",
            choices=["bash", "zsh", "fish"],
            help="the shell that will read the script",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        """Return the script that the shell has to read."""
        script = shellcode(["delegraph"], shell=args.shell)
        return Outcome("delegraph.completion/1", {"script": script}, script)


def complete(make_parser: Callable[[list[str]], argparse.ArgumentParser]) -> None:
    """Write the completions for the line in the environment variables of argcomplete,
    and end the process.

    ``make_parser``: function that returns the parser for the complete words of the
    line.
    """
    # item 3 of the result has the complete words before the cursor
    words = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))[3]
    # ``_ARGCOMPLETE`` is the number of words up to and including the program's name,
    # such as 3 for ``python -m delegraph``
    typed = words[int(os.environ["_ARGCOMPLETE"]) :]
    with warnings.catch_warnings():
        # warnings would disturb the line that the user types
        warnings.simplefilter("ignore", DelegraphWarning)
        try:
            parser = make_parser(typed)
        except DelegraphError:
            # the command does not exist or is broken, so there is nothing to complete
            os._exit(1)
        for action in _arguments(parser):
            # A flag with FILE accepts any file, so it gets no completer: argcomplete
            # then offers all files.
            if action.metavar in _COMPLETERS and not (
                action.metavar == "FILE" and action.option_strings
            ):
                action.completer = _COMPLETERS[action.metavar]  # type: ignore[attr-defined]
        # ends the process
        CompletionFinder()(parser, always_complete_options=False, validator=_fits)


def _arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield all arguments of a parser and of the parsers of its commands. (argparse
    lists arguments only in private attributes.)
    """
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _arguments(command)


def _fits(candidate: str, prefix: str) -> bool:
    """Return whether to offer ``candidate`` for the typed ``prefix``. Texts with
    control characters are never offered.
    """
    return candidate.startswith(prefix) and candidate.isprintable()


def _backend_names(**_: Any) -> list[str]:
    """Return the names of all backends, usable or not."""
    return [info.name for info in default_registry().backends()]


def _option_values(parsed_args: argparse.Namespace, **_: Any) -> Iterator[str]:
    """Yield a candidate such as ``tosa.spec=`` for each option of the backends on the
    line, or of all backends if the line has none.

    An option with choices, or of type bool, gets a candidate for each value.
    """
    names = getattr(parsed_args, "backend", None) or _backend_names()
    # for commands that take a single --backend, the value is a str
    if isinstance(names, str):
        names = [names]
    for info in default_registry().backends():
        if info.name in names:
            for option in info.spec.options:
                values = option.choices or ("",)
                if option.type is bool:
                    values = ("true", "false")
                yield from (f"{info.name}.{option.name}={value}" for value in values)


def _readable_files(prefix: str, **_: Any) -> list[str]:
    """Return the paths that begin with ``prefix`` and have the suffix of a declared
    format.
    """
    suffixes = [spec.suffix for spec, _ in default_registry().declared(FormatSpec)]
    return list(FilesCompleter(suffixes)(prefix))


_COMPLETERS: Mapping[Any, Any] = {
    "BACKEND": _backend_names,
    "BACKEND.OPTION=VALUE": _option_values,
    "MODEL": FilesCompleter((".py", ".pt2")),
    "FILE": _readable_files,
}
"""Metavar -> completer. Other arguments, and FILE of a flag, complete to any file."""

"""``delegraph completion``: what a shell offers after TAB. Importing this module imports no torch.

The script that is printed asks this program at each TAB, so it knows the commands of the installed version, the
backends that are installed and their options. The answer takes as long as ``delegraph backends``.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..discovery.registry import default_registry
from ..errors import DelegraphWarning
from ..plugin import OptionSpec
from .outcome import Outcome

# COMP_WORDS splits at = and :, which stand inside our words; so the line is split again, at blanks.
_BASH = """\
_delegraph() {
    local line="${COMP_LINE:0:COMP_POINT}" words word
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    word="${words[-1]}"
    mapfile -t COMPREPLY < <("${words[0]}" completion words -- "${words[@]:1}" 2>/dev/null)
    local split="${word%"${word##*[=:]}"}"
    COMPREPLY=("${COMPREPLY[@]#"$split"}")
    [[ "${#COMPREPLY[@]}" == 1 && "${COMPREPLY[0]}" == *= ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o default -F _delegraph delegraph
"""


def add(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to the parser."""
    completion = commands.add_parser("completion", parents=[common], help="print a script that completes in bash")
    completion.add_argument("shell", choices=["bash", "words"], metavar="SHELL", help="bash")
    completion.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    completion.set_defaults(command=_completion)


def _completion(args: argparse.Namespace) -> Outcome:
    if args.shell == "bash":
        return Outcome("delegraph.completion/1", {"script": _BASH}, _BASH)
    found = candidates(args.words)
    return Outcome("delegraph.completion/1", {"candidates": found}, "\n".join(found))


def candidates(words: Sequence[str]) -> list[str]:
    """What the last of ``words`` (of those behind ``delegraph``) could become; nothing where a file is wanted."""
    *before, last = words or [""]
    flag, equals, _ = last.partition("=")
    if last.startswith("--") and equals:  # --option=tosa.spec is --option tosa.spec
        return [f"{flag}={c}" for c in candidates([*before, flag, last[len(flag) + 1 :]])]
    command = _command(before)
    offered = _commands() if command is None else _values(last, before, command)
    return sorted(o for o in set(offered) if o.startswith(last))


def _commands() -> Iterable[str]:
    from . import parser

    return [*_subparsers(parser()), "--help", "--version"]


def _command(before: Sequence[str]) -> argparse.ArgumentParser | None:
    """The parser of the command that was typed."""
    from . import parser

    return _subparsers(parser(before)).get(before[0]) if before else None


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # argparse has no public way to ask what a parser knows
        if isinstance(action, argparse._SubParsersAction):
            found.update(action.choices)
    return found


def _values(last: str, before: Sequence[str], command: argparse.ArgumentParser) -> Iterable[str]:
    """The values of the option before, if that takes one; else options where one was begun, else words."""
    flags = {flag: action for action in command._actions for flag in action.option_strings}
    previous = flags.get(before[-1])
    if previous is not None and previous.nargs != 0:
        return _option_values(before)
    return flags if last.startswith("-") else _words(before, command)


def _option_values(before: Sequence[str]) -> Iterable[str]:
    if before[-1] == "--backend":
        return _backends()
    return _assignments(_asked(before)) if before[-1] == "--option" else []


def _words(before: Sequence[str], command: argparse.ArgumentParser) -> Iterable[str]:
    if before == ["check"]:
        return _backends()
    choices = [a.choices or () for a in command._actions if not a.option_strings]
    return [str(c) for each in choices for c in each if c != "words"] if len(before) == 1 else []


def _asked(before: Sequence[str]) -> list[str]:
    """The backends that the words name; all of them if they name none."""
    named = [b for flag, b in itertools.pairwise(before) if flag == "--backend"]
    return named or ([before[1]] if before[0] == "check" and len(before) > 1 else _backends())


def _assignments(backends: Iterable[str]) -> Iterator[str]:
    """``tosa.spec=``, and with the value where there are few."""
    known = {b.name: b for b in _infos()}
    for name in backends:
        for option in known[name].options if name in known else ():
            yield from (f"{name}.{option.name}={value}" for value in _choices(option))


def _choices(option: OptionSpec) -> Sequence[Any]:
    return ("true", "false") if option.type is bool else option.choices or ("",)


def _backends() -> list[str]:
    return [info.name for info in _infos()]


def _infos() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegraphWarning)  # nobody reads them while typing
        return default_registry().backends()

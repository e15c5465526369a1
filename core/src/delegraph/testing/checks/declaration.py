"""What a plugin says of itself: lightly, and with options that mean what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ...discovery import IN_PROCESS
from ...errors import OptionError
from ...plugin import OptionSpec, accepts, expected
from .. import probe
from ..check import CheckFailed, CheckSkipped, Figures, check
from ..subject import Subject


@check
def light_declaration(subject: Subject) -> Figures:
    """Reading the plugin's declarations imports no torch, no numpy and nothing else that takes long."""
    distribution, _ = subject.registry.producer(subject.backend)
    if distribution == IN_PROCESS:
        raise CheckSkipped("the backend was registered in this process; there is no light module to read")
    heavy = _imported(subject.backend, distribution)
    if heavy:
        listed = "; ".join(f"{module} (imported at {where})" for module, where in heavy.items())
        advice = "the entry point names a module that imports delegraph.plugin and the standard library, no more"
        raise CheckFailed(f"reading the declarations of {distribution} imports {listed}", advice=advice)
    return {"heavy_modules": 0}


def _imported(backend: str, distribution: str) -> dict[str, str]:
    command = [sys.executable, probe.__file__, backend, json.dumps(sys.path)]
    environment = {**os.environ, "DELEGRAPH_PLUGINS": distribution}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckFailed(f"the declarations cannot be read in a fresh process: {last}", advice="run delegraph doctor")
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


_ADVICE = "declare each option with its type and choices, and raise delegraph.errors.OptionError for what does not fit"


@check
def options_validated(subject: Subject) -> Figures:
    """Every declared choice is taken; an unknown option, a wrong type or another value gives OptionError."""
    subject.partitioner()
    declared = subject.registry.spec(subject.backend).options
    _refused(subject, {"delegraph_no_such_option": 1}, "an unknown option")
    tried = 1
    for option in declared:
        for choice in option.choices:
            _taken(subject, option, choice)
        for value, what in _wrong(option):
            _refused(subject, {option.name: value}, what)
        for value in _odd(option):
            _survived(subject, option, value)
        tried += len(option.choices) + len(list(_wrong(option))) + len(_odd(option))
    return {"options": len(declared), "values": tried}


def _wrong(option: OptionSpec) -> Iterator[tuple[Any, str]]:
    """Values that the declaration excludes."""
    for value in ("text", 7, 2.5, True, [1], object()):
        if not accepts(option, value):
            in_type = isinstance(value, option.type) and (option.type is bool) == isinstance(value, bool)
            yield value, "a value outside its choices" if in_type else "a value of a wrong type"


def _odd(option: OptionSpec) -> tuple[Any, ...]:
    """Values that the declaration allows and that can still make no sense."""
    values = {
        str: ("", "no such value", "\0", "é" * 300),
        int: (-1, 0, 2**70),
        float: (-1.0, float("nan"), float("inf")),
        bool: (True, False),
    }
    return tuple(v for v in values[option.type] if accepts(option, v))


def _made(subject: Subject, values: dict[str, Any]) -> BaseException | None:
    try:
        subject.registry.get_partitioner(subject.backend, **{**subject.options, **values})
    except (Exception, SystemExit) as e:
        return e
    return None


def _refused(subject: Subject, values: dict[str, Any], what: str) -> None:
    error = _made(subject, values)
    if not isinstance(error, OptionError):
        end = "was accepted" if error is None else f"raised {type(error).__name__}: {error}"
        raise CheckFailed(f"{what}, {_shown(values)}, {end}; OptionError is wanted", advice=_ADVICE)


def _taken(subject: Subject, option: OptionSpec, choice: Any) -> None:
    error = _made(subject, {option.name: choice})
    if error is not None:
        text = f"option {option.name} is declared as {expected(option)}, but {choice!r} raised"
        raise CheckFailed(f"{text} {type(error).__name__}: {error}", advice=_ADVICE)


def _survived(subject: Subject, option: OptionSpec, value: Any) -> None:
    error = _made(subject, {option.name: value})
    if error is not None and not isinstance(error, OptionError):
        text = f"option {_shown({option.name: value})} raised {type(error).__name__}: {error}"
        raise CheckFailed(f"{text}; a value that makes no sense gives OptionError", advice=_ADVICE)


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v!r:.40}" for k, v in values.items())

"""Check that a plugin's declarations are light, and that its options are validated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from delegraph.errors import OptionError
from delegraph.plugin import IN_PROCESS, OptionSpec

from .. import import_watch
from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..failures import CheckFailed, CheckSkipped
from ..sweep import SAMPLES, raise_first
from ..trial import Fault, Kind

SLOW = 0.5
"""Seconds after which reading declarations is worth a warning."""


@check
def light_declaration(backend: BackendUnderTest) -> Figures:
    """Reading the plugin's declarations imports no torch, no numpy and nothing else
    that takes long.
    """
    distribution, _ = backend.registry.entry(backend.name).producer
    if distribution == IN_PROCESS:
        raise CheckSkipped(
            "the backend was registered in this process; there is no light module to"
            " read"
        )
    watched, printed = _read(backend.name, distribution)
    heavy = watched["heavy"]
    if heavy:
        listed = "; ".join(
            f"{module} (imported at {where})" for module, where in heavy.items()
        )
        advice = (
            "the entry point names a module that imports delegraph.plugin and the"
            " standard library, no more"
        )
        raise CheckFailed(
            f"reading the declarations of {distribution} imports {listed}",
            advice=advice,
        )
    if printed:
        backend.warnings.append(
            f"reading the declarations of {distribution} prints: {printed!r:.200}"
        )
    seconds = watched["seconds"]
    for _ in range(2):  # a machine that is busy is not the plugin's fault
        seconds = (
            seconds
            if seconds <= SLOW
            else min(seconds, _read(backend.name, distribution)[0]["seconds"])
        )
    if seconds > SLOW:
        text = (
            f"reading the declarations of {distribution} takes {seconds:.1f} s, which"
            " every command waits for"
        )
        backend.warnings.append(text)
    return {"heavy_modules": 0, "seconds": round(seconds, 3)}


def _read(backend: str, distribution: str) -> tuple[dict[str, Any], str]:
    """Return the imports that import_watch saw, and the output of the declarations."""
    command = [sys.executable, import_watch.__file__, backend, json.dumps(sys.path)]
    environment = {**os.environ, "DELEGRAPH_PLUGINS": distribution}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckFailed(
            f"the declarations cannot be read in a fresh process: {last}",
            advice="run delegraph doctor",
        )
    *printed, last = done.stdout.splitlines()
    return json.loads(last), "\n".join([*printed, done.stderr]).strip()


_ADVICE = (
    "declare each option with its type and choices, and raise"
    " delegraph.errors.OptionError for what does not fit"
)


@check
def options_validated(backend: BackendUnderTest) -> Figures:
    """Every declared choice is taken; an unknown option, a wrong type or another value
    gives OptionError.
    """
    backend.partitioner()
    declared = backend.registry.spec(backend.name).options
    _refused(backend, {"delegraph_no_such_option": 1}, "an unknown option")
    tried = 1
    for option in declared:
        for choice in option.choices:
            _taken(backend, option, choice)
        for value, what in _wrong(option):
            _refused(backend, {option.name: value}, what)
        for value in _odd(option):
            _survived(backend, option, value)
        tried += len(option.choices) + len(list(_wrong(option))) + len(_odd(option))
    return {"options": len(declared), "values": tried}


def _wrong(option: OptionSpec) -> Iterator[tuple[Any, str]]:
    """Yield values that the declaration excludes."""
    for value in ("text", 7, 2.5, True, [1], object()):
        if not option.accepts(value):
            in_type = isinstance(value, option.type) and (
                option.type is bool
            ) == isinstance(value, bool)
            yield (
                value,
                "a value outside its choices" if in_type else "a value of a wrong type",
            )


def _odd(option: OptionSpec) -> tuple[Any, ...]:
    """Return values of the declared type that are senseless for most options."""
    values = {
        str: ("", "no such value", "\0", "é" * 300),
        int: (-1, 0, 2**70),
        float: (-1.0, float("nan"), float("inf")),
        bool: (True, False),
        list: ([], [""], ["no such value"], ["\0", "é" * 300]),
    }
    return tuple(v for v in values[option.type] if option.accepts(v))


def _made(backend: BackendUnderTest, values: dict[str, Any]) -> BaseException | None:
    try:
        backend.registry.get_partitioner(backend.name, **{**backend.options, **values})
    except (Exception, SystemExit) as e:
        return e
    return None


def _refused(backend: BackendUnderTest, values: dict[str, Any], what: str) -> None:
    error = _made(backend, values)
    if not isinstance(error, OptionError):
        end = (
            "was accepted"
            if error is None
            else f"raised {type(error).__name__}: {error}"
        )
        raise CheckFailed(
            f"{what}, {_shown(values)}, {end}; OptionError is wanted", advice=_ADVICE
        )


def _taken(backend: BackendUnderTest, option: OptionSpec, choice: Any) -> None:
    error = _made(backend, {option.name: choice})
    if error is not None:
        text = (
            f"option {option.name} is declared as {option.values}, but {choice!r}"
            " raised"
        )
        raise CheckFailed(f"{text} {type(error).__name__}: {error}", advice=_ADVICE)


def _survived(backend: BackendUnderTest, option: OptionSpec, value: Any) -> None:
    error = _made(backend, {option.name: value})
    if error is not None and not isinstance(error, OptionError):
        text = (
            f"option {_shown({option.name: value})} raised {type(error).__name__}:"
            f" {error}"
        )
        raise CheckFailed(
            f"{text}; a value that makes no sense gives OptionError", advice=_ADVICE
        )


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v!r:.40}" for k, v in values.items())


@check
def options_run(backend: BackendUnderTest) -> Figures:
    """With every other value of every option the small programs compile, and compute
    what eager computes.

    A value for which the runtime raises NoRuntime, such as a target that this host has
    no device for, is only compiled.
    """
    tried = 0
    not_run = set[str]()
    # other checks are about the rest
    sound = {o.program for o in backend.rehearsal if not o.faults}
    for option in backend.registry.spec(backend.name).options:
        for value in _others(option, backend):
            if _made(backend, {option.name: value}) is not None:
                continue  # what options_validated is about
            other = replace(
                backend, options={**backend.options, option.name: value}, randoms=0
            )
            said = f"with the option {_shown({option.name: value})}: "
            found = [
                (o, f) for o in other.rehearsal if o.program in sound for f in o.faults
            ]
            not_run |= {
                f"{option.name}={value}" for _, f in found if f.kind is Kind.NO_RUNTIME
            }
            faults = [
                (o, Fault(f.kind, said + f.text))
                for o, f in found
                if f.kind is not Kind.NO_RUNTIME
            ]
            raise_first(faults, other, SAMPLES)
            tried += 1
    if not tried:
        raise CheckSkipped(
            "no option has choices; try another value with a contract class that has it"
            " in its options"
        )
    return {"values": tried} | ({"only_compiled": len(not_run)} if not_run else {})


def _others(option: OptionSpec, backend: BackendUnderTest) -> list[Any]:
    """Return the declared values other than the one that all other checks use."""
    values = (True, False) if option.type is bool else option.choices
    return [v for v in values if v != backend.options.get(option.name, option.default)]

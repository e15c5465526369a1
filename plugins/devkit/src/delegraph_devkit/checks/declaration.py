"""Check that a plugin's declarations import fast, and that it validates options."""

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
from ..sweep import SAMPLES, raise_first_fault
from ..trial import Fault, Kind

SLOW = 0.5
"""Seconds above which reading declarations gets a warning."""


@check
def light_declaration(backend: BackendUnderTest) -> Figures:
    """Reading the plugin's declarations imports neither torch, numpy nor another slow
    module.
    """
    distribution, _ = backend.registry.entry(backend.name).producer
    if distribution == IN_PROCESS:
        raise CheckSkipped(
            "the backend was registered in this process, so it has no light module"
        )
    watched, printed = _read(backend.name, distribution)
    heavy = watched["heavy"]
    if heavy:
        listed = "; ".join(
            f"{module} (imported at {where})" for module, where in heavy.items()
        )
        advice = (
            "the entry point names a module that imports only delegraph.plugin and the"
            " standard library"
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
    for _ in range(2):  # a busy machine is not the plugin's fault
        if seconds > SLOW:
            again, _ = _read(backend.name, distribution)
            seconds = min(seconds, again["seconds"])
    if seconds > SLOW:
        text = (
            f"reading the declarations of {distribution} takes {seconds:.1f} s, and"
            " every command waits for it"
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
            f"reading the declarations in a fresh process failed: {last}",
            advice="run delegraph doctor",
        )
    *printed, last = done.stdout.splitlines()
    return json.loads(last), "\n".join([*printed, done.stderr]).strip()


_ADVICE = (
    "declare each option with its type and choices, and raise"
    " delegraph.errors.OptionError for any other value"
)


@check
def options_validated(backend: BackendUnderTest) -> Figures:
    """Every declared choice works; an unknown option, a wrong type or another value
    raises OptionError.
    """
    backend.partitioner()
    declared = backend.registry.spec(backend.name).options
    _require_refused(backend, {"delegraph_no_such_option": 1}, "an unknown option")
    tried = 1
    for option in declared:
        for choice in option.choices:
            _require_accepted(backend, option, choice)
            tried += 1
        for value, fault in _wrong(option):
            _require_refused(backend, {option.name: value}, fault)
            tried += 1
        for value in _odd(option):
            _require_no_other_error(backend, option, value)
            tried += 1
    return {"options": len(declared), "values": tried}


def _wrong(option: OptionSpec) -> Iterator[tuple[Any, str]]:
    """Yield values that the declaration excludes, each with its fault."""
    for value in ("text", 7, 2.5, True, [1], object()):
        if option.accepts(value):
            continue
        # to Python, a bool is an int
        same_kind = isinstance(value, bool) == (option.type is bool)
        if same_kind and isinstance(value, option.type):
            yield value, "a value outside its choices"
        else:
            yield value, "a value of a wrong type"


def _odd(option: OptionSpec) -> tuple[Any, ...]:
    """Return values of the declared type that make no sense for most options."""
    values = {
        str: ("", "no such value", "\0", "é" * 300),
        int: (-1, 0, 2**70),
        float: (-1.0, float("nan"), float("inf")),
        bool: (True, False),
        list: ([], [""], ["no such value"], ["\0", "é" * 300]),
    }
    return tuple(v for v in values[option.type] if option.accepts(v))


def _error_with(
    backend: BackendUnderTest, values: dict[str, Any]
) -> BaseException | None:
    """Return the error of making a partitioner with these option values."""
    try:
        backend.registry.get_partitioner(backend.name, **{**backend.options, **values})
    except (Exception, SystemExit) as e:
        return e
    return None


def _require_refused(
    backend: BackendUnderTest, values: dict[str, Any], fault: str
) -> None:
    error = _error_with(backend, values)
    if isinstance(error, OptionError):
        return
    end = "was accepted"
    if error is not None:
        end = f"raised {type(error).__name__}: {error}"
    text = (
        f"the option {_shown(values)} ({fault}) {end}; the backend must raise"
        " OptionError for it"
    )
    raise CheckFailed(text, advice=_ADVICE)


def _require_accepted(
    backend: BackendUnderTest, option: OptionSpec, choice: Any
) -> None:
    error = _error_with(backend, {option.name: choice})
    if error is not None:
        text = (
            f"option {option.name} is declared as {option.values}, but {choice!r}"
            f" raised {type(error).__name__}: {error}"
        )
        raise CheckFailed(text, advice=_ADVICE)


def _require_no_other_error(
    backend: BackendUnderTest, option: OptionSpec, value: Any
) -> None:
    error = _error_with(backend, {option.name: value})
    if error is not None and not isinstance(error, OptionError):
        text = (
            f"option {_shown({option.name: value})} raised {type(error).__name__}:"
            f" {error}; a value that makes no sense must raise OptionError"
        )
        raise CheckFailed(text, advice=_ADVICE)


def _shown(values: dict[str, Any]) -> str:
    return ", ".join(f"{k}={v!r:.40}" for k, v in values.items())


@check
def options_run(backend: BackendUnderTest) -> Figures:
    """With every other value of every option, the small programs compile and compute
    the same as eager.

    If the runtime raises NoRuntime for a value, programs are only compiled. An example
    is a target without a device on this host.
    """
    figures = {"values": 0}
    # other checks report programs that are faulty without options
    sound = {o.program for o in backend.rehearsal if not o.faults}
    for option in backend.registry.spec(backend.name).options:
        for value in _others(option, backend):
            if _error_with(backend, {option.name: value}) is not None:
                continue  # options_validated reports it
            figures["values"] += 1
            if not _run_with(backend, option, value, sound):
                figures["only_compiled"] = figures.get("only_compiled", 0) + 1
    if not figures["values"]:
        raise CheckSkipped(
            "no option has choices; to check another value, write a contract class"
            " with this value in its options"
        )
    return figures


def _run_with(
    backend: BackendUnderTest, option: OptionSpec, value: Any, sound: set[str]
) -> bool:
    """Try the ``sound`` samples with another value of an option, and raise the first
    fault; return whether this host could run all of them.
    """
    other = replace(backend, options={**backend.options, option.name: value}, randoms=0)
    intro = f"with the option {_shown({option.name: value})}: "
    could_run = True
    faults = []
    for outcome in other.rehearsal:
        if outcome.program not in sound:
            continue
        for fault in outcome.faults:
            if fault.kind is Kind.NO_RUNTIME:
                could_run = False
            else:
                faults.append((outcome, Fault(fault.kind, intro + fault.text)))
    raise_first_fault(faults, other, SAMPLES)
    return could_run


def _others(option: OptionSpec, backend: BackendUnderTest) -> list[Any]:
    """Return the declared values that the other checks do not use."""
    values = (True, False) if option.type is bool else option.choices
    return [v for v in values if v != backend.options.get(option.name, option.default)]

"""The backend that is checked: how to get it, here and in another process, and what it does with the samples."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from delegraph.discovery.entry_points import IN_PROCESS
from delegraph.discovery.registry import Registry, default_registry
from delegraph.errors import NoRuntime
from delegraph.partitioner import Partitioner

from . import sweep
from .lowering_attempt import Attempt, Phase, attempt
from .outcomes import CheckSkipped
from .programs import PROGRAMS, Example, Exported, Program, given
from .random_programs import random_program
from .snapshot import account, differences
from .subprocesses import Answer, worker
from .trial import FATAL, Outcome

if TYPE_CHECKING:
    from delegraph.runtime import BackendRuntime

TOLERANCE = 1e-4
"""Largest accepted difference from eager, relative to the largest value of an output."""
GATE, QUICK_GATE = 600, 100
"""How many operators and random programs are tried besides the small ones that every backend is tried on."""
Register = Callable[[Registry], Any]
Place = tuple[str, str, str]
"""Module, file and qualified name of a function that another process can import."""


@dataclass
class Subject:
    """A backend with its options, and how strictly and how long to check it.

    ``gate`` operators and random programs are tried, always the same; then others for ``seconds``. ``operators`` names
    those that are tried instead, with all their samples. ``tolerance`` is relative to the largest value of an output.
    ``example`` returns (module, inputs) that the backend takes at least in part; a backend that takes none of the usual
    small programs needs one. ``register`` adds a backend that is not installed to a registry; as a function of a module
    it serves other processes too.
    """

    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = TOLERANCE
    example: Callable[[], Example] | None = None
    register: Register | None = None
    gate: int = GATE
    seconds: float = 0.0
    operators: tuple[str, ...] = ()
    randoms: int = 10
    """How many random programs are among the samples."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    """The variables that other processes get: those of now, before the backend did anything."""
    warnings: list[str] = field(default_factory=list, repr=False)
    """What checks found that is no failure."""

    @cached_property
    def registry(self) -> Registry:
        """Where the backend is found: what is installed, or a registry with it alone."""
        if self.register is None:
            return default_registry()
        made = Registry(discover=False)
        self.register(made)
        return made

    def partitioner(self) -> Partitioner:
        """A new partitioner with the options."""
        return self.registry.get_partitioner(self.backend, **self.options)

    @cached_property
    def runtime(self) -> type[BackendRuntime] | None:
        """What runs its blobs here, if there is something."""
        try:
            return self.registry.runtime_for(self.backend)
        except NoRuntime:
            return None

    def needs_runtime(self) -> type[BackendRuntime]:
        """The runtime; skips the check, with the reason, if there is none."""
        if self.runtime is None:
            raise CheckSkipped(f"backend {self.backend!r} has no runtime on this host, so nothing can be run")
        return self.runtime

    # --- what is tried

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The backend's example, the common small programs and some random ones."""
        own = (given(self.example),) if self.example is not None else ()
        return (*own, *PROGRAMS, *map(random_program, range(self.randoms)))

    def attempt(self, program: Program, made: Exported | None) -> Attempt | None:
        """Lower a program for this backend; None if it could not be exported."""
        if made is None:
            return None
        return attempt(program, made, self.partitioner(), self.registry, self.runtime is None)

    @cached_property
    def samples(self) -> list[Attempt]:
        """The programs, each lowered once, as far as torch exports them, with what that changed in the caller's.

        Those that ended another process are left out: accepted_compiles is about them.
        """
        found = []
        fatal = {o.program for o in self.rehearsal if any(f.kind in FATAL for f in o.faults)}
        for program in (p for p in self.programs if p.name not in fatal):
            before = account(program.kept())
            one = self.attempt(program, program.kept())
            if one is not None:
                one.changed = differences(before, account(program.kept()))
                found.append(one)
        return found

    @property
    def lowered(self) -> list[Attempt]:
        """Those samples of which the backend compiled a part; skips the check if there are none."""
        found = [a for a in self.samples if a.phase is Phase.DONE and a.lowered is not None and a.lowered.delegates]
        if not found:
            raise CheckSkipped("no part of the sample programs was compiled; see accepted_compiles, or give an example")
        return found

    @cached_property
    def rehearsal(self) -> list[Outcome]:
        """What came of the samples in another process."""
        return sweep.run(self, "samples")

    @cached_property
    def sweep(self) -> sweep.Sweep:
        """What came of all programs, or of the operators that were asked for."""
        rehearsed = [] if self.operators else self.rehearsal
        return sweep.Sweep([*rehearsed, *sweep.run(self, "gate"), *(sweep.run(self, "more") if self.seconds else ())])

    # --- in another process

    def elsewhere(
        self, function: str, *args: Any, hash_seed: int = 1, seconds: float = 120.0, prepare: str | None = None
    ) -> Answer:
        """Run ``"module:name"`` with this subject in a fresh process; skips the check where that cannot be.

        See ``Worker.run``.
        """
        if not hasattr(os, "fork"):
            raise CheckSkipped("this platform cannot fork processes")
        return worker(hash_seed).run(function, self._recipe(), *args, seconds=seconds, prepare=prepare)

    def _recipe(self) -> Recipe:
        if self.register is None and self.registry.producer(self.backend)[0] == IN_PROCESS:
            raise CheckSkipped(f"backend {self.backend!r} exists in this process only")
        given = {"register": self.register, "example": self.example}
        functions = {n: _portable(f) for n, f in given.items() if f is not None}
        plain = {name: getattr(self, name) for name in ("tolerance", "gate", "seconds", "operators", "randoms")}
        return Recipe(self.backend, dict(self.options), plain, functions, dict(self.environment))


def _portable(function: Any) -> Place | bytes:
    """A function by the place where it is written; any other callable object pickled."""
    if not inspect.isfunction(function):
        return _pickled(function)
    name, module = getattr(function, "__qualname__", "<unnamed>"), getattr(function, "__module__", "")
    try:
        file = os.path.abspath(inspect.getfile(function))
    except TypeError:
        file = ""
    if "<" in name or not os.path.exists(file):
        raise CheckSkipped(f"{name} is no function of a module, so another process cannot import it")
    return module, file, name


def _pickled(function: Any) -> bytes:
    try:
        return pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise CheckSkipped(f"{function!r:.80} cannot be sent to another process: {e}") from e


@dataclass(frozen=True)
class Recipe:
    """A subject as it travels to another process, with the path and the variables of this one."""

    backend: str
    options: dict[str, Any]
    fields: dict[str, Any]
    functions: dict[str, Place | bytes]
    environment: dict[str, str]
    path: list[str] = field(default_factory=lambda: list(sys.path))

    def subject(self) -> Subject:
        """The subject again; imports the modules that its functions are in."""
        sys.path[:] = self.path
        os.environ.clear()
        os.environ.update(self.environment)
        functions: dict[str, Any] = {
            n: _imported(f) if isinstance(f, tuple) else pickle.loads(f) for n, f in self.functions.items()
        }
        return Subject(self.backend, self.options, **self.fields, **functions)


def _imported(place: Place) -> Any:
    module, file, name = place
    found = _by_name(module, file) or _by_file(module, file)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _by_name(module: str, file: str) -> Any:
    try:
        found = importlib.import_module(module)
    except ImportError:
        return None
    return found if os.path.abspath(getattr(found, "__file__", None) or "") == file else None


def _by_file(module: str, file: str) -> Any:
    """A test module, which pytest imports without its being on the path."""
    spec = importlib.util.spec_from_file_location(module, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported")
    made = importlib.util.module_from_spec(spec)
    sys.modules[module] = made
    spec.loader.exec_module(made)
    return made

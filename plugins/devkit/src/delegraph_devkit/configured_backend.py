"""A backend with its options: how to get it, here and in another process, and to lower
a program for it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph import Registry, default_registry
from delegraph.errors import DelegraphError, InputError, NoRuntime, Unsupported
from delegraph.partitioner import Partitioner
from delegraph.plugin import IN_PROCESS

from .failures import CheckFailed, CheckSkipped
from .lowering_attempt import LoweringAttempt, attempt_lowering, quiet
from .programs import PROGRAMS, Example, Program, given
from .random_programs import random_program
from .recipe import Recipe, portable
from .subprocesses import Answer, Report, find_by_name, fork_server
from .warm_up import RANDOM_PROGRAMS

if TYPE_CHECKING:
    from delegraph import LoweredProgram
    from delegraph.runtime import BackendRuntime

TOLERANCE = 1e-4
"""Largest accepted difference from eager, relative to the largest value of an output.
"""
DEVICE = "executorch"
"""The runtime in which device halves run."""
GATE = 600
QUICK_GATE = 100
"""How many operators and random programs are tried besides the small ones that every
backend is tried on.
"""
Register = Callable[[Registry], Any]
_FIELDS = (
    "name",
    "options",
    "tolerance",
    "gate",
    "seconds",
    "operators",
    "randoms",
    "device",
    "may_refuse",
)
"""The fields that another process gets unchanged."""


@dataclass
class ConfiguredBackend:
    """A backend with its options, and how strictly and how long to check it.

    ``gate`` operators and random programs are tried, always the same; then others for
    ``seconds``. ``operators`` names those that are tried instead, with all their
    samples and on special values. ``tolerance`` is relative to the largest value of an
    output. ``example`` returns (module, inputs) that the backend takes at least in
    part; a backend that takes none of the usual small programs needs one. ``register``
    adds a backend that is not installed to a registry; as a function of a module it
    serves other processes too. With ``device``, programs run in the backend's device
    half, not in its host runtime. Its compiler ``may_refuse`` partitions that its
    support check took; otherwise that is a failure, since users see it only after they
    waited for the compiler, and lose the whole partition. ``budget``: seconds for all
    checks, which then try as many programs as there is time for, in the same order; 0
    for no limit.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = TOLERANCE
    example: Callable[[], Example] | None = None
    register: Register | None = None
    gate: int = GATE
    seconds: float = 0.0
    operators: tuple[str, ...] = ()
    randoms: int = RANDOM_PROGRAMS
    """How many random programs are among the samples."""
    device: bool = False
    may_refuse: bool = False
    budget: float = 0.0
    environment: Mapping[str, str] = field(
        default_factory=lambda: dict(os.environ), repr=False
    )
    """The environment variables that other processes get, as they were before the
    backend did anything.
    """
    warnings: list[str] = field(default_factory=list, repr=False)
    """What checks noticed and do not fail for."""
    tell: Callable[[str], None] = field(default=lambda text: None, repr=False)
    """Is called with how far a long check has come."""
    started: float = field(default_factory=time.monotonic, repr=False)

    def share(self, part: float) -> float | None:
        """Seconds that a check may take on its programs: a part of what is left of
        ``budget``; None without one.
        """
        return (
            part * max(0.0, self.started + self.budget - time.monotonic())
            if self.budget
            else None
        )

    @cached_property
    def registry(self) -> Registry:
        """Where the backend is found: what is installed, or a registry with it alone."""
        if self.register is None:
            return default_registry()
        registry = Registry(discover=False)
        self.register(registry)
        return registry

    def partitioner(self) -> Partitioner:
        """A new partitioner with the options."""
        return self.registry.get_partitioner(self.name, **self.options)

    @cached_property
    def runtime(self) -> type[BackendRuntime] | None:
        """What runs its blobs on this host; None if there is no such runtime."""
        try:
            return self.registry.runtime_for(self.name)
        except NoRuntime:
            return None

    def needs_runtime(self) -> type[BackendRuntime]:
        """The runtime; skips the check, with the reason, if there is none."""
        if self.runtime is None:
            raise CheckSkipped(
                f"backend {self.name!r} has no runtime on this host, so nothing can"
                " be run"
            )
        return self.runtime

    @property
    def where(self) -> str | None:
        """What runs whole programs: the runtime of device halves, or None for the host,
        where delegates run alone.
        """
        return DEVICE if self.device else None

    def needs_device(self) -> None:
        """Skip the check, with the reason, where no device half can be built or run;
        fail it if the build does.
        """
        if self.device:
            skipped, failed = self._device
            if skipped:
                raise CheckSkipped(skipped)
            if failed:
                raise CheckFailed(f"no device half can be loaded: {failed}")

    @cached_property
    def _device(self) -> tuple[str, str]:
        answer = self.run_apart(find_device)
        # a crash is found again, with its program, by whoever tries the programs
        return answer.result or ("", "")

    @contextmanager
    def saved(self, lowered: LoweredProgram) -> Iterator[Path]:
        """A file of the program for the device's runtime, which exists within the
        context. Raises Unsupported.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"program{self.registry.suffix_for(DEVICE)}")
            lowered.save(path)
            yield path

    # --- what is tried

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The backend's example, the common small programs and some random ones."""
        own = (given(self.example),) if self.example is not None else ()
        return (*own, *PROGRAMS, *map(random_program, range(self.randoms)))

    def attempt(
        self, program: Program, dynamic: bool = False
    ) -> LoweringAttempt | None:
        """Lower a program for this backend; None if torch cannot export it."""
        exported = program.exported_dynamic if dynamic else program.exported
        if exported is None:
            return None
        eager = self.runtime is None
        return attempt_lowering(
            program, exported, self.partitioner, self.registry, eager, self.may_refuse
        )

    # --- in another process

    def run_elsewhere(
        self,
        function: Callable[..., Any],
        *args: Any,
        hash_seed: int = 1,
        seconds: float = 120.0,
        prepare: str | None = None,
    ) -> Answer:
        """Call ``function(backend, *args, report)``, a function of a module, with this
        backend in a fresh process.

        Skips the check where that cannot be. See ``ForkServer.run``.
        """
        if not hasattr(os, "fork"):
            raise CheckSkipped("this platform cannot fork processes")
        named = f"{function.__module__}:{function.__qualname__}"
        job = (f"{__name__}:{_call.__name__}", self._recipe(), named, *args)
        return fork_server(hash_seed).run(*job, seconds=seconds, prepare=prepare)

    def run_apart(self, function: Callable[..., Any], *args: Any) -> Answer:
        """The same, but in this process, without protection, if the backend exists
        nowhere else.
        """
        try:
            return self.run_elsewhere(function, *args)
        except CheckSkipped:
            return Answer(function(self, *args, lambda text: None))

    def _recipe(self) -> Recipe:
        if self.register is None and self.registry.producer(self.name)[0] == IN_PROCESS:
            raise CheckSkipped(f"backend {self.name!r} exists in this process only")
        functions = {"register": self.register, "example": self.example}
        fields = {name: getattr(self, name) for name in _FIELDS} | {
            "options": dict(self.options)
        }
        travelling = {
            name: portable(f) for name, f in functions.items() if f is not None
        }
        return Recipe(fields, travelling, dict(self.environment))


def _call(recipe: Recipe, function: str, *args: Any) -> Any:
    """Run in another process: make the backend anew, and call ``function`` with it."""
    return find_by_name(function)(ConfiguredBackend(**recipe.arguments()), *args)


def find_device(backend: ConfiguredBackend, report: Report) -> tuple[str, str]:
    """Run in another process: why no device can run here, and what is wrong with its
    half; empty if nothing is.
    """
    runtime = backend.needs_runtime()
    for program in backend.programs:
        report(program.name)
        one = backend.attempt(program)
        if one is None or one.lowered is None or not one.lowered.delegates:
            continue
        try:
            with quiet():
                one.lowered.verify(*one.inputs, runtime=DEVICE)
        except NoRuntime as e:
            return (f"{e.message}; {e.hint}" if e.hint else e.message), ""
        except Unsupported:  # what is left to the host has no kernel there
            continue
        except InputError as e:
            named = f"{runtime.__name__} names none as device_half, and {e.message}"
            return "", named if runtime.device_half is None else ""
        except DelegraphError as e:
            return "", e.message
        break
    return "", ""

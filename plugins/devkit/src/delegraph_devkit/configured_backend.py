"""Represent a backend with its options, in this process and in others."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from delegraph import Registry, default_registry
from delegraph.errors import DelegraphError, InputError, NoRuntime, Unsupported
from delegraph.partitioner import Partitioner
from delegraph.plugin import IN_PROCESS

from .failures import CheckFailed, CheckSkipped
from .lowering_attempt import LoweringAttempt, attempt_lowering, quiet
from .programs import PROGRAMS, Example, Program, own_example
from .random_programs import random_program
from .recipe import Recipe, portable
from .subprocesses import Answer, Report, find_by_name, fork_server
from .warm_up import RANDOM_PROGRAMS

if TYPE_CHECKING:
    from delegraph import LoweredProgram
    from delegraph.runtime import BackendRuntime

TOLERANCE = 1e-4
"""Largest accepted error, relative to the largest value of an output."""
DEVICE = "executorch"
"""The runtime in which device halves run."""
GATE = 600
"""The number of operators and random programs that are tried with the small programs.
"""
QUICK_GATE = 100
"""The same number for ``--quick``."""
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
"""The fields that other processes get unchanged."""


@dataclass
class ConfiguredBackend:
    """A backend with its options, and the settings of its checks.

    ``gate`` is how many operators and random programs are tried first; each run tries
    the same ones. Further programs are tried for ``seconds``. ``operators`` names
    operators to try instead, with all their samples and special values. ``tolerance``
    is relative to the largest value of an output.

    ``example`` returns (module, inputs) that the backend accepts at least in part. A
    backend that accepts none of the small programs needs an example. ``register`` adds
    a backend that is not installed to a registry. Checks in other processes need a
    function that they can import.

    With ``device``, programs run in the backend's device half instead of its host
    runtime. ``may_refuse``: the compiler may refuse partitions that the support check
    accepted. By default, such a refusal is a failure: users see it only after
    compiling, and lose the whole partition. ``budget`` is the number of seconds for all
    checks, which then try fewer programs; 0 means no limit.
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
    """The number of random programs among the samples."""
    device: bool = False
    may_refuse: bool = False
    budget: float = 0.0
    environment: Mapping[str, str] = field(
        default_factory=lambda: dict(os.environ), repr=False
    )
    """The environment variables of other processes, as they were at the start."""
    warnings: list[str] = field(default_factory=list, repr=False)
    """Problems that checks noticed but do not fail for."""
    tell: Callable[[str], None] = field(default=lambda text: None, repr=False)
    """A function that gets the progress of long checks."""
    started: float = field(default_factory=time.monotonic, repr=False)

    def share(self, part: float) -> float | None:
        """Return a part of the seconds that remain of ``budget``; None without one."""
        if not self.budget:
            return None
        left = self.started + self.budget - time.monotonic()
        return part * max(0.0, left)

    @cached_property
    def registry(self) -> Registry:
        """Return the registry of installed plugins, or one with this backend alone."""
        if self.register is None:
            return default_registry()
        registry = Registry(discover=False)
        self.register(registry)
        return registry

    def partitioner(self) -> Partitioner:
        """Return a new partitioner with the options."""
        return self.registry.get_partitioner(self.name, **self.options)

    @cached_property
    def runtime(self) -> type[BackendRuntime] | None:
        """Return the runtime for the backend's blobs on this host, or None."""
        try:
            return self.registry.runtime_for(self.name)
        except NoRuntime:
            return None

    def needs_runtime(self) -> type[BackendRuntime]:
        """Return the runtime; skip the check, with the reason, if there is none."""
        if self.runtime is None:
            raise CheckSkipped(
                f"backend {self.name!r} has no runtime on this host, so no delegate"
                " can run"
            )
        return self.runtime

    @property
    def where(self) -> str | None:
        """Return the runtime of whole programs: that of device halves, or None for the
        host.
        """
        return DEVICE if self.device else None

    def needs_device(self) -> None:
        """Skip the check, with the reason, if no device half can be built or run.

        A failing build fails the check.
        """
        if self.device:
            found = self._device
            if found.why_absent:
                raise CheckSkipped(found.why_absent)
            if found.fault:
                raise CheckFailed(f"the device half cannot be loaded: {found.fault}")

    @cached_property
    def _device(self) -> DeviceSearch:
        answer = self.run_apart(find_device)
        # the checks find a crash again, and report its program
        return answer.result or DeviceSearch()

    @contextmanager
    def saved(self, lowered: LoweredProgram) -> Iterator[Path]:
        """Yield a temporary file of the program for the device's runtime.

        Raises Unsupported.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"program{self.registry.suffix_for(DEVICE)}")
            lowered.save(path)
            yield path

    # --- programs

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """Return the backend's example, the common small programs and some random ones."""
        own = (own_example(self.example),) if self.example is not None else ()
        return (*own, *PROGRAMS, *map(random_program, range(self.randoms)))

    def attempt(
        self, program: Program, dynamic: bool = False
    ) -> LoweringAttempt | None:
        """Lower a program for this backend; return None if torch cannot export it."""
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
        """Call ``function(backend, *args, report)`` in a fresh process.

        The process must be able to import ``function``. Skips the check if that is
        impossible. ``ForkServer.run`` describes the other arguments.
        """
        if not hasattr(os, "fork"):
            raise CheckSkipped("this platform cannot fork processes")
        named = f"{function.__module__}:{function.__qualname__}"
        job = (f"{__name__}:{_call.__name__}", self._recipe(), named, *args)
        return fork_server(hash_seed).run(*job, seconds=seconds, prepare=prepare)

    def run_apart(self, function: Callable[..., Any], *args: Any) -> Answer:
        """Call the function elsewhere, or in this process if the backend exists only
        here.

        A crash in this process is fatal.
        """
        try:
            return self.run_elsewhere(function, *args)
        except CheckSkipped:
            return Answer(function(self, *args, lambda text: None))

    def _recipe(self) -> Recipe:
        """Describe this backend for another process; skip the check if impossible."""
        if (
            self.register is None
            and self.registry.entry(self.name).producer[0] == IN_PROCESS
        ):
            raise CheckSkipped(f"backend {self.name!r} exists in this process only")
        functions = {"register": self.register, "example": self.example}
        sent = {name: portable(f) for name, f in functions.items() if f is not None}
        fields = {name: getattr(self, name) for name in _FIELDS}
        fields["options"] = dict(self.options)
        return Recipe(fields, sent, dict(self.environment))


def _call(recipe: Recipe, function: str, *args: Any) -> Any:
    """Call ``function`` with the backend of a recipe. Runs in another process."""
    return find_by_name(function)(ConfiguredBackend(**recipe.arguments()), *args)


class DeviceSearch(NamedTuple):
    """The reason why no device can run here, and the fault of the device half.

    Each is "" if there is none.
    """

    why_absent: str = ""
    fault: str = ""


def find_device(backend: ConfiguredBackend, report: Report) -> DeviceSearch:
    """Run samples on the device until one runs or fails. Runs in another process."""
    runtime = backend.needs_runtime()
    for program in backend.programs:
        report(program.name)
        attempt = backend.attempt(program)
        if attempt is None or attempt.lowered is None or not attempt.lowered.delegates:
            continue
        try:
            with quiet():
                attempt.lowered.verify(*attempt.inputs, runtime=DEVICE)
        except NoRuntime as e:
            why = f"{e.message}; {e.hint}" if e.hint else e.message
            return DeviceSearch(why_absent=why)
        except Unsupported:  # the device's runtime lacks a kernel for a host operator
            continue
        except InputError as e:
            if runtime.device_half is not None:
                return DeviceSearch()
            return DeviceSearch(
                fault=f"{runtime.__name__} has no device_half, and {e.message}"
            )
        except DelegraphError as e:
            return DeviceSearch(fault=e.message)
        break
    return DeviceSearch()

"""Keep the outcomes of a backend's programs, so that all checks share one trial."""

from __future__ import annotations

import time
from functools import cached_property

from . import sweep
from .configured_backend import ConfiguredBackend
from .failures import CheckSkipped
from .lowering_attempt import LoweringAttempt, Phase
from .snapshot import differences, take_snapshot
from .trial import Outcome


class BackendUnderTest(ConfiguredBackend):
    """A configured backend, with the outcomes that its checks share."""

    @cached_property
    def rehearsal(self) -> list[Outcome]:
        """Return the outcomes of the samples, tried first in another process."""
        return sweep.run(self, sweep.SAMPLES, within=self.share(0.25))

    @property
    def fatal(self) -> set[str]:
        """Return the names of the samples that ended their process."""
        return {o.program for o in self.rehearsal if o.fatal}

    @cached_property
    def samples(self) -> list[LoweringAttempt]:
        """Lower each program once, and record changes of the caller's program.

        Programs that torch cannot export are left out. So are programs that ended the
        other process: accepted_compiles reports them.
        """
        attempts: list[LoweringAttempt] = []
        within = self.share(0.25)
        start = time.monotonic()
        names = {program.name for program in self.programs}
        if self.budget:
            names = {outcome.program for outcome in self.rehearsal}
        for program in self.programs:
            if program.name not in names or program.name in self.fatal:
                continue
            if within is not None and attempts and time.monotonic() > start + within:
                break
            before = take_snapshot(program.exported)
            attempt = self.attempt(program)
            if attempt is not None:
                attempt.changed = differences(before, take_snapshot(program.exported))
                attempts.append(attempt)
        return attempts

    def left_out(self, times: int) -> set[str]:
        """Return the samples that another process skips: fatal ones, and those that no
        time remains for.

        ``times``: how often the process lowers each sample.
        """
        within = self.share(0.3)
        if within is None:
            return self.fatal
        left_out = {p.name for p in self.programs}
        for attempt in self.samples:
            within -= times * attempt.seconds
            if within > 0 or len(left_out) == len(self.programs):  # one at least
                left_out.discard(attempt.program.name)
        return left_out | self.fatal

    @property
    def lowered(self) -> list[LoweringAttempt]:
        """Return the samples that the backend compiled in part; skip the check if there
        are none.
        """
        attempts = [
            a
            for a in self.samples
            if a.phase is Phase.DONE and a.lowered is not None and a.lowered.delegates
        ]
        if not attempts:
            raise CheckSkipped(
                "the backend compiled no part of the sample programs; see"
                " accepted_compiles, or give --example"
            )
        return attempts

    @cached_property
    def sweep(self) -> sweep.Sweep:
        """Return the outcomes of all programs, or of the programs of ``operators``."""
        rehearsed = [] if self.operators else self.rehearsal
        gate = sweep.run(self, sweep.GATE, within=self.share(0.4))
        if self.operators or not self.seconds:
            return sweep.Sweep([*rehearsed, *gate])

        more = sweep.run(self, sweep.MORE, self.seconds)
        return sweep.Sweep([*rehearsed, *gate, *more])

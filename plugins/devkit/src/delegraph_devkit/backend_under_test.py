"""The backend that is checked, with the outcomes of its programs: each is tried once,
for all checks.
"""

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
    """A backend with its options, and how strictly and how long to check it; see
    ``ConfiguredBackend``.
    """

    @cached_property
    def rehearsal(self) -> list[Outcome]:
        """The outcomes of the samples, which are tried in another process first."""
        return sweep.run(self, sweep.SAMPLES, within=self.share(0.25))

    @property
    def fatal(self) -> set[str]:
        """The names of the samples that ended the process that tried them."""
        return {o.program for o in self.rehearsal if o.fatal}

    @cached_property
    def samples(self) -> list[LoweringAttempt]:
        """The programs that torch can export, each lowered once, with what that changed
        in the caller's program.

        Programs that ended the other process are left out: accepted_compiles reports
        them.
        """
        attempts: list[LoweringAttempt] = []
        within = self.share(0.25)
        start = time.monotonic()
        tried = (
            {o.program for o in self.rehearsal}
            if self.budget
            else {p.name for p in self.programs}
        )
        for program in (p for p in self.programs if p.name in tried - self.fatal):
            if within is not None and attempts and time.monotonic() > start + within:
                break
            before = take_snapshot(program.exported)
            one = self.attempt(program)
            if one is not None:
                one.changed = differences(before, take_snapshot(program.exported))
                attempts.append(one)
        return attempts

    def left_out(self, times: int) -> set[str]:
        """The samples that another process does not lower: fatal ones, and those that
        there is no time for.

        ``times``: how often each is lowered there.
        """
        within = self.share(0.3)
        if within is None:
            return self.fatal
        left_out = {p.name for p in self.programs}
        for one in self.samples:
            within -= times * one.seconds
            if within > 0 or len(left_out) == len(self.programs):  # one at least
                left_out.discard(one.program.name)
        return left_out | self.fatal

    @property
    def lowered(self) -> list[LoweringAttempt]:
        """Those samples of which the backend compiled a part; skips the check if there
        are none.
        """
        attempts = [
            a
            for a in self.samples
            if a.phase is Phase.DONE and a.lowered is not None and a.lowered.delegates
        ]
        if not attempts:
            raise CheckSkipped(
                "no part of the sample programs was compiled; see accepted_compiles, or"
                " give --example"
            )
        return attempts

    @cached_property
    def sweep(self) -> sweep.Sweep:
        """The outcomes of all programs, or of the programs of the operators that were
        asked for.
        """
        rehearsed = [] if self.operators else self.rehearsal
        gate = sweep.run(self, sweep.GATE, within=self.share(0.4))
        more = (
            sweep.run(self, sweep.MORE, self.seconds)
            if self.seconds and not self.operators
            else []
        )
        return sweep.Sweep([*rehearsed, *gate, *more])

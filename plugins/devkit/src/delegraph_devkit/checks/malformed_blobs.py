"""Check that damaged blobs raise errors of delegraph, without a crash or a hang."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from delegraph.delegates import LoweredBackendModule
from delegraph.errors import DelegraphError

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..configured_backend import ConfiguredBackend
from ..failures import CheckFailed
from ..lowering_attempt import LoweringAttempt, quiet
from ..subprocesses import Report

COPIES = 800
"""The least number of damaged copies of a blob; others follow while time remains."""
FLIPS = 4000
"""Damaged copies with changed bytes, per blob."""
STEP_SECONDS = 3.0
"""CPU time within which one damaged copy must be loaded and run."""
_LARGEST = 4096
"""Blobs up to this many bytes are cut at every place."""
_SHORTEST = 64
"""The number of shortest truncations, which are tried before all others."""
_BLOBS = 3
"""The number of programs whose smallest blob is damaged."""
_ENOUGH = 20
"""The check ends after this many wrong outcomes."""
_ADVICE = (
    "check every size, offset and count against the blob before using it, and raise"
    " delegraph.errors.FormatError"
)


@check
def damaged_blob(backend: BackendUnderTest) -> Figures:
    """Truncated and changed blobs raise an error of delegraph.errors, or give a delegate
    that works.

    For a backend that declares ``checksum=False``, blobs are only truncated, and named
    data removed.
    """
    backend.needs_runtime()
    smallest = _smallest(backend.lowered)
    names = [attempt.program.name for attempt in smallest]
    within = backend.share(0.5)
    answer = backend.run_elsewhere(
        try_malformed_blobs, names, backend.seconds / 5, within
    )
    programs = {attempt.program.name: attempt.program for attempt in smallest}
    if answer.failure:
        name, _, mutation = answer.progress.partition(": ")
        raise CheckFailed(
            f"loading {mutation} {answer.failure}", programs.get(name), _ADVICE
        )
    figures, wrong = answer.result
    if wrong:
        first = wrong[0]
        more = [f"{w.program}: {w.text}" for w in wrong[1:]]
        raise CheckFailed(first.text, programs.get(first.program), _ADVICE, more)
    counted: Figures = figures
    return counted


def _smallest(lowered: list[LoweringAttempt]) -> list[LoweringAttempt]:
    """Return the programs with the smallest blobs.

    Small blobs consist of structure rather than of weights.
    """

    def size(attempt: LoweringAttempt) -> int:
        assert attempt.lowered is not None
        return min(len(d.processed_bytes) for d in attempt.lowered.delegates)

    compiled = [attempt for attempt in lowered if attempt.lowered]
    return sorted(compiled, key=size)[:_BLOBS]


@dataclass(frozen=True)
class Wrong:
    """A damaged copy with a wrong outcome."""

    program: str
    text: str


def try_malformed_blobs(
    backend: ConfiguredBackend,
    names: list[str],
    seconds: float,
    within: float | None,
    report: Report,
) -> tuple[dict[str, int], list[Wrong]]:
    """Try damaged copies of the programs' smallest blobs. Runs in another process.

    Returns counts of outcomes, and the wrong ones.
    """
    counts = dict.fromkeys(("blobs", "truncations", "changed", "refused", "worked"), 0)
    wrong: list[Wrong] = []
    chosen = [p for p in backend.programs if p.name in names]
    for program in chosen:
        attempt = backend.attempt(program)
        if attempt is None or attempt.lowered is None:
            continue
        module = min(
            (d.module for d in attempt.lowered.delegates),
            key=lambda m: len(m.processed_bytes),
        )
        counts["blobs"] += 1
        limit = seconds if within is None else within
        deadline = time.monotonic() + limit / len(chosen)
        fewest = COPIES if within is None else 1
        trial = _CopyTrial(module, backend)
        with quiet():
            for number, copy in enumerate(_copies(module, trial.checksum)):
                if number >= fewest and time.monotonic() > deadline:
                    break
                report(f"{program.name}: {copy.text}")
                counts[copy.kind] += 1
                end = trial.load_and_run(copy)
                if end in counts:
                    counts[end] += 1
                    continue
                wrong.append(Wrong(program.name, f"loading {copy.text} {end}"))
                if len(wrong) >= _ENOUGH:
                    break
        signal.setitimer(signal.ITIMER_PROF, 0)
        if len(wrong) >= _ENOUGH:
            break
    return counts, wrong


class _CopyTrial:
    """Loads damaged copies of a delegate, and runs those that load."""

    def __init__(
        self, module: LoweredBackendModule, backend: ConfiguredBackend
    ) -> None:
        self.runtime = backend.needs_runtime()
        self.checksum = backend.registry.spec(backend.name).traits.checksum
        self.specs = list(module.compile_specs)
        self.inputs: list[Any] = []
        for argument in module.inputs:
            if argument.dtype is None:
                self.inputs.append(1)
            else:
                shape = [int(size) for size in argument.shape or ()]
                self.inputs.append(torch.ones(shape, dtype=argument.dtype))

    def load_and_run(self, copy: _Copy) -> str:
        """Return "refused", "worked", or the wrong end in words."""
        # the default action of the signal ends the process, also inside C code
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, STEP_SECONDS)
        inputs = [
            value.clone() if isinstance(value, torch.Tensor) else value
            for value in self.inputs
        ]
        try:
            delegate = self.runtime.load(copy.blob, list(self.specs), copy.named_data)
            delegate(*inputs)
        except DelegraphError:
            return "refused"
        except BaseException as e:  # SystemExit and MemoryError are wrong, too
            return f"raised {type(e).__name__}: {e!s:.200}"
        return "worked"


class _Copy(NamedTuple):
    """A damaged copy of a delegate; ``kind`` is "truncations" or "changed"."""

    kind: str
    text: str
    blob: bytes
    named_data: dict[str, bytes]


def _copies(module: LoweredBackendModule, checksum: bool) -> Iterator[_Copy]:
    """Yield damaged copies: of the named data, then truncated and changed blobs in turn.

    Without a ``checksum``, a backend cannot detect changed bytes.
    """
    blob = module.processed_bytes
    data = dict(module.named_data())
    yield from _damaged_data(blob, data)
    cuts = _cut(blob, data)
    changes = _changed(blob, data) if checksum else iter(())
    for _ in range(max(_LARGEST + 1, FLIPS)):
        for stream in (cuts, changes):
            copy = next(stream, None)
            if copy is not None:
                yield copy


def _cut(blob: bytes, data: Mapping[str, bytes]) -> Iterator[_Copy]:
    """Yield copies of the blob that are cut at many places.

    The shortest come first, then others in random order.
    """
    step = 1
    if len(blob) > _LARGEST:
        step = len(blob) // _LARGEST + 1
    places = list(range(0, len(blob), step))
    rest = places[_SHORTEST:]
    random.Random(0).shuffle(rest)
    for place in (*places[:_SHORTEST], *rest):
        text = f"the first {place} of {len(blob)} bytes"
        yield _Copy("truncations", text, blob[:place], dict(data))


def _changed(blob: bytes, data: Mapping[str, bytes]) -> Iterator[_Copy]:
    """Yield copies of the blob with one to four random bytes changed."""
    rng = random.Random(0)
    for _ in range(FLIPS if blob else 0):
        changed = bytearray(blob)
        count = rng.choice((1, 1, 1, 2, 4))
        places = sorted(rng.randrange(len(blob)) for _ in range(count))
        for place in places:
            flipped = changed[place] ^ (1 << rng.randrange(8))
            changed[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, flipped))
        if changed != blob:
            listed = ", ".join(
                f"byte {p} = {changed[p]:#04x}" for p in dict.fromkeys(places)
            )
            text = f"a copy with {listed} (of {len(blob)})"
            yield _Copy("changed", text, bytes(changed), dict(data))


def _damaged_data(blob: bytes, data: Mapping[str, bytes]) -> Iterator[_Copy]:
    """Yield copies with missing or truncated named data."""
    for key, value in data.items():
        others = {k: v for k, v in data.items() if k != key}
        yield _Copy("changed", f"without named data {key!r}", blob, others)

        for size in {0, len(value) // 2, max(0, len(value) - 1)} - {len(value)}:
            text = f"with {size} of {len(value)} bytes of named data {key!r}"
            yield _Copy("truncations", text, blob, {**data, key: value[:size]})

"""Check that damaged blobs raise errors of delegraph, and never crash or hang."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

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
"""Damaged copies of a blob that are tried in any case; others follow while time
remains.
"""
FLIPS = 4000
"""Damaged copies with changed bytes, per blob."""
STEP_SECONDS = 3.0
"""CPU time within which one damaged copy must be loaded and run."""
_LARGEST = 4096
"""Blobs up to this many bytes are cut at every place."""
_SHORTEST = 64
_BLOBS = 3
_ENOUGH = 20
_ADVICE = (
    "check every size, offset and count against the blob before using it, and raise"
    " delegraph.errors.FormatError"
)


@check
def damaged_blob(backend: BackendUnderTest) -> Figures:
    """Truncated blobs and blobs with other bytes give an error of delegraph.errors, or
    a delegate that works.

    A backend that declares ``checksum=False`` is given whole bytes only: blobs cut
    short, and named data missing.
    """
    backend.needs_runtime()
    smallest = _smallest(backend.lowered)
    names = [one.program.name for one, _ in smallest]
    within = backend.share(0.5)
    answer = backend.run_elsewhere(
        try_malformed_blobs, names, backend.seconds / 5, within
    )
    programs = {one.program.name: one.program for one, _ in smallest}
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


def _smallest(lowered: list[LoweringAttempt]) -> list[tuple[LoweringAttempt, int]]:
    """Return the programs with the smallest blobs, which are more structure than
    weights.
    """
    sizes = [
        (one, min(len(d.processed_bytes) for d in one.lowered.delegates))
        for one in lowered
        if one.lowered
    ]
    return sorted(sizes, key=lambda pair: pair[1])[:_BLOBS]


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
        one = backend.attempt(program)
        if one is None or one.lowered is None:
            continue
        module = min(
            (d.module for d in one.lowered.delegates),
            key=lambda m: len(m.processed_bytes),
        )
        counts["blobs"] += 1
        limit = seconds if within is None else within
        deadline = time.monotonic() + limit / len(chosen)
        fewest = COPIES if within is None else 1
        with quiet():
            for text in _try_copies(
                module,
                backend,
                counts,
                fewest,
                deadline,
                partial(_report_copy, report, program.name),
            ):
                wrong.append(Wrong(program.name, text))
                if len(wrong) >= _ENOUGH:
                    return counts, wrong
    return counts, wrong


def _report_copy(report: Report, program: str, text: str) -> None:
    report(f"{program}: {text}")


def _try_copies(
    module: LoweredBackendModule,
    backend: ConfiguredBackend,
    counts: dict[str, int],
    fewest: int,
    deadline: float,
    report: Report,
) -> Iterator[str]:
    runtime = backend.needs_runtime()
    inputs = [
        (
            1
            if a.dtype is None
            else torch.ones([int(d) for d in a.shape or ()], dtype=a.dtype)
        )
        for a in module.inputs
    ]
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    checksum = backend.registry.spec(backend.name).traits.checksum
    for number, (kind, what, blob, data) in enumerate(_copies(module, checksum)):
        if number >= fewest and time.monotonic() > deadline:
            break
        report(what)
        # its default action ends the process, also inside C code
        signal.setitimer(signal.ITIMER_PROF, STEP_SECONDS)
        counts[kind] += 1
        why = _outcome(runtime, blob, list(module.compile_specs), data, inputs, counts)
        if why is not None:
            yield f"loading {what} {why}"
    signal.setitimer(signal.ITIMER_PROF, 0)


def _outcome(
    runtime: Any,
    blob: bytes,
    specs: list[Any],
    data: dict[str, bytes],
    inputs: list[Any],
    counts: dict[str, int],
) -> str | None:
    try:
        delegate = runtime.load(blob, specs, data)
        delegate(*[i.clone() if isinstance(i, torch.Tensor) else i for i in inputs])
    except DelegraphError:
        counts["refused"] += 1
        return None
    except BaseException as e:  # SystemExit and MemoryError are as wrong as any other
        return f"raised {type(e).__name__}: {e!s:.200}"
    counts["worked"] += 1
    return None


def _copies(
    module: LoweredBackendModule, checksum: bool
) -> Iterator[tuple[str, str, bytes, dict[str, bytes]]]:
    """Yield kind, description, blob and named data of damaged copies, cuts and changes
    in turn.

    Without a ``checksum``, a backend cannot detect changed bytes.
    """
    blob = module.processed_bytes
    data = dict(module.named_data())
    yield from _damaged_data(blob, data)
    cuts = _cut(blob)
    changes = _changed(blob) if checksum else iter(())
    for _ in range(max(_LARGEST + 1, FLIPS)):
        for kind, stream in (("truncations", cuts), ("changed", changes)):
            made = next(stream, None)
            if made is not None:
                yield kind, made[0], made[1], dict(data)


def _cut(blob: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the blob cut at many places: the shortest first, then others in random
    order.
    """
    places = list(
        range(len(blob))
        if len(blob) <= _LARGEST
        else range(0, len(blob), len(blob) // _LARGEST + 1)
    )
    rest = places[_SHORTEST:]
    random.Random(0).shuffle(rest)
    for place in (*places[:_SHORTEST], *rest):
        yield f"the first {place} of {len(blob)} bytes", blob[:place]


def _changed(blob: bytes) -> Iterator[tuple[str, bytes]]:
    rng = random.Random(0)
    for _ in range(FLIPS if blob else 0):
        changed = bytearray(blob)
        places = sorted(
            rng.randrange(len(blob)) for _ in range(rng.choice((1, 1, 1, 2, 4)))
        )
        for place in places:
            changed[place] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, changed[place] ^ (1 << rng.randrange(8)))
            )
        if changed != blob:
            text = ", ".join(
                f"byte {p} = {changed[p]:#04x}" for p in dict.fromkeys(places)
            )
            yield f"a copy with {text} (of {len(blob)})", bytes(changed)


def _damaged_data(
    blob: bytes, data: Mapping[str, bytes]
) -> Iterator[tuple[str, str, bytes, dict[str, bytes]]]:
    for key, value in data.items():
        yield (
            "changed",
            f"without named data {key!r}",
            blob,
            {k: v for k, v in data.items() if k != key},
        )
        for size in {0, len(value) // 2, max(0, len(value) - 1)} - {len(value)}:
            text = f"with {size} of {len(value)} bytes of named data {key!r}"
            yield "truncations", text, blob, {**data, key: value[:size]}

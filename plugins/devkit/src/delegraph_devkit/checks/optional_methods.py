"""Check the optional methods ``profile`` and ``compatible`` of a runtime."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from delegraph.errors import FormatError, OptionError, PluginUnavailable
from delegraph.host import Verification
from delegraph.runtime import (
    BEGINNING,
    BackendRuntime,
    BlobHeader,
    Border,
    Compatibility,
    fused,
)

from ..backend_under_test import BackendUnderTest
from ..check import check
from ..check_result import Figures
from ..failures import CheckFailed, CheckSkipped
from ..lowering_attempt import LoweringAttempt, quiet
from ..reproduce import profiling
from ..tolerance import tolerance_of
from ..trial import is_comparable

if TYPE_CHECKING:
    from delegraph.delegates import DelegateInfo

_FLIPS = 40
"""The number of headers with one changed byte that a program is tried with."""


@check
def profiled_times(backend: BackendUnderTest) -> Figures:
    """Profiled delegates compute the same outputs as loaded ones, and time identifiers
    of the debug handle map.
    """
    if not _defines(backend, "profile"):
        raise CheckSkipped("the runtime has no profile, which is optional")
    programs = 0
    identifiers = 0
    for attempt in backend.lowered:
        if not is_comparable(attempt, backend):
            continue
        times = _Times()
        why = _wrong_outputs(attempt, backend, times) or times.unknown()
        if why is not None:
            advice = (
                "return (outputs, {identifier: {'seconds': s}}), with identifiers of"
                " the debug handle map that preprocess returned"
            )
            raise CheckFailed(why, attempt.program, advice, ending=profiling(backend))
        programs += 1
        identifiers += len(times.identifiers)
    return {"programs": programs, "identifiers": identifiers}


def _defines(backend: BackendUnderTest, name: str) -> bool:
    """Return whether the runtime overrides the method ``name`` of ``BackendRuntime``."""
    return getattr(backend.needs_runtime(), name) is not getattr(BackendRuntime, name)


class _Times:
    """A ``Timer`` that keeps the identifiers of times and of debug handle maps."""

    def __init__(self) -> None:
        self.identifiers: list[Any] = []
        self._known: set[Any] = set()

    def begin(self, values: Mapping[Any, Any]) -> None: ...
    def see(self, node: Any, value: Any) -> None: ...
    def enter(self, owner: Any, module: Any, inputs: Any) -> None: ...
    def leave(self) -> None: ...
    def inside(self, delegate: DelegateInfo, values: Any) -> None: ...
    def end(self) -> None: ...

    def spent(
        self,
        delegate: DelegateInfo,
        seconds: float,
        read: Callable[[], Mapping[Any, Any]],
    ) -> None:
        self._known |= {*delegate.debug_handle_map}
        for key in read():
            self.identifiers += [
                identifier
                for identifier in fused(key)
                if not isinstance(identifier, Border)
            ]

    def unknown(self) -> str | None:
        """Return an error if the debug handle maps contain none of the identifiers."""
        if not self.identifiers or self._known & {*self.identifiers}:
            return None
        return (
            f"profile returned times for {self.identifiers[0]!r}, but for no key of a"
            " debug handle map"
        )


def _wrong_outputs(
    attempt: LoweringAttempt, backend: BackendUnderTest, times: _Times
) -> str | None:
    """Run profiled delegates twice, and fill ``times``; return an error or None.

    The second run may differ from the first.
    """
    assert attempt.lowered is not None
    try:
        runs = [attempt.lowered.observed(times) for _ in range(2)]
    except PluginUnavailable as e:
        raise CheckSkipped(str(e)) from e
    try:
        with quiet():
            loaded = attempt.lowered.instance()(*attempt.inputs)
            profiled = [run(*attempt.inputs) for run in runs]
    except (Exception, SystemExit) as e:
        return f"profiling raised {type(e).__name__}: {e}"
    limit = tolerance_of(attempt.exported, backend.tolerance)
    for outputs in profiled:
        found = Verification.of(outputs, loaded)
        # also true for NaN
        if not found.relative_error <= limit:
            return f"outputs of profile differ from outputs of load; {found}"
    return None


@check
def compatibility_answered(backend: BackendUnderTest) -> Figures:
    """``compatible`` accepts every blob that runs here, and answers for any header,
    damaged ones too.
    """
    if not _defines(backend, "compatible"):
        raise CheckSkipped("the runtime has no compatible, which is optional")
    blobs = 0
    headers = 0
    for attempt in backend.lowered:
        if attempt.lowered is None or not is_comparable(attempt, backend):
            continue
        for info in attempt.lowered.delegates:
            header = _header(info)
            why = _wrong_verdict(backend, header, info)
            # damaged headers of one blob are enough: they hardly depend on the blob
            if why is None and not headers:
                for damaged in _damaged(header):
                    headers += 1
                    why = why or _ask(backend, damaged, info).error
            if why is not None:
                advice = (
                    "check the size of the header before reading it, and return a"
                    " Compatibility, or None if unknown"
                )
                raise CheckFailed(why, attempt.program, advice)
            blobs += 1
    return {"blobs": blobs, "headers": headers}


def _wrong_verdict(
    backend: BackendUnderTest, header: BlobHeader, info: DelegateInfo
) -> str | None:
    """Return an error if ``compatible`` fails for a blob that runs here, or rejects
    it.
    """
    answer = _ask(backend, header, info)
    verdict = answer.verdict
    if isinstance(verdict, Compatibility) and verdict.verdict == "cannot":
        return (
            "compatible returned 'cannot' for a blob that runs on this host:"
            f" {verdict.reason}"
        )
    return answer.error


def _header(info: DelegateInfo) -> BlobHeader:
    blob = info.processed_bytes
    return BlobHeader(
        info.backend_id, len(blob), blob[:BEGINNING], info.producer, info.fingerprint
    )


class _Answer(NamedTuple):
    """The verdict of ``compatible`` about this host, and the error of a call."""

    verdict: Any = None
    error: str | None = None


def _ask(backend: BackendUnderTest, header: BlobHeader, info: DelegateInfo) -> _Answer:
    """Call ``compatible`` for this host, and for a device that does not exist."""
    runtime = backend.needs_runtime()
    answers = []
    for device in (None, "no such device"):
        try:
            with quiet():
                answers.append(
                    runtime.compatible(header, list(info.compile_specs), device)
                )
        except (OptionError, FormatError) as e:
            answers.append(Compatibility("cannot", e.message))
        except (Exception, SystemExit) as e:
            shown = (
                f"{header.size} bytes that begin with {header.beginning[:16]!r},"
                f" producer {header.producer!r}"
            )
            error = (
                f"compatible raised {type(e).__name__}: {e}; the header: {shown};"
                f" device: {device!r}"
            )
            return _Answer(error=error)
    for answer in answers:
        if not isinstance(answer, Compatibility | None):
            error = f"compatible returned {answer!r:.80}, not a Compatibility or None"
            return _Answer(answers[0], error)
    return _Answer(answers[0])


def _damaged(header: BlobHeader) -> Iterator[BlobHeader]:
    """Yield headers of damaged, foreign or hostile files."""
    rng = random.Random(0)
    for size in (0, 1, 4, len(header.beginning) // 2):
        yield replace(header, size=size, beginning=header.beginning[:size])
    yield replace(header, size=0)
    yield replace(header, size=1 << 63)
    for text in ("", "x", " ", "\x1b[2J\n", "delegraph-x 1.0.dev0+a", "1" * 500):
        yield replace(header, producer=text, fingerprint=text)
    for _ in range(_FLIPS if header.beginning else 0):
        changed = bytearray(header.beginning)
        changed[rng.randrange(min(64, len(changed)))] = rng.randrange(256)
        yield replace(header, beginning=bytes(changed))

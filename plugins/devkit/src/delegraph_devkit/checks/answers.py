"""Check the answers of a runtime: times of its operators, and compatibility of blobs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from delegraph.errors import FormatError, OptionError, PluginUnavailable
from delegraph.host import Verification
from delegraph.runtime import (
    BEGINNING,
    BackendRuntime,
    BlobHeader,
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
"""The number of headers with changed first bytes that are tried for a program."""


@check
def profiled_times(backend: BackendUnderTest) -> Figures:
    """What ``profile`` makes returns the outputs as ``load`` does, and times by
    identifiers of the handle map.
    """
    if not _defines(backend, "profile"):
        raise CheckSkipped("the runtime has no profile, which is optional")
    programs = 0
    told = 0
    for one in (one for one in backend.lowered if is_comparable(one, backend)):
        times = _Times()
        why = _wrong_outputs(one, backend, times) or times.unknown()
        if why is not None:
            advice = (
                "return (outputs, {identifier: {'seconds': s}}), by identifiers of the"
                " map that preprocess returned"
            )
            raise CheckFailed(why, one.program, advice, ending=profiling(backend))
        programs = programs + 1
        told = told + len(times.identifiers)
    return {"programs": programs, "identifiers": told}


def _defines(backend: BackendUnderTest, name: str) -> bool:
    """Return whether the runtime overrides the method ``name`` of ``BackendRuntime``."""
    return getattr(backend.needs_runtime(), name) is not getattr(BackendRuntime, name)


class _Times:
    """A ``Timer`` that keeps the identifiers of times, and those of debug handle maps."""

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
        from delegraph.runtime import Border

        told = (identifier for key in read() for identifier in fused(key))
        self.identifiers += [
            identifier for identifier in told if not isinstance(identifier, Border)
        ]

    def unknown(self) -> str | None:
        """Return an error if the debug handle maps contain none of the identifiers."""
        if not self.identifiers or self._known & {*self.identifiers}:
            return None
        return (
            f"profile tells times under {self.identifiers[0]!r}, and under nothing that"
            " a debug handle map has"
        )


def _wrong_outputs(
    one: LoweringAttempt, backend: BackendUnderTest, times: _Times
) -> str | None:
    """Run profiled delegates twice, as the second run may differ; return an error or
    None.

    Fills ``times``.
    """
    assert one.lowered is not None
    try:
        runs = [one.lowered.observed(times) for _ in range(2)]
    except PluginUnavailable as e:
        raise CheckSkipped(str(e)) from e
    try:
        with quiet():
            loaded = one.lowered.instance()(*one.inputs)
            profiled = [run(*one.inputs) for run in runs]
    except (Exception, SystemExit) as e:
        return f"profiling raised {type(e).__name__}: {e}"
    limit = tolerance_of(one.exported, backend.tolerance)
    for found in (Verification.of(outputs, loaded) for outputs in profiled):
        if not found.relative_error <= limit:
            return (
                f"profiled delegates compute something else than loaded ones; {found}"
            )
    return None


@check
def compatibility_answered(backend: BackendUnderTest) -> Figures:
    """``compatible`` says of no blob that runs here that it cannot, and answers
    whatever a header has.
    """
    if not _defines(backend, "compatible"):
        raise CheckSkipped("the runtime has no compatible, which is optional")
    blobs = 0
    headers = 0
    for one in (one for one in backend.lowered if is_comparable(one, backend)):
        for info in one.lowered.delegates if one.lowered else ():
            header = _header(info)
            answer, why = _ask(backend, header, info)
            if isinstance(answer, Compatibility) and answer.verdict == "cannot":
                why = (
                    "compatible says of a blob that was compiled and run here: cannot,"
                    f" {answer.reason}"
                )
            # of one blob, as each is alike
            damaged = _damaged(header) if why is None and not headers else iter(())
            for other in damaged:
                headers += 1
                why = why or _ask(backend, other, info)[1]
            if why is not None:
                advice = (
                    "read nothing of the header that is not there, and return a"
                    " Compatibility, or None if unknown"
                )
                raise CheckFailed(why, one.program, advice)
            blobs += 1
    return {"blobs": blobs, "headers": headers}


def _header(info: DelegateInfo) -> BlobHeader:
    blob = info.processed_bytes
    return BlobHeader(
        info.backend_id, len(blob), blob[:BEGINNING], info.producer, info.fingerprint
    )


def _ask(
    backend: BackendUnderTest, header: BlobHeader, info: DelegateInfo
) -> tuple[Any, str | None]:
    """Return the answer to ``header``, and the error of the answers.

    The questions are about this host, and about a device that does not exist.
    """
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
            asked = (
                f"{header.size} bytes that begin with {header.beginning[:16]!r}, of"
                f" {header.producer!r}"
            )
            return (
                None,
                (
                    f"compatible raised {type(e).__name__}: {e}; it was asked about"
                    f" {asked}, on device {device!r}"
                ),
            )
    wrong = [
        answer for answer in answers if not isinstance(answer, Compatibility | None)
    ]
    return (
        answers[0],
        (
            f"compatible returned {wrong[0]!r:.80}, not a Compatibility or None"
            if wrong
            else None
        ),
    )


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

"""Whether stored blobs still run: their runtimes are asked, with a small header, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..backend import CompileSpec, check_called_on_class
from ..discovery.attribution import AtWork
from ..errors import ContractViolation, DelegraphError, FormatError
from ..formats import StoredBlob
from ..io.escape import printable
from ..runtime import BackendRuntime, BlobHeader, Compatibility

if TYPE_CHECKING:
    from ..discovery.registry import Registry

_SILENT = "its runtime does not say"


@dataclass(frozen=True)
class ProgramCompatibility:
    """What the runtimes say of each delegate of a file; None for a runtime that does not say. ``str()`` is for people.

    A program without delegates runs.
    """

    delegates: tuple[tuple[StoredBlob, Compatibility | None], ...]

    @property
    def verdict(self) -> str | None:
        """The worst of the verdicts: ``cannot``, then None where a runtime does not say, ``rebuild``, ``runs``."""
        given = {None if answer is None else answer.verdict for _, answer in self.delegates}
        return next((v for v in ("cannot", None, "rebuild") if v in given), "runs")

    def to_json(self) -> dict[str, Any]:
        """As a dictionary of plain values."""
        rows = [
            {
                "method": blob.method,
                "backend": blob.header.backend_id,
                "producer": blob.header.producer,
                "fingerprint": blob.header.fingerprint,
                "verdict": answer and answer.verdict,
                "reason": _SILENT if answer is None else answer.reason,
            }
            for blob, answer in self.delegates
        ]
        return {"verdict": self.verdict, "delegates": rows}

    def __str__(self) -> str:
        lines = [f"can run here: {self.verdict or 'not known'}"]
        for row in self.to_json()["delegates"]:
            made = f" ({', '.join(filter(None, (row['producer'], row['fingerprint'])))})" if row["producer"] else ""
            lines.append(f"  {row['method']}  {row['backend']}{made}  {row['verdict'] or 'not known'}: {row['reason']}")
        return printable("\n".join(lines), kept="\n")


def compatibility_of(
    header: BlobHeader, compile_specs: Sequence[CompileSpec], registry: Registry, device: str | None = None
) -> Compatibility | None:
    """What the runtime of the blob's backend says; without one here, the blob cannot run, for that reason.

    A runtime of the plugin API before 2 is not asked: a method of that name is its own affair.
    """
    try:
        runtime = registry.runtime_for(header.backend_id)
        api = registry.spec(header.backend_id).api
    except DelegraphError as e:
        return Compatibility("cannot", f"{e.message}; {e.hint}" if e.hint else e.message)
    if api < 2 or runtime.compatible is BackendRuntime.compatible:
        return None
    check_called_on_class(runtime, "compatible", ("header", "compile_specs", "device"))
    with AtWork(runtime, "compatible", f"a blob of {header.backend_id}", (), registry):
        answer = runtime.compatible(header, list(compile_specs), device)
    if not isinstance(answer, Compatibility | None):
        text = f"{runtime.__name__}.compatible returned {answer!r:.80}, not a Compatibility or None"
        raise ContractViolation("contract-violation", text)
    return answer


def expect_compatible(header: BlobHeader, compile_specs: Sequence[CompileSpec], registry: Registry) -> None:
    """Raise FormatError, with its runtime's reason, if a blob cannot run here."""
    answer = compatibility_of(header, compile_specs, registry)
    if answer is not None and answer.verdict == "cannot":
        hint = "lower the model again here, or run the file where it was made for"
        raise FormatError("format-invalid", f"this blob of {header.backend_id} cannot run: {answer.reason}", hint=hint)

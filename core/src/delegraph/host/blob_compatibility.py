"""Finds out whether stored blobs can still run. Their runtimes decide from a small
header; no blob is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..backend import CompileSpec, check_called_on_class
from ..discovery.plugin_call import PluginCall
from ..errors import ContractViolation, DelegraphError, FormatError, OptionError
from ..formats import StoredBlob
from ..io.escape_for_terminal import printable
from ..runtime import BackendRuntime, BlobHeader, Compatibility

if TYPE_CHECKING:
    from ..discovery.registry import Registry

_SILENT = "its runtime does not say"


@dataclass(frozen=True)
class ProgramCompatibility:
    """For each delegate of a file, the answer of its runtime; None if the runtime gives
    none. ``str()`` is for people.

    A program without delegates runs.
    """

    delegates: tuple[tuple[StoredBlob, Compatibility | None], ...]

    @property
    def verdict(self) -> str | None:
        """Return the worst verdict of all delegates. From the worst to the best:
        "cannot", None, "rebuild", "runs".

        None: a runtime gives no verdict.
        """
        verdicts = {
            None if answer is None else answer.verdict for _, answer in self.delegates
        }
        for verdict in ("cannot", None, "rebuild"):
            if verdict in verdicts:
                return verdict
        return "runs"

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of plain values."""
        rows = [
            {
                "method": blob.method,
                "backend": blob.header.backend_id,
                "producer": blob.header.producer,
                "fingerprint": blob.header.fingerprint,
                "verdict": None if answer is None else answer.verdict,
                "reason": _SILENT if answer is None else answer.reason,
            }
            for blob, answer in self.delegates
        ]
        return {"verdict": self.verdict, "delegates": rows}

    def __str__(self) -> str:
        """Return a line with the worst verdict, then one line for each delegate: its
        method, backend, producer (if known), verdict and reason.
        """
        lines = [f"can run here: {self.verdict or 'not known'}"]
        for row in self.to_json()["delegates"]:
            producer = ""
            if row["producer"]:
                # the fingerprint may be ""
                known = filter(None, (row["producer"], row["fingerprint"]))
                producer = f" ({', '.join(known)})"
            lines.append(
                f"  {row['method']}  {row['backend']}{producer} "
                f" {row['verdict'] or 'not known'}: {row['reason']}"
            )
        # names of the file may contain line ends, which ``printable`` escapes
        return "\n".join(map(printable, lines))


def compatibility_of(
    header: BlobHeader,
    compile_specs: Sequence[CompileSpec],
    registry: Registry,
    device: str | None = None,
) -> Compatibility | None:
    """Return the answer of a runtime's ``compatible``, whether it can run a blob; None
    if the runtime does not know.

    The verdict is also "cannot" if the backend has no usable runtime here, or if the
    runtime raises OptionError or FormatError. Then the reason is the error's message.
    ``compile_specs``: those with which the blob was compiled. ``device``: the device in
    question; None for this host. Raises ContractViolation if the runtime returns
    anything else than a Compatibility or None, PluginFailed if it raises another error.
    """
    try:
        runtime = registry.runtime_for(header.backend_id)
    except DelegraphError as e:
        return Compatibility(
            "cannot", f"{e.message}; {e.hint}" if e.hint else e.message
        )
    # the method is optional, and this runtime does not define it
    if runtime.compatible is BackendRuntime.compatible:
        return None
    check_called_on_class(runtime, "compatible", ("header", "compile_specs", "device"))
    where = f"a blob of {header.backend_id}"
    with PluginCall(runtime, "compatible", where, registry=registry):
        try:
            answer = runtime.compatible(header, list(compile_specs), device)
        except (OptionError, FormatError) as e:
            answer = Compatibility("cannot", e.message)
    if not isinstance(answer, Compatibility | None):
        raise ContractViolation(
            "contract-violation",
            f"{runtime.__name__}.compatible returned {answer!r:.80}, not a"
            " Compatibility or None",
        )
    return answer


def expect_compatible(
    header: BlobHeader, compile_specs: Sequence[CompileSpec], registry: Registry
) -> None:
    """Raise FormatError, with the runtime's reason, if the runtime cannot run the blob.
    Return if the runtime does not know.
    """
    answer = compatibility_of(header, compile_specs, registry)
    if answer is not None and answer.verdict == "cannot":
        hint = "lower the model again here, or run the file on the host that it was made for"
        raise FormatError(
            "format-invalid",
            f"this blob of {header.backend_id} cannot run: {answer.reason}",
            hint=hint,
        )

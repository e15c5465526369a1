"""The forms of a report: one class for each suffix. Two are here, others come with plugins."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..io.atomic_write import write_whole
from ..io.escape import printable

if TYPE_CHECKING:
    from ..errors import DelegraphError
    from ..host.verify import Verification
    from .model import Report


class LoweringResult(Protocol):
    """What became of one model. A report, whatever its form, tells a part of it.

    ``model`` is named as the user named it. ``report`` is None if lowering failed; then ``error`` says why. The
    report's ``origin`` has the programs until it is released. ``verifications`` are by method. ``gates`` are other
    demands on the result, by name; None means that one is met. ``output`` is where the program was saved, ``seconds``
    how long all took. ``verbose``: the user wants details.
    """

    @property
    def model(self) -> str: ...
    @property
    def report(self) -> Report | None: ...
    @property
    def verifications(self) -> Mapping[str, Verification]: ...
    @property
    def gates(self) -> Mapping[str, DelegraphError | None]: ...
    @property
    def error(self) -> DelegraphError | None: ...
    @property
    def output(self) -> Path | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def verbose(self) -> bool: ...


class ReportFormat:
    """One kind of file that a report is written to; a ``ReportSpec`` declares its suffix.

    A subclass implements ``render``, or ``write`` if it makes several files. With ``tells_failures = True`` it is also
    called when lowering failed and ``result.report`` is None.
    """

    tells_failures = False

    @staticmethod
    def render(result: LoweringResult) -> str | bytes:
        """The content of the file."""
        raise NotImplementedError

    @classmethod
    def write(cls, result: LoweringResult, path: Path) -> Sequence[Path]:
        """Write the file at ``path``, or several beside it, each whole or not at all; returns what was written."""
        content = cls.render(result)
        write_whole(path, content.encode() if isinstance(content, str) else content)
        return [path]


class TextReport(ReportFormat):
    """``.txt``: as ``delegraph lower`` prints it."""

    @staticmethod
    def render(result: LoweringResult) -> str:
        assert result.report is not None
        lines = [result.report.to_text(result.verbose), *verification_lines(result.verifications)]
        return "\n".join(lines) + "\n"


class JsonReport(ReportFormat):
    """``.json``: ``Report.to_json()`` with the figures against eager."""

    @staticmethod
    def render(result: LoweringResult) -> str:
        assert result.report is not None
        content = {**result.report.to_json(), "verification": verification_content(result.verifications)}
        return json.dumps(_without_infinities(content), indent=2, default=str, allow_nan=False) + "\n"


def verification_lines(found: Mapping[str, Verification]) -> list[str]:
    """The figures of verifications as lines; with several methods, each with its name."""
    several = len(found) > 1
    return [f"method {printable(m)}, {v}" if several else str(v) for m, v in found.items()]


def verification_content(found: Mapping[str, Verification]) -> dict[str, Any] | None:
    """The figures of verifications for JSON: those of the only method, or by method."""
    if len(found) > 1:
        return {m: v.to_json() for m, v in found.items()}
    return next((v.to_json() for v in found.values()), None)


def _without_infinities(value: Any) -> Any:
    """``value`` with null in place of infinity and NaN, which JSON lacks."""
    if isinstance(value, dict):
        return {k: _without_infinities(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

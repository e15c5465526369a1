"""The forms of a report: a class for each suffix, of a plugin or one of the two that are the core's."""

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
    """What became of one model; a report in any form tells some of it.

    ``model`` is named as the user did. ``report`` is None if there is none because lowering failed, which ``error``
    says; its ``origin`` has the programs until it is released. ``verifications`` are by method, ``gates`` what else was
    asked for (None: it holds), ``output`` where the program was saved, ``seconds`` what all took. ``verbose``: the user
    wants details.
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

    A subclass implements ``render``, or ``write`` if it makes several files. ``tells_failures = True``: it is also
    asked when lowering failed and ``result.report`` is None.
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
    """The figures against eager, of several methods each with its name."""
    several = len(found) > 1
    return [f"method {printable(m)}, {v}" if several else str(v) for m, v in found.items()]


def verification_content(found: Mapping[str, Verification]) -> dict[str, Any] | None:
    """The figures against eager for JSON: of a method that is alone, or by method."""
    if len(found) > 1:
        return {m: v.to_json() for m, v in found.items()}
    return next((v.to_json() for v in found.values()), None)


def _without_infinities(value: Any) -> Any:
    """JSON lacks infinity and NaN; they are null."""
    if isinstance(value, dict):
        return {k: _without_infinities(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_infinities(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

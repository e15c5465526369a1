"""Writes a report in the format that a path's suffix chooses, for ``Report.save`` and
``--report``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..discovery.attribution import AtWork
from ..discovery.registry import Registry, default_registry
from ..plugin import ReportSpec
from .formats import LoweringResult


def declared_for(path: Path) -> str:
    """Return the name by which the registry finds the format of ``path``: the file's
    name, or ``.txt`` if it has no suffix.
    """
    return path.name if path.suffix else ".txt"


def expect_report_formats(paths: Iterable[Path]) -> None:
    """Check, before the work, that a plugin declares the format of each report. Raises
    FormatNotFound.
    """
    for path in paths:
        default_registry().find(ReportSpec, declared_for(path))


def write_report(
    result: LoweringResult,
    path: str | os.PathLike[str],
    registry: Registry | None = None,
) -> Sequence[Path]:
    """Write a ``LoweringResult`` in the format that the suffix of ``path`` chooses;
    returns the files written.

    Writes nothing if lowering failed and the format does not report failures. Raises
    FormatNotFound if no plugin declares the suffix (the hint names what to install),
    WriteError if a file cannot be written.
    """
    target = Path(path)
    chosen = registry or default_registry()
    report_format = chosen.get(ReportSpec, declared_for(target))
    if result.report is None and not report_format.tells_failures:
        return []
    with AtWork(report_format, "write", registry=chosen):
        written: Sequence[Path] = report_format.write(result, target)
    return written

"""From a path to the form of report that its suffix chooses. ``Report.save`` and ``--report`` both come here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..discovery.attribution import AtWork
from ..discovery.registry import Registry, default_registry
from ..plugin import ReportSpec

if TYPE_CHECKING:
    from ..errors import DelegraphError
    from ..host.verify import Verification


@dataclass(frozen=True)
class SavedReport:
    """The ``LoweringResult`` that ``Report.save`` can tell."""

    report: Any
    """A ``Report``, or None."""
    verifications: Mapping[str, Verification] = field(default_factory=dict)
    output: Path | None = None
    verbose: bool = False
    model: str = ""
    gates: Mapping[str, DelegraphError | None] = field(default_factory=dict)
    error: DelegraphError | None = None
    seconds: float = 0.0


def declared_for(path: Path) -> str:
    """The name to look up the format of ``path`` with: the file's name, or ``.txt`` for a file without a suffix."""
    return path.name if path.suffix else ".txt"


def write_report(result: Any, path: str | os.PathLike[str], registry: Registry | None = None) -> Sequence[Path]:
    """Write a ``LoweringResult`` in the form that the suffix of ``path`` chooses; returns the files.

    Raises WriteError, and FormatNotFound, with what to install, for a suffix that no plugin declares.
    """
    place = Path(path)
    chosen = registry or default_registry()
    form = chosen.get(ReportSpec, declared_for(place))
    if result.report is None and not form.tells_failures:
        return []
    with AtWork(form, "write", registry=chosen):
        written: Sequence[Path] = form.write(result, place)
    return written

"""The file formats of reports, one class for each suffix.

The core has text and JSON. Plugins have others.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..command.outcome import json_text
from ..discovery.plugin_call import PluginCall
from ..discovery.registry import Registry, default_registry
from ..io.atomic_write import write_whole
from ..io.escape_for_terminal import printable
from ..plugin import ReportSpec

if TYPE_CHECKING:
    from ..errors import DelegraphError
    from ..host.verify import Verification


@dataclass
class LoweringResult:
    """The result of lowering one model, from which a ``ReportFormat`` writes a file.

    ``report``: a ``Report``, or None if lowering failed; ``error`` is the reason. Until
    ``report.release()``, ``report.origin`` has the programs. ``verifications``: method
    -> comparison with eager; empty if there was none. ``profiles``: method -> result
    of ``LoweredProgram.profile``; empty if nothing was timed. ``output``: where
    the program was saved; None if it was not. ``verbose``: the user wants details.
    ``model``: the model as the user named it; "" if that is not known. ``gates``: name
    of a check that the user asked for -> its error, or None if the check passed.
    ``seconds``: duration of the whole work.
    """

    report: Any = None
    verifications: dict[str, Verification] = field(default_factory=dict)
    profiles: dict[str, Any] = field(default_factory=dict)
    output: Path | None = None
    verbose: bool = False
    model: str = ""
    gates: dict[str, DelegraphError | None] = field(default_factory=dict)
    error: DelegraphError | None = None
    seconds: float = 0.0


class ReportFormat:
    """Base of file formats for reports; a ``ReportSpec`` declares the suffix.

    A subclass implements ``render``, or ``write`` if it writes several files. If
    lowering failed, ``result.report`` is None; then only a format with ``tells_failures
    = True`` is called.
    """

    tells_failures = False

    @staticmethod
    def render(result: LoweringResult) -> str | bytes:
        """Return the content of the file for ``result``."""
        raise NotImplementedError

    @classmethod
    def write(cls, result: LoweringResult, path: Path) -> Sequence[Path]:
        """Write the file ``path``, and further files if the format has any; return the
        paths of all written files.

        Each file is written completely or not at all. Raises WriteError.
        """
        content = cls.render(result)
        write_whole(path, content.encode() if isinstance(content, str) else content)
        return [path]


class TextReport(ReportFormat):
    """``.txt``: the text that ``delegraph lower`` prints."""

    @staticmethod
    def render(result: LoweringResult) -> str:
        """Return the report, the verifications, and where the time goes. Not called for
        a lowering that failed.
        """
        assert result.report is not None
        lines = [
            result.report.to_text(result.verbose),
            *verification_lines(result.verifications),
        ]
        lines += map(str, result.profiles.values())
        return "\n".join(lines) + "\n"


class JsonReport(ReportFormat):
    """``.json``: ``Report.to_json()``, and the comparison with eager under the key
    "verification".

    If methods were timed, "profile" has their profiles by method.
    """

    @staticmethod
    def render(result: LoweringResult) -> str:
        """Return one JSON object. Not called for a lowering that failed, which has no
        report.
        """
        assert result.report is not None
        content = {
            **result.report.to_json(),
            "verification": verification_content(result.verifications),
        }
        if result.profiles:
            content["profile"] = {
                method: profile.to_json() for method, profile in result.profiles.items()
            }
        return json_text(content) + "\n"


def verification_lines(verifications: Mapping[str, Verification]) -> list[str]:
    """Return a text for the verification of each method.

    If there are several methods, each text begins with the method's name.
    """
    several = len(verifications) > 1
    return [
        f"method {printable(m)}, {v}" if several else str(v)
        for m, v in verifications.items()
    ]


def verification_content(
    verifications: Mapping[str, Verification],
) -> dict[str, Any] | None:
    """Return the verifications for JSON.

    That is the object of the only verification, method -> object if there are several,
    or None if there is none.
    """
    if len(verifications) > 1:
        return {m: v.to_json() for m, v in verifications.items()}
    return next((v.to_json() for v in verifications.values()), None)


def declared_for(path: Path) -> str:
    """Return the name by which the registry finds the format of ``path``.

    That is the file's name, or ``.txt`` if it has no suffix.
    """
    return path.name if path.suffix else ".txt"


def expect_report_formats(paths: Iterable[Path]) -> None:
    """Raise FormatNotFound unless a plugin declares the format of each path.

    A command calls this before it lowers, so that a wrong suffix costs no time.
    """
    for path in paths:
        # called only for its exception
        default_registry().find(ReportSpec, declared_for(path))


def write_report(
    result: LoweringResult,
    path: str | os.PathLike[str],
    registry: Registry | None = None,
) -> Sequence[Path]:
    """Write a file in the format that its suffix chooses; return all written paths.

    Writes nothing, and returns [], if lowering failed and the format does not report
    failures. Raises FormatNotFound if no plugin declares the suffix; its hint is the
    command that installs one. Raises WriteError if a file cannot be written,
    PluginFailed if the format raises another error.
    """
    target = Path(path)
    chosen = registry or default_registry()
    report_format = chosen.get(ReportSpec, declared_for(target))
    if result.report is None and not report_format.tells_failures:
        return []
    with PluginCall(report_format, "write", registry=chosen):
        paths: Sequence[Path] = report_format.write(result, target)
    return paths

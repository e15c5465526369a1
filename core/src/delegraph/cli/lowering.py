"""``delegraph lower``. What can be wrong with the command is found before torch is imported."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ..discovery.registry import Registry, default_registry
from ..errors import DelegraphError, InputError, UsageError
from ..io.atomic_write import expect_writable, write_whole
from ..program.files import FileFormat
from . import terminal
from .command import parse_options
from .model import check_model, load_model
from .outcome import Outcome, as_json, output_path, progress

TOLERANCE = 1e-3
"""Largest difference from eager that ``--verify`` accepts, relative to the largest value of eager's output."""


class Lower:
    """``delegraph lower``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL", help="a .pt2 file, or path.py[:function] (this runs the file)")
        parser.add_argument("--backend", action="append", default=[], metavar="BACKEND", help="in order of preference")
        parser.add_argument("--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE")
        parser.add_argument(
            "-o", "--output", type=Path, metavar="FILE", help="its suffix chooses the format, such as .tosa"
        )
        parser.add_argument("--verify", action="store_true", help="run it on this host and compare with eager PyTorch")
        parser.add_argument("--tolerance", type=float, default=TOLERANCE, help=f"for --verify (default {TOLERANCE})")
        parser.add_argument(
            "--report", type=output_path, metavar="FILE", help="write the report: .json, .html, or else text"
        )
        parser.add_argument(
            "-v", "--verbose", action="store_true", help="also operators, border and time of each delegate"
        )
        parser.add_argument("--require-full", action="store_true", help="fail if an operator is left to the host")

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        registry = default_registry()
        check_model(args.model)
        backends = args.backend or _choose_backends(registry, args.output)
        options = parse_options(backends, args.option)
        _check_output(registry, backends, args.output)
        for path in filter(None, (args.output, args.report)):
            expect_writable(path)
        return _work(args, backends, options)


def _work(args: argparse.Namespace, backends: list[str], options: dict[str, dict[str, Any]]) -> Outcome:
    with progress(f"loading {args.model}"):
        from ..api import lower

        program, inputs, kwargs = load_model(args.model)
    with progress(f"lowering for {', '.join(backends) or 'the host'}"):
        lowered = lower(program, inputs, backends=backends, options=options, require_full=args.require_full)
    verification = _verify(lowered, inputs, kwargs, args.tolerance) if args.verify else None
    written = _save(lowered, args.output) if args.output else None
    outcome = _outcome(lowered, verification, written, args)
    if args.report:
        _write_report(args.report, outcome, lowered.report, args.verbose)
    return outcome


def _save(lowered: Any, output: Path) -> dict[str, Any]:
    """Write the file; if that cannot be, the report comes before the error: it says what stayed behind, and why."""
    try:
        with progress(f"writing {output}"):
            size = FileFormat(output, default_registry()).save(lowered, {})
        return {"path": str(output), "bytes": size}
    except DelegraphError:
        terminal.tell(str(lowered.report))
        raise


def _outcome(lowered: Any, verification: Any, output: dict[str, Any] | None, args: argparse.Namespace) -> Outcome:
    content = {"report": lowered.report.to_json(), "verification": None, "output": output}
    texts = [lowered.report.to_text(args.verbose)]
    if verification is not None:
        content["verification"] = verification.to_json()
        texts.append(str(verification))
    if output is not None:
        texts.append(f"wrote {output['path']} ({output['bytes']} bytes)")
    return Outcome("delegraph.lower/1", content, "\n".join(texts))


def _verify(lowered: Any, inputs: Any, kwargs: dict[str, Any], tolerance: float) -> Any:
    if inputs is None:
        hint = "export the program with example inputs, or give a path.py that returns them"
        raise InputError("input-invalid", "--verify needs inputs, and this .pt2 file has none", hint=hint)
    with progress("comparing with eager"):
        verification = lowered.verify(*inputs, **kwargs)
    if not verification.relative_error <= tolerance:
        text = f"the lowered program does not agree with eager PyTorch within {tolerance:g}; {verification}"
        raise DelegraphError("verification-failed", text, hint="nothing was written; --tolerance sets what is accepted")
    return verification


def _choose_backends(registry: Registry, output: Path | None) -> list[str]:
    """Without ``--backend``: the only usable one, or the only one of the plugin that offers the output's format.

    A format that holds whole programs needs none: everything stays on the host.
    """
    usable = [b for b in registry.backends() if b.usable]
    fitting = [b for b in usable if output is None or output.name.lower().endswith(b.formats)] or usable
    if len(fitting) != 1 and output is not None and FileFormat(output, registry).why_not([]) is None:
        return []
    if len(fitting) != 1:
        names = ", ".join(b.name for b in usable) or "none"
        raise UsageError("usage-invalid", f"name a backend with --backend (installed: {names})")
    return [fitting[0].name]


def _check_output(registry: Registry, backends: list[str], output: Path | None) -> None:
    if output is None:
        return
    file_format = FileFormat(output, registry)
    if not file_format.defines("serialize") and not file_format.defines("write"):
        raise UsageError("usage-invalid", f"the format of {output.suffix} files cannot be written")
    reason = file_format.why_not([registry.spec(name).backend_id for name in backends])
    if reason is not None:
        raise UsageError("usage-invalid", f"{', '.join(backends)} cannot be saved as {output.name!r}: {reason}")


def _write_report(path: Path, outcome: Outcome, report: Any, verbose: bool) -> None:
    """In the form that the suffix names; as text if it names none."""
    if path.suffix == ".json":
        content = json.dumps(json.loads(as_json(outcome))["report"], indent=2) + "\n"
    else:
        content = report.to_html() if path.suffix in (".html", ".htm") else f"{report.to_text(verbose)}\n"
    write_whole(path, content.encode())

"""``delegraph lower``. All arguments are checked before torch is imported, so that
errors come at once.
"""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..command import terminal
from ..command.compiler_flags import add_compiler_flags, chosen_compiler
from ..command.inputs import read_inputs
from ..command.model import check_model, read_model
from ..command.outcome import (
    Failed,
    Outcome,
    defect,
    expect_file,
    expect_places,
    natural_number,
    output_path,
    progress,
)
from ..command.protocol import parse_options
from ..discovery.first_party import provided
from ..discovery.options import assigned_backends
from ..discovery.records import BackendInfo
from ..discovery.registry import DefaultBackends, Registry, default_registry
from ..errors import DelegraphError, InputError, NotFullyDelegated, UsageError
from ..host.files import FileFormat
from ..report.formats import (
    LoweringResult,
    TextReport,
    expect_report_formats,
    verification_content,
    write_report,
)


class Lower:
    """``delegraph lower``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "model",
            metavar="MODEL",
            nargs="+",
            help="a .pt2 file, path.py[:function] (this runs it), or scheme:name",
        )
        preferred = "in order of preference (default: the only one)"
        add("--backend", action="append", default=[], metavar="BACKEND", help=preferred)
        add(
            "--host-only",
            action="store_true",
            help="lower for no backend: everything stays on the host",
        )
        add("--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE")
        add(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="its suffix chooses the format, such as .tosa",
        )
        calibration = (
            "quantize it with the backend's quantizer: an .npz file, one array"
            " [batches, *input] an input"
        )
        add("--quantize", type=Path, metavar="CALIBRATION", help=calibration)
        add(
            "--verify",
            action="store_true",
            help="run it on this host and compare with eager PyTorch",
        )
        add(
            "--verify-operators",
            action="store_true",
            help="the same, and say which operators differ, and where",
        )
        inputs = (
            "verify with these inputs; each time it is given they are compared anew"
        )
        add(
            "--input",
            action="append",
            default=[],
            type=Path,
            metavar="FILE.npz",
            help=inputs,
        )
        tolerance = (
            "difference from eager, by its largest value, that is accepted (default: by"
            " type, 1e-3 of float32)"
        )
        add("--tolerance", type=float, metavar="RATIO", help=tolerance)
        form = (
            "write the report in the form of the suffix: .txt, .json, or one of a"
            " plugin; may be given several times"
        )
        add(
            "--report",
            action="append",
            default=[],
            type=output_path,
            metavar="FILE",
            help=form,
        )
        add(
            "-v",
            "--verbose",
            action="store_true",
            help="also operators, border and time of each delegate",
        )
        add(
            "--require-full",
            action="store_true",
            help="fail if an operator is left to the host",
        )
        add_compiler_flags(parser)
        add(
            "--min-delegated",
            type=_share,
            metavar="SHARE",
            help="fail if fewer operators are delegated, such as 0.95",
        )
        add(
            "--max-delegates",
            type=natural_number,
            metavar="N",
            help="fail if there are more delegates",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        """Check all arguments, then lower the MODEL."""
        registry = default_registry()
        # everything that can be wrong with the arguments, before ``_lower`` imports
        # torch
        if len(args.model) > 1:
            hint = (
                f"delegraph matrix {' '.join(args.model)} --backends NAME"
                " (delegraph-analysis) makes a table of several"
            )
            raise UsageError(
                "usage-invalid", "delegraph lower takes one MODEL", hint=hint
            )
        (model,) = args.model
        file = check_model(model)  # None for a MODEL that is not a file
        for path in args.input:
            expect_file(path)
        chosen = _choose_backends(registry, args)
        options = parse_options(chosen.names, args.option)
        if args.quantize:
            provided(f"{_QUANTIZING}:check_calibration", "--quantize")(
                args.quantize, args.model, chosen.names
            )
        if args.output:
            _check_output(registry, chosen.names, args.output)
        written = [*args.report, *filter(None, [args.output])]
        expect_places(written, [*filter(None, [file, args.quantize]), *args.input])
        expect_report_formats(args.report)
        # the work
        return _outcome(_attempt(model, args, chosen, options))


_QUANTIZING = "delegraph_quantize.command"


@dataclass
class Attempt(LoweringResult):
    """The results so far.

    ``bytes``: size of the saved program ``output``. ``reports``: paths of the reports.
    """

    bytes: int = 0
    reports: list[str] = field(default_factory=list)

    def content(self) -> dict[str, Any]:
        """Return the fields of the JSON form ``delegraph.lower/1``, which a failed
        command adds to ``delegraph.error/1``.
        """
        output = None
        if self.output is not None:
            output = {"path": str(self.output), "bytes": self.bytes}
        return {
            "report": None if self.report is None else self.report.to_json(),
            "verification": verification_content(self.verifications),
            "gates": {name: error is None for name, error in self.gates.items()},
            "output": output,
            "reports": self.reports,
        }

    def text(self) -> str:
        """Return the text that is printed: its report, and the names of the files
        written.
        """
        lines = [] if self.report is None else [TextReport.render(self).rstrip()]
        lines += (
            [] if self.output is None else [f"wrote {self.output} ({self.bytes} bytes)"]
        )
        # a single report is at the path that the user gave
        lines += [f"wrote {', '.join(self.reports)}"] if len(self.reports) > 1 else []
        return "\n".join(lines)


def _is_given(value: Any) -> bool:
    """Return whether the user gave the argument with the parsed ``value``; 0 counts as
    given.
    """
    # not ``value not in (None, False, [])``, because 0 == False
    return value is not False and value not in (None, [])


def _outcome(result: Attempt) -> Outcome:
    """Return the outcome of the command. Raises Failed if ``result`` has an error."""
    if result.error is not None:
        explains_itself = (
            isinstance(result.error, NotFullyDelegated)
            or result.error.code == "verification-failed"
        )
        if result.report is not None and not explains_itself:
            terminal.tell(str(result.report))
        raise Failed(result.error, result.content())
    return Outcome("delegraph.lower/1", result.content(), result.text())


def _attempt(
    model: str,
    args: argparse.Namespace,
    chosen: DefaultBackends,
    options: dict[str, dict[str, Any]],
) -> Attempt:
    """Lower the MODEL as ``args`` say, and write its reports.

    ``chosen``: the backends, and the note for the report if the user named none.
    ``options``: backend -> its options. An error ends the work and is kept in the
    result. Reports are still written: by formats that report failures, and by all if
    the error came after lowering.
    """
    result = Attempt(model=model, verbose=args.verbose)
    start = time.perf_counter()
    try:
        _lower(result, args, chosen, options)
    except DelegraphError as e:
        result.error = e
    except (Exception, SystemExit) as e:
        result.error = defect(e)
        result.error.__cause__ = e
    result.seconds = time.perf_counter() - start
    for path in args.report:
        result.reports += map(str, write_report(result, path))
    return result


def _lower(
    result: Attempt,
    args: argparse.Namespace,
    chosen: DefaultBackends,
    options: dict[str, dict[str, Any]],
) -> None:
    """Load, lower, verify and save the MODEL; put the results into ``result``."""
    model = result.model
    backends = chosen.names
    with progress(f"loading {model}"):
        from ..api import Choices, lower

        loaded = read_model(model)
    notes = [chosen.why] if chosen.why else []
    if args.quantize:
        quantize_given = provided(f"{_QUANTIZING}:quantize_given", "--quantize")
        notes.append(quantize_given(loaded, args.quantize, backends[0]))
    with progress(f"lowering {model} for {', '.join(backends) or 'the host'}"):
        choices: Choices = {
            "backends": backends,
            "options": options,
            "compiler": chosen_compiler(args),
        }
        lowered = lower(**loaded.arguments(), **choices)
    result.report = lowered.report
    result.report.notes += notes
    _check(result, lowered, loaded, args)
    if args.output:
        with progress(f"writing {args.output}"):
            file = FileFormat(args.output, default_registry())
            result.bytes = file.save(lowered, {})
        result.output = args.output


def _check(
    result: Attempt, lowered: Any, loaded: Any, args: argparse.Namespace
) -> None:
    """Compare with eager if ``args`` ask for it, then check the demands of the flags
    in ``_GATES``.

    Stores the comparisons and the verdict of each gate in ``result``. Raises the error
    of the first gate that failed, but only after all are checked, so that the report
    has them all. ``loaded``: the model, with its example inputs.
    """
    verifies = bool(args.verify or args.verify_operators or args.input)
    if verifies:
        with progress("comparing with eager"):
            result.verifications = {
                m: _verify(lowered, m, loaded, args) for m in lowered.methods
            }
    # --verify-operators and --input ask for --verify, too
    values = vars(args) | {"verify": verifies}
    for name, check in _GATES.items():
        if _is_given(values[name.replace("-", "_")]):
            try:
                check(result, args)
                result.gates[name] = None
            except DelegraphError as e:
                result.gates[name] = e
    for error in filter(None, result.gates.values()):
        raise error


def _verify(lowered: Any, method: str, loaded: Any, args: argparse.Namespace) -> Any:
    """Compare a method with eager on the inputs of --input, or on the model's example
    inputs.

    Returns a Verification; with several --input, the one with the worst figures of each
    output. ``loaded``: the model. Raises InputError for a program without example
    inputs: those of --input get their structure.
    """
    if loaded.inputs[method] is None:
        hint = (
            "export the program with example inputs, or give a path.py that returns"
            " them"
        )
        raise InputError(
            "input-invalid",
            "--verify needs inputs, and this .pt2 file has none",
            hint=hint,
        )
    example = (loaded.inputs[method], loaded.kwargs[method])
    program = lowered.exported_program(method)
    calls = [read_inputs(path, method, program, example) for path in args.input] or [
        example
    ]
    results = [
        lowered.verify(*a, method=method, per_operator=args.verify_operators, **k)
        for a, k in calls
    ]
    return type(results[0]).worst_of(results).within(args.tolerance)


def _expect_agreement(result: Attempt, args: argparse.Namespace) -> None:
    """Raise DelegraphError if a method's results differ from eager's by more than
    --tolerance accepts.

    Without --tolerance, each output has the tolerance of its type.
    """
    for method, verification in result.verifications.items():
        if not verification.agrees():
            within = (
                "the tolerance of its type"
                if args.tolerance is None
                else f"{args.tolerance:g}"
            )
            which = f"method {method} of " if len(result.verifications) > 1 else ""
            text = (
                f"{which}the lowered program does not agree with eager PyTorch within"
                f" {within}; {verification}"
            )
            hint = (
                "nothing was written. Find the first operator that differs:"
                f" {_accuracy_command(args)}"
            )
            hint += (
                " (add --ties if the model picks among equal elements). --tolerance"
                " accepts larger differences"
            )
            raise DelegraphError("verification-failed", text, hint=hint)


def _accuracy_command(args: argparse.Namespace) -> str:
    """Return the command that compares every operator of the same lowering with eager."""
    parts = ["delegraph", "accuracy", *args.model]
    for backend in args.backend:
        parts += ["--backend", backend]
    for option in args.option:
        parts += ["--option", option]
    for path in args.input:
        parts += ["--input", str(path)]
    return shlex.join(parts)


def _expect_share(result: Any, args: argparse.Namespace) -> None:
    """Raise DelegraphError if a smaller share of the operators is delegated than
    --min-delegated.
    """
    share = result.report.delegated_share
    wanted = args.min_delegated
    if share < wanted:
        text = (
            f"{share:.1%} of the operators are delegated, but --min-delegated is"
            f" {wanted:.1%}"
        )
        raise DelegraphError(
            "gate-failed",
            text,
            hint="the report says what was left to the host, and why",
        )


def _expect_few(result: Any, args: argparse.Namespace) -> None:
    """Raise DelegraphError if there are more delegates than --max-delegates."""
    count = len(result.report.delegates)
    if count > args.max_delegates:
        text = (
            f"there are {count} delegates, and --max-delegates accepts"
            f" {args.max_delegates}"
        )
        raise DelegraphError(
            "gate-failed", text, hint="the report says what lies between them, and why"
        )


_GATES: Mapping[str, Callable[[Any, argparse.Namespace], None]] = {
    "verify": _expect_agreement,
    "require-full": lambda result, args: result.report.expect_full(),
    "min-delegated": _expect_share,
    "max-delegates": _expect_few,
}
"""Flag -> function that raises an error if the Attempt does not meet the flag's demand.
Checked in this order.
"""


def _share(text: str) -> float:
    """For argparse: a number from 0 to 1."""
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 1")
    return share


_share.__name__ = "share from 0 to 1"  # argparse shows this name in errors


def _choose_backends(registry: Registry, args: argparse.Namespace) -> DefaultBackends:
    """Return the backends of ``--backend``; without that flag, the default among those
    that suit the other flags.

    The list is empty for ``--host-only``. Raises UsageError for both flags, and the
    errors of ``default_backends``.
    """
    if args.host_only:
        if args.backend:
            raise UsageError(
                "usage-invalid", "--host-only and --backend exclude each other"
            )
        return DefaultBackends([], "")
    if args.backend:
        return DefaultBackends(list(args.backend), "")
    output = FileFormat(args.output, registry) if args.output else None

    def suits(info: BackendInfo) -> bool:
        """Return whether the backend's programs can be saved as --output, and it can
        quantize if --quantize is given.
        """
        can_save = output is None or output.why_not([info.backend_id]) is None
        return can_save and (info.has_quantizer or not args.quantize)

    return registry.default_backends(assigned_backends(args.option), suits)


def _check_output(registry: Registry, backends: Sequence[str], output: Path) -> None:
    """Raise UsageError if programs lowered for these backends cannot be saved in the
    format of ``output``.
    """
    file_format = FileFormat(output, registry)
    if not file_format.defines("serialize") and not file_format.defines("write"):
        raise UsageError(
            "usage-invalid",
            f"the format of {file_format.suffix} files cannot be written",
        )
    reason = file_format.why_not([registry.spec(name).backend_id for name in backends])
    if reason is not None:
        content = ", ".join(backends) or "what stays on the host"
        raise UsageError(
            "usage-invalid", f"{content} cannot be saved as {output.name!r}: {reason}"
        )

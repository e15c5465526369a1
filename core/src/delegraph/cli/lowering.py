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
from ..command.load_model import check_model, read_model
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

_QUANTIZING = "delegraph_quantize.command"
"""The module of delegraph-quantize for --quantize."""


class Lower:
    """``delegraph lower``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "model",
            metavar="MODEL",
            nargs="+",
            help=(
                "a .pt2 file, path.py[:function][@weights] (runs the file), or"
                " scheme:name"
            ),
        )
        add(
            "--backend",
            action="append",
            default=[],
            metavar="BACKEND",
            help="repeat for several, the preferred first (default: the only one)",
        )
        add(
            "--host-only",
            action="store_true",
            help="lower for no backend: all operators run on the host",
        )
        add("--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE")
        add(
            "-o",
            "--output",
            type=Path,
            metavar="FILE",
            help="file for the lowered program; the suffix chooses the format",
        )
        add(
            "--quantize",
            type=Path,
            metavar="CALIBRATION",
            help=(
                "quantize the model with the backend's quantizer; the .npz file has an"
                " array [batches, *shape] for each input"
            ),
        )
        add(
            "--verify",
            action="store_true",
            help="run the lowered program here and compare it with eager PyTorch",
        )
        add(
            "--verify-operators",
            action="store_true",
            help="as --verify, and list the operators with different results",
        )
        add(
            "--input",
            action="append",
            default=[],
            type=Path,
            metavar="FILE.npz",
            help=(
                "verify with the inputs in this file; repeat the flag to verify with"
                " several files"
            ),
        )
        add(
            "--tolerance",
            type=float,
            metavar="RATIO",
            help=(
                "accept differences up to RATIO times the largest value of eager's"
                " output (default: depends on the type, 1e-3 for float32)"
            ),
        )
        add(
            "--report",
            action="append",
            default=[],
            type=output_path,
            metavar="FILE",
            help=(
                "write the report; the suffix chooses the format: .txt, .json, or that"
                " of a plugin. Repeat the flag to write several files"
            ),
        )
        add(
            "-v",
            "--verbose",
            action="store_true",
            help="also show operators, border and time of each delegate",
        )
        add(
            "--require-full",
            action="store_true",
            help="fail if an operator runs on the host",
        )
        add_compiler_flags(parser)
        add(
            "--min-delegated",
            type=_share,
            metavar="SHARE",
            help="fail if a smaller share of the operators is delegated (0.95: 95%%)",
        )
        add(
            "--max-delegates",
            type=natural_number,
            metavar="N",
            help="fail if there are more than N delegates",
        )

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        """Check all arguments, then lower the MODEL. Raises UsageError and other errors
        for wrong arguments, and Failed if the work fails.
        """
        registry = default_registry()
        # all checks of arguments come first, because ``_attempt`` imports torch
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
            check = provided(f"{_QUANTIZING}:check_calibration", "--quantize")
            check(args.quantize, args.model, chosen.names)
        if args.output:
            _check_output(registry, chosen.names, args.output)
        # ``filter`` leaves out files that the user did not give
        outputs = [*args.report, *filter(None, [args.output])]
        inputs = [*args.input, *filter(None, [file, args.quantize])]
        # raises if an output cannot be written, or would overwrite another file
        expect_places(outputs, inputs)
        expect_report_formats(args.report)
        return _outcome(_attempt(model, args, chosen, options))


@dataclass
class Attempt(LoweringResult):
    """The results of ``delegraph lower`` so far; see LoweringResult for the other
    fields.

    ``bytes``: size of the file ``output``. ``reports``: paths of the written reports.
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
        """Return the text that is printed: the report, and the names of written
        files.
        """
        lines = []
        if self.report is not None:
            lines.append(TextReport.render(self).rstrip())
        if self.output is not None:
            lines.append(f"wrote {self.output} ({self.bytes} bytes)")
        # the user knows the path of a single report; some formats write several files
        if len(self.reports) > 1:
            lines.append(f"wrote {', '.join(self.reports)}")
        return "\n".join(lines)


def _is_given(value: Any) -> bool:
    """Return whether the user gave the argument with the parsed ``value``; 0 counts as
    given.
    """
    # ``value not in (None, False, [])`` would be wrong for 0, because 0 == False
    return value is not False and value not in (None, [])


def _outcome(result: Attempt) -> Outcome:
    """Return the outcome of the command. If ``result`` has an error, show its report
    on stderr and raise Failed.
    """
    if result.error is not None:
        # the text of these errors already has the reasons in the report
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
    """Lower the MODEL as ``args`` demand, and write the reports.

    ``chosen``: the backends, and the note for the report if the user named none.
    ``options``: backend -> its options. An exception ends the lowering and becomes
    ``error`` of the result; reports are still written. If lowering itself failed, only
    formats that report failures write a file (``write_report``).
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
    """Load, lower, verify and save the MODEL ``result.model``; put the results into
    ``result``. Raises the error of the first step that fails.
    """
    model = result.model
    backends = chosen.names
    with progress(f"loading {model}"):
        from ..api import lower

        loaded = read_model(model)
    notes = [chosen.why] if chosen.why else []
    if args.quantize:
        quantize_given = provided(f"{_QUANTIZING}:quantize_given", "--quantize")
        notes.append(quantize_given(loaded, args.quantize, backends[0]))
    with progress(f"lowering {model} for {', '.join(backends) or 'the host'}"):
        lowered = lower(
            **loaded.arguments(),
            backends=backends,
            options=options,
            compiler=chosen_compiler(args),
        )
    result.report = lowered.report
    result.report.notes += notes
    _check(result, lowered, loaded, args)
    if args.output:
        with progress(f"writing {args.output}"):
            file = FileFormat(args.output, default_registry())
            result.bytes = file.save(lowered, options={})
        result.output = args.output


def _check(
    result: Attempt, lowered: Any, loaded: Any, args: argparse.Namespace
) -> None:
    """Compare the lowered program with eager if --verify, --verify-operators or --input
    is given. Then check the gates: the flags in ``_GATES`` that the user gave.

    Stores the comparisons and the error of each gate (None if it passed) in ``result``.
    Checks all gates, so that the report has all errors, and then raises the first
    error. ``loaded``: the model, with its example inputs.
    """
    verifies = bool(args.verify or args.verify_operators or args.input)
    if verifies:
        with progress("comparing with eager"):
            result.verifications = {
                m: _verify(lowered, m, loaded, args) for m in lowered.methods
            }
    # --verify-operators and --input imply --verify
    values = vars(args) | {"verify": verifies}
    for name, check in _GATES.items():
        if _is_given(values[name.replace("-", "_")]):
            try:
                check(result, args)
                result.gates[name] = None
            except DelegraphError as e:
                result.gates[name] = e
    errors = [error for error in result.gates.values() if error is not None]
    if errors:
        raise errors[0]


def _verify(lowered: Any, method: str, loaded: Any, args: argparse.Namespace) -> Any:
    """Compare a method with eager PyTorch on the inputs of each --input; without that
    flag, on the model's example inputs.

    Returns a Verification. With several --input, it has the worst figures of each
    output over all files. ``loaded``: the model. Raises InputError if a file of --input
    does not fit, and if the model has no example inputs. --input also needs example
    inputs: the arrays of a file replace the tensors among them.
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
    # (arguments, keyword arguments) of each call to compare
    calls = [example]
    if args.input:
        calls = [read_inputs(path, method, program, example) for path in args.input]
    results = [
        lowered.verify(*a, method=method, per_operator=args.verify_operators, **k)
        for a, k in calls
    ]
    # the class is Verification; importing it at the top would import torch
    return type(results[0]).worst_of(results).within(args.tolerance)


def _expect_agreement(result: Attempt, args: argparse.Namespace) -> None:
    """Raise DelegraphError if a method's results differ from eager's by more than
    --tolerance accepts.

    Without --tolerance, each output has the tolerance of its type.
    """
    for method, verification in result.verifications.items():
        if not verification.agrees():
            within = "the tolerance of its type"
            if args.tolerance is not None:
                within = f"{args.tolerance:g}"
            which = f"method {method} of " if len(result.verifications) > 1 else ""
            text = (
                f"{which}the lowered program does not agree with eager PyTorch within"
                f" {within}; {verification}"
            )
            hint = (
                "nothing was written. Find the first operator that differs:"
                f" {_accuracy_command(args)} (add --ties if the model picks among equal"
                " elements). --tolerance accepts larger differences"
            )
            raise DelegraphError("verification-failed", text, hint=hint)


def _accuracy_command(args: argparse.Namespace) -> str:
    """Return the ``delegraph accuracy`` command that lowers with the same arguments and
    compares each operator with eager.
    """
    parts = ["delegraph", "accuracy", *args.model]
    for backend in args.backend:
        parts += ["--backend", backend]
    for option in args.option:
        parts += ["--option", option]
    for path in args.input:
        parts += ["--input", str(path)]
    return shlex.join(parts)


def _expect_delegated_share(result: Any, args: argparse.Namespace) -> None:
    """Raise DelegraphError if the delegated share of the operators is smaller than
    --min-delegated.
    """
    share = result.report.delegated_share
    wanted = args.min_delegated
    if share < wanted:
        raise DelegraphError(
            "gate-failed",
            f"{share:.1%} of the operators are delegated, but --min-delegated is"
            f" {wanted:.1%}",
            hint="the report says what was left to the host, and why",
        )


def _expect_few_delegates(result: Any, args: argparse.Namespace) -> None:
    """Raise DelegraphError if there are more delegates than --max-delegates."""
    count = len(result.report.delegates)
    if count > args.max_delegates:
        raise DelegraphError(
            "gate-failed",
            f"there are {count} delegates, and --max-delegates accepts"
            f" {args.max_delegates}",
            hint="the report says what lies between them, and why",
        )


_GATES: Mapping[str, Callable[[Any, argparse.Namespace], None]] = {
    "verify": _expect_agreement,
    "require-full": lambda result, args: result.report.expect_full(),
    "min-delegated": _expect_delegated_share,
    "max-delegates": _expect_few_delegates,
}
"""Flag -> function that raises an error if the Attempt does not meet the flag's demand.
Checked in this order.
"""


def _share(text: str) -> float:
    """Convert ``text`` to a number from 0 to 1, for argparse."""
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 1")
    return share


_share.__name__ = "share from 0 to 1"  # argparse shows this name in errors


def _choose_backends(registry: Registry, args: argparse.Namespace) -> DefaultBackends:
    """Return the backends of ``--backend``, or none for ``--host-only``. If neither flag
    is given, return the default backends for --option, --output and --quantize.

    Raises UsageError if both --backend and --host-only are given, and the errors of
    ``Registry.default_backends``.
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
        """Return whether programs of the backend can be saved as --output, and whether
        the backend has a quantizer if --quantize is given.
        """
        can_save = output is None or output.why_not([info.backend_id]) is None
        return can_save and (info.has_quantizer or not args.quantize)

    return registry.default_backends(assigned_backends(args.option), suits)


def _check_output(registry: Registry, backends: Sequence[str], output: Path) -> None:
    """Raise UsageError if programs that are lowered for these backends cannot be saved
    in the format of the file ``output``.
    """
    file_format = FileFormat(output, registry)
    # a format for writing defines one of these methods or both
    if not (file_format.defines("serialize") or file_format.defines("write")):
        raise UsageError(
            "usage-invalid",
            f"the format of {file_format.suffix} files does not support writing",
        )
    reason = file_format.why_not([registry.spec(name).backend_id for name in backends])
    if reason is not None:
        content = ", ".join(backends) or "what stays on the host"
        raise UsageError(
            "usage-invalid", f"{content} cannot be saved as {output.name!r}: {reason}"
        )

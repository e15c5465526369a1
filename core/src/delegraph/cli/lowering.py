"""``delegraph lower``. Everything that can be wrong with its arguments is found before torch is imported."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..command import terminal
from ..command.contract import parse_options
from ..command.inputs import read_inputs
from ..command.model import check_model, read_model
from ..command.outcome import Failed, Outcome, expect_file, expect_places, natural_number, output_path, progress
from ..discovery.defaults import DefaultBackends
from ..discovery.index import BackendInfo
from ..discovery.options import assigned_backends
from ..discovery.own import provided
from ..discovery.registry import Registry, default_registry
from ..errors import DelegraphError, InputError, NotFullyDelegated, UsageError
from ..host.files import FileFormat
from ..plugin import ReportSpec
from ..report.saving import declared_for, write_report
from .attempts import Attempt, attempt


class Lower:
    """``delegraph lower``."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("model", metavar="MODEL", nargs="+", help="a .pt2 file, path.py[:function] (this runs it), or scheme:name")
        preferred = "in order of preference (default: the only one)"
        add("--backend", action="append", default=[], metavar="BACKEND", help=preferred)
        add("--host-only", action="store_true", help="lower for no backend: everything stays on the host")
        add("--option", action="append", default=[], metavar="BACKEND.OPTION=VALUE")
        add("-o", "--output", type=Path, metavar="FILE", help="its suffix chooses the format, such as .tosa")
        calibrating = "quantize it with the backend's quantizer: an .npz file, one array [batches, *input] an input"
        add("--quantize", type=Path, metavar="CALIBRATION", help=calibrating)
        add("--verify", action="store_true", help="run it on this host and compare with eager PyTorch")
        add("--verify-operators", action="store_true", help="the same, and say which operators differ, and where")
        own = "verify with these inputs; each time it is given they are compared anew"
        add("--input", action="append", default=[], type=Path, metavar="FILE.npz", help=own)
        accepted = "difference from eager, by its largest value, that is accepted (default: by type, 1e-3 of float32)"
        add("--tolerance", type=float, metavar="RATIO", help=accepted)
        told = "write the report in the form of the suffix: .txt, .json, or one of a plugin; may be given several times"
        add("--report", action="append", default=[], type=output_path, metavar="FILE", help=told)
        add("-v", "--verbose", action="store_true", help="also operators, border and time of each delegate")
        add("--require-full", action="store_true", help="fail if an operator is left to the host")
        add("--no-fold-constants", action="store_true", help="leave calls on constants alone, if refused, to the host")
        kept = "keep compiled partitions in this folder, or in the user's, and compile none that is there"
        add("--cache", nargs="?", const=True, metavar="DIR", help=f"{kept} (default: $DELEGRAPH_CACHE)")
        add("--cache-remote", metavar="URL", help="also in this one, which others share, such as s3://bucket/folder")
        add("--min-delegated", type=_share, metavar="SHARE", help="fail if fewer operators are delegated, such as 0.95")
        add("--max-delegates", type=natural_number, metavar="N", help="fail if there are more delegates")
        rows = "with several MODELs: add a line of JSON for each; a MODEL that has one is not lowered again"
        add("--rows", type=Path, metavar="FILE", help=rows)

    @staticmethod
    def run(args: argparse.Namespace) -> Outcome:
        registry, several = default_registry(), None
        models = [check_model(model) for model in args.model]
        if len(args.model) > 1 or args.rows:
            of_several = provided("delegraph_analysis.commands.several:Several", "a table of several MODELs")
            several = of_several(args, [_name_of(model) for model in args.model])
        for path in args.input:
            expect_file(path)
        chosen = _choose_backends(registry, args)
        options = parse_options(chosen.names, args.option)
        if args.quantize:
            provided(f"{_QUANTIZING}:check_calibration", "--quantize")(args.quantize, args.model, chosen.names)
        if args.output:
            _check_output(registry, chosen.names, args.output)
        named = [*args.report, *filter(None, [args.output])]
        places = [_path_for_model(path, model) for path in named for model in args.model]
        read = [*filter(None, models), *args.input, *filter(None, [args.quantize])]
        expect_places([*places, *filter(None, [args.rows])], read)
        for path in args.report:
            registry.find(ReportSpec, declared_for(path))
        if several is None:
            return _outcome(_lower_one(args.model[0], args, chosen, options))
        table: Outcome = several.lower(chosen.names, options, lambda m: _lower_one(m, args, chosen, options).row())
        return table


_QUANTIZING = "delegraph_quantize.command"


def _is_given(value: Any) -> bool:
    """Whether an argument was given: ``--max-delegates 0`` was, although 0 equals the False of a flag that was not."""
    return value is not False and value not in (None, [])


def _outcome(one: Attempt) -> Outcome:
    """The outcome for a single MODEL. Raises Failed if it could not be lowered as was asked."""
    if one.error is not None:
        told = isinstance(one.error, NotFullyDelegated) or one.error.code == "verification-failed"
        if one.report is not None and not told:  # it says what stayed behind, and why
            terminal.tell(str(one.report))
        raise Failed(one.error, one.content())
    return Outcome("delegraph.lower/1", one.content(), one.text())


def _lower_one(
    model: str, args: argparse.Namespace, chosen: DefaultBackends, options: dict[str, dict[str, Any]]
) -> Attempt:
    """Do with one MODEL everything that was asked for.

    If there is a report, it is written whatever fails afterwards.
    """
    made, backends = Attempt(model, verbose=args.verbose), chosen.names
    with attempt(made):
        with progress(f"loading {model}"):
            from .. import Cache
            from ..api import Choices, lower

            given = read_model(model)
        notes = [chosen.why] if chosen.why else []
        if args.quantize:
            quantize_given = provided(f"{_QUANTIZING}:quantize_given", "--quantize")
            notes.append(quantize_given(given, args.quantize, backends[0]))
        with progress(f"lowering {model} for {', '.join(backends) or 'the host'}"):
            folds = not args.no_fold_constants
            cache = args.cache
            if args.cache_remote:
                folder = args.cache or os.environ.get("DELEGRAPH_CACHE")
                cache = Cache(None if folder is True else folder, remote=args.cache_remote)
            choices: Choices = {"backends": backends, "options": options, "fold_constants": folds, "cache": cache}
            lowered = lower(**given.arguments(), **choices)
        made.report = lowered.report
        made.report.notes += notes
        _check(made, lowered, given, args)
        if args.output:
            output = _path_for_model(args.output, model)
            with progress(f"writing {output}"):
                size = FileFormat(output, default_registry()).save(lowered, {})
            made.written = {"path": str(output), "bytes": size}
    for path in args.report:
        made.reports += map(str, write_report(made, _path_for_model(path, model)))
    return made


def _check(made: Attempt, lowered: Any, given: Any, args: argparse.Namespace) -> None:
    """Compare with eager and check all gates; raises the error of the first gate that is not met.

    All figures are computed before that, so that they are known whichever gate fails.
    """
    verifies = bool(args.verify or args.verify_operators or args.input)
    if verifies:
        with progress("comparing with eager"):
            made.verifications = {m: _verify(lowered, m, given, args) for m in lowered.methods}
    asked = vars(args) | {"verify": verifies}
    for name, check in _GATES.items():
        if _is_given(asked[name.replace("-", "_")]):
            try:
                check(made, args)
                made.gates[name] = None
            except DelegraphError as e:
                made.gates[name] = e
    for error in filter(None, made.gates.values()):
        raise error


def _verify(lowered: Any, method: str, given: Any, args: argparse.Namespace) -> Any:
    """The comparison of a method with eager, on the inputs of --input or on the example.

    Of several inputs the worst figures.
    """
    if given.inputs[method] is None:
        hint = "export the program with example inputs, or give a path.py that returns them"
        raise InputError("input-invalid", "--verify needs inputs, and this .pt2 file has none", hint=hint)
    example = (given.inputs[method], given.kwargs[method])
    program = lowered.exported_program(method)
    calls = [read_inputs(path, method, program, example) for path in args.input] or [example]
    found = [lowered.verify(*a, method=method, per_operator=args.verify_operators, **k) for a, k in calls]
    return type(found[0]).worst_of(found)


def _expect_agreement(made: Any, args: argparse.Namespace) -> None:
    """Raise an error if results differ from eager's by more than is accepted."""
    for method, verification in made.verifications.items():
        if not verification.agrees(args.tolerance):
            within = "the tolerance of its type" if args.tolerance is None else f"{args.tolerance:g}"
            what = f"method {method} of the lowered program" if len(made.verifications) > 1 else "the lowered program"
            text = f"{what} does not agree with eager PyTorch within {within}; {verification}"
            hint = "nothing was written; --verify-operators says where it begins, --tolerance what is accepted"
            raise DelegraphError("verification-failed", text, hint=hint)


def _expect_share(made: Any, args: argparse.Namespace) -> None:
    """Raise an error if fewer operators are delegated than --min-delegated asks for."""
    share, wanted = made.report.delegated_share, args.min_delegated
    if share < wanted:
        text = f"{share:.1%} of the operators are delegated, and --min-delegated asks for {wanted:.1%}"
        raise DelegraphError("gate-failed", text, hint="the report says what was left to the host, and why")


def _expect_few(made: Any, args: argparse.Namespace) -> None:
    """Raise an error if there are more delegates than --max-delegates accepts."""
    count = len(made.report.delegates)
    if count > args.max_delegates:
        text = f"there are {count} delegates, and --max-delegates accepts {args.max_delegates}"
        raise DelegraphError("gate-failed", text, hint="the report says what lies between them, and why")


_GATES: Mapping[str, Callable[[Any, argparse.Namespace], None]] = {
    "verify": _expect_agreement,
    "require-full": lambda made, args: made.report.expect_full(),
    "min-delegated": _expect_share,
    "max-delegates": _expect_few,
}
"""Flag -> function that raises an error if an Attempt does not meet what the flag asks for."""


def _share(text: str) -> float:
    """For argparse: a number from 0 to 1."""
    share = float(text)
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 1")
    return share


_share.__name__ = "share from 0 to 1"  # what argparse calls the value in its error


def _path_for_model(path: Path, model: str) -> Path:
    """The path to write to for this model: ``{}`` in the file's name stands for the model's name."""
    return path.with_name(path.name.replace("{}", _name_of(model))) if "{}" in path.name else path


def _name_of(model: str) -> str:
    """The name of a model: ``resnet18`` for ``models.py:resnet18`` and for ``resnet18.pt2``."""
    head, colon, function = model.rpartition(":")
    return function if colon and head.endswith(".py") else Path(model).stem


def _choose_backends(registry: Registry, args: argparse.Namespace) -> DefaultBackends:
    """The backends of ``--backend``, or those that ``delegraph.lower`` chooses among the ones that suit other flags."""
    if args.host_only:
        if args.backend:
            raise UsageError("usage-invalid", "--host-only and --backend exclude each other")
        return DefaultBackends([], "")
    if args.backend:
        return DefaultBackends(list(args.backend), "")
    output = FileFormat(args.output, registry) if args.output else None

    def suits(info: BackendInfo) -> bool:
        holds = output is None or output.why_not([info.backend_id]) is None
        return holds and (info.has_quantizer or not args.quantize)

    return registry.default_backends(assigned_backends(args.option), suits)


def _check_output(registry: Registry, backends: Sequence[str], output: Path) -> None:
    """Raise UsageError if what is lowered for these backends cannot be saved as ``output``."""
    file_format = FileFormat(output, registry)
    if not file_format.defines("serialize") and not file_format.defines("write"):
        raise UsageError("usage-invalid", f"the format of {file_format.suffix} files cannot be written")
    reason = file_format.why_not([registry.spec(name).backend_id for name in backends])
    if reason is not None:
        what = ", ".join(backends) or "what stays on the host"
        raise UsageError("usage-invalid", f"{what} cannot be saved as {output.name!r}: {reason}")

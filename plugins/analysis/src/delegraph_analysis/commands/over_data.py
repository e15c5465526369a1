"""``delegraph accuracy --data``: each backend over data, in the metric of a task."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delegraph import default_registry
from delegraph.command import (
    Outcome,
    check_model,
    chosen_compiler,
    expect_places,
    output_path,
    parse_options,
    progress,
    provided,
    read_model,
    read_object,
)
from delegraph.errors import InputError, UsageError

if TYPE_CHECKING:
    from delegraph import LoweredProgram

    from ..over_data.scores import VerificationOverData

_QUANTIZING = "delegraph_quantize.command"
"""The module of another distribution that quantizes."""


def add_data_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a comparison over data."""
    add = parser.add_argument_group("over data").add_argument
    data = (
        "score each backend alone on these samples: a folder of pictures or .npz files,"
        " an .npz file with a row for each sample, or an iterable in a Python file"
        " (this runs the file)"
    )
    add("--data", metavar="FOLDER|FILE.npz|FILE.py:NAME", help=data)
    metric = (
        "a function of the outputs of a sample and its label (this runs the file),"
        " top1 or agreement (default: agreement with eager)"
    )
    add("--metric", metavar="FILE.py:NAME", help=metric)
    add(
        "--quantize",
        type=Path,
        metavar="CALIBRATION",
        help="quantize first, as lower --quantize does; the model in floats is eager",
    )
    add(
        "--resume",
        type=output_path,
        metavar="FILE",
        help="keep the outputs of backends there; an interrupted run continues",
    )
    add(
        "--max-loss",
        type=float,
        metavar="LOSS",
        help="fail if the mean of a backend is lower than that of eager by more",
    )


def expect_no_data_flags(args: argparse.Namespace) -> None:
    """Raise UsageError for a flag that needs ``--data``."""
    for name in ("metric", "quantize", "resume", "max_loss"):
        if getattr(args, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                "usage-invalid", f"{flag} needs --data, which has the samples"
            )


def run_over_data(args: argparse.Namespace) -> Outcome:
    """Score eager, the quantized program and each backend on each sample."""
    from ..over_data.files import check_data, read_files
    from ..over_data.store import OutputStore

    backends = args.backend or list(default_registry().default_backends().names)
    _check_flags(args, backends)
    samples = check_data(args.data)
    metric = _metric(args.metric)
    with progress(f"loading {args.model}"):
        given = read_model(args.model)
    if list(given.programs) != ["forward"] or given.inputs["forward"] is None:
        text = "--data takes a model with the method forward and example inputs"
        raise InputError("input-invalid", text)
    model = None
    note = ""
    if args.resume:
        OutputStore(args.resume)  # raises WriteError if it is a file of another kind
    if args.quantize:
        model = given.programs["forward"]
        quantize = provided(f"{_QUANTIZING}:quantize_given", "--quantize")
        note = quantize(given, args.quantize, backends[0])
    lowered = _lower_alone(args, given, backends)
    from ..over_data.samples import Signature
    from ..over_data.verifying import verify_over

    if samples is None:
        first = next(iter(lowered.values()))
        signature = Signature.of(first.exported_program("forward"))
        example = signature.named(given.inputs["forward"], given.kwargs["forward"])
        samples = read_files(Path(args.data), signature, example)
    with progress(f"scoring {', '.join(lowered)}"):
        found = verify_over(lowered, samples, metric, model=model, store=args.resume)
    for path in args.report:
        found.save(path)
    return _outcome(found, args.max_loss, note)


def _check_flags(args: argparse.Namespace, backends: Sequence[str]) -> None:
    """Raise the errors of flags and files that need no model."""
    from ..over_data.scores import check_suffix

    if args.input or args.ties:
        text = "--input and --ties compare operators; --data has the samples"
        raise UsageError("usage-invalid", text)
    for path in args.report:
        check_suffix(path)
    if args.quantize:
        check = provided(f"{_QUANTIZING}:check_calibration", "--quantize")
        check(args.quantize, [args.model], backends)
    read = [*filter(None, [check_model(args.model), args.quantize])]
    for text in filter(None, [args.data, args.metric]):
        read.append(Path(text.rpartition(":")[0] or text))
    expect_places([*args.report, *filter(None, [args.resume])], read)


def _lower_alone(
    args: argparse.Namespace, given: Any, backends: Sequence[str]
) -> dict[str, LoweredProgram]:
    """Return the model, lowered for each backend alone, by the name of the backend."""
    options = parse_options(backends, args.option)
    lowered = {}
    for backend in dict.fromkeys(backends):
        with progress(f"lowering {args.model} for {backend}"):
            from delegraph import lower

            lowered[backend] = lower(
                **given.arguments(),
                backends=[backend],
                options={k: v for k, v in options.items() if k == backend},
                compiler=chosen_compiler(args),
            )
    return lowered


def _metric(text: str | None) -> Callable[[Any, Any], Any] | str | None:
    """Return the metric that ``--metric`` names."""
    if text is None or ":" not in text:
        return text
    found = read_object(text)
    if not callable(found):
        raise UsageError(
            "usage-invalid", f"{text} is a {type(found).__name__}, not a function"
        )
    metric: Callable[[Any, Any], Any] = found
    return metric


def _outcome(found: VerificationOverData, max_loss: float | None, note: str) -> Outcome:
    """Return the scores; the exit code is 1 if a backend loses too much.

    ``note``: the text about the quantization; "" without one.
    """
    text = "\n".join(filter(None, [note, found.to_text()]))
    if any(row.name == "quantized" and row.loss > 0 for row in found.summary()):
        text += (
            "\ndelegraph_quantize.recover_accuracy finds the calls that lose this when"
            " they are quantized"
        )
    lost = []
    if max_loss is not None:
        lost = [row for row in found.summary() if not row.loss <= max_loss]
    for row in lost:
        text += f"\n{row.name} loses {row.loss:.3g}, and --max-loss accepts {max_loss}"
    return Outcome(
        "delegraph.accuracy-over-data/1", found.to_json(), text, 1 if lost else 0
    )

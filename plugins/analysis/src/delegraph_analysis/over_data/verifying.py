"""Run eager PyTorch and lowered programs on each sample, and score their outputs."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import length_hint
from typing import Any, NamedTuple

import torch
from delegraph import LoweredProgram
from delegraph.errors import DelegraphError, InputError
from delegraph.host import call_of_model
from delegraph_programs import TRACING
from delegraph_programs.export_module import expect_no_training
from delegraph_programs.type_aliases import Program
from torch.export import ExportedProgram

from .metrics import Metric, ScoredMetric
from .pictures import picture_of
from .samples import Sample, Signature, series_of
from .scores import SampleScores, VerificationOverData
from .store import OutputStore

LOG = logging.getLogger("delegraph.progress")


class Column(NamedTuple):
    """A program to compare: its name, and a function that calls it with one sample."""

    name: str
    call: Callable[[Sample], Any]


def verify_over(
    lowered: LoweredProgram | Mapping[str, LoweredProgram],
    data: Iterable[Any],
    metric: Metric | str | None = None,
    *,
    model: Program | None = None,
    method: str | None = None,
    store: str | os.PathLike[str] | None = None,
) -> VerificationOverData:
    """Score eager PyTorch and lowered programs on each sample of a data set.

    ``lowered``: one program, or several by name, all of one model. ``data``: samples:
    an iterable, such as a DataLoader, or a map-style data set. A sample is a tensor, a
    tuple of the inputs, or a dict of the inputs by name. The label is one more value of
    the tuple, or the key ``"label"``, ``"labels"`` or ``"y"`` of the dict. Inputs
    without the size of the batch get a size of 1.

    ``metric``: a function of the outputs of a sample and its label. It returns a
    number, larger for better outputs. A sample without a label gives it the outputs of
    eager. ``"top1"`` compares classes, ``"agreement"`` (the default) all numbers with
    those of eager.

    ``model``: the model in floats, if ``lowered`` was made from a quantized program;
    the columns are then eager, the quantized program and the lowered ones. If it has a
    method of the name ``method``, this is called in place of ``forward``. ``method``:
    by default the only one, or "forward". ``store``: a file that gets the outputs of
    the lowered programs; a second run takes them from there. Progress goes to the
    logger ``delegraph.progress``.

    Each call starts from the initial state of buffers. Sample k has the random seed k.
    Raises InputError for data or a metric that do not fit, NoRuntime, and WriteError
    for ``store``. Errors name the sample.
    """
    programs = {"lowered": lowered} if isinstance(lowered, LoweredProgram) else lowered
    if not programs:
        raise InputError(
            "input-invalid",
            "programs is an empty mapping; it must have a lowered program to verify",
        )
    first = next(iter(programs.values()))
    chosen = first.chosen_method(method)
    scored = ScoredMetric.of(metric)
    columns = _reference_columns(first, chosen, model)
    output_store = None if store is None else OutputStore(store)
    for name, program in programs.items():
        call: Callable[[Sample], Any] = partial(_call_lowered, program, chosen)
        if output_store is not None:
            call = output_store.remembering(program, chosen, call)
        columns.append(Column(name, call))
    names = tuple(column.name for column in columns)
    if len({*names}) != len(names):
        text = f"two columns have one name: {', '.join(names)}"
        raise InputError("input-invalid", text, hint="give the program another name")
    found = VerificationOverData(names, scored.name)
    signature = Signature.of(first.exported_program(chosen))
    for sample in _samples(data, signature):
        row = SampleScores(sample.index, _scores(columns, sample, scored))
        found.add(row, partial(picture_of, sample))
    if not found.samples:
        raise InputError(
            "input-invalid", "data is empty; it must have at least one sample"
        )
    return found


def _samples(data: Iterable[Any], signature: Signature) -> Iterator[Sample]:
    """Yield the samples, and log progress."""
    total = f" of {length_hint(data)}" if length_hint(data) else ""
    iterator = iter(series_of(data))
    end = object()
    index = 0
    while True:
        with _named(f"sample {index}"):
            given = next(iterator, end)
            if given is end:
                return
            sample = signature.sample(given, index)
        LOG.info("sample %d%s", index + 1, total)
        yield sample
        index += 1


@contextmanager
def _named(work: str) -> Iterator[None]:
    """Add ``work`` to errors from a ``with`` block, such as "sample 3, tosa"."""
    try:
        yield
    except DelegraphError as e:
        e.message = f"{work}: {e.message}"
        raise
    except Exception as e:  # of the user's data, or of an operator
        e.add_note(work)
        raise


def _reference_columns(
    first: LoweredProgram, method: str, model: Program | None
) -> list[Column]:
    """Return the columns before those of lowered programs.

    They are eager PyTorch, or ``model`` and then the quantized program in eager PyTorch.
    """

    def call_eager(sample: Sample) -> Any:
        with call_of_model(method):
            return first.run_eager(sample.args, sample.kwargs, method=method)

    if model is None:
        return [Column("eager", call_eager)]
    name = "forward"
    if isinstance(model, ExportedProgram):
        model = model.module(check_guards=False)
    else:
        expect_no_training(model)
        if _defines(model, method):
            name = method
    return [
        Column("eager", partial(_call_model, MethodOf(model, name))),
        Column("quantized", call_eager),
    ]


def _defines(model: torch.nn.Module, method: str) -> bool:
    """Return whether a model has a method that is not inherited from Module."""
    if not hasattr(model, method):
        return False
    inherited = getattr(torch.nn.Module, method, None)
    return inherited is None or getattr(type(model), method) is not inherited


class MethodOf(torch.nn.Module):
    """A module that calls a method of a model, for ``functional_call``."""

    def __init__(self, model: torch.nn.Module, method: str) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.method == "forward":
            return self.model(*args, **kwargs)  # with its hooks
        return getattr(self.model, self.method)(*args, **kwargs)


def _call_model(model: MethodOf, sample: Sample) -> Any:
    """Call the model with copies of its buffers, so that it stays in its first state."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    args, kwargs = copy.deepcopy((sample.args, sample.kwargs))
    with call_of_model(model.method), TRACING, torch.no_grad():
        return torch.func.functional_call(model, buffers, args, kwargs)


def _call_lowered(lowered: LoweredProgram, method: str, sample: Sample) -> Any:
    """Call a lowered program in its initial state."""
    args, kwargs = copy.deepcopy((sample.args, sample.kwargs))
    return lowered.instance().method(method)(*args, **kwargs)


def _scores(
    columns: list[Column], sample: Sample, metric: ScoredMetric
) -> tuple[float, ...]:
    """Return the score of each column for one sample."""
    scores: list[float] = []
    expected = None
    for column in columns:
        with (
            _named(f"sample {sample.index}, {column.name}"),
            torch.random.fork_rng(devices=[]),
        ):
            # all columns draw the same numbers, also in a run that continues
            torch.default_generator.manual_seed(sample.index)
            outputs = column.call(sample)
            if not scores:  # the first column is eager
                expected = outputs
            scores.append(metric.score(outputs, sample.label, expected))
    return tuple(scores)

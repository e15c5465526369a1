"""Run eager PyTorch and lowered programs on each sample, and score their outputs."""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial
from typing import Any, NamedTuple

import torch
from delegraph import LoweredProgram
from delegraph.errors import InputError
from delegraph.host import call_of_model
from delegraph_programs import TRACING
from delegraph_programs.argument_types import Program
from torch.export import ExportedProgram

from .metrics import Metric, ScoredMetric
from .pictures import picture_of
from .samples import Sample, Signature
from .scores import SampleScores, VerificationOverData
from .store import ScoreStore, identify

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

    ``lowered``: one program, or several by name, all of one model. ``data``: samples. A
    sample is a tensor, a tuple of the inputs, or a dict of the inputs by name. The
    label is one more value of the tuple, or the key ``"label"`` of the dict.

    ``metric``: a function of the outputs of a sample and its label. It returns a
    number, larger for better outputs. A sample without a label gives it the outputs of
    eager. ``"top1"`` compares classes, ``"agreement"`` (the default) all numbers with
    those of eager.

    ``model``: the model in floats, if ``lowered`` was made from a quantized program;
    the columns are then eager, the quantized program and the lowered ones. ``method``:
    by default the only one, or "forward". ``store``: a file that gets the scores of
    each sample; a second run takes them from there. Progress goes to the logger
    ``delegraph.progress``.

    Each call starts from the initial state of buffers, with the same random seed.
    Raises InputError for data or a metric that do not fit, and NoRuntime.
    """
    programs = {"lowered": lowered} if isinstance(lowered, LoweredProgram) else lowered
    if not programs:
        raise InputError("input-invalid", "there is no lowered program to verify")
    first = next(iter(programs.values()))
    chosen = _chosen_method(first, method)
    scored = ScoredMetric.of(metric)
    columns = _columns(programs, chosen, model)
    names = tuple(column.name for column in columns)
    scores = ScoreStore(store)
    programs_key = ""
    if store is not None:
        text = f"{chosen}\n{names}\n{scored.identity}"
        programs_key = identify(programs, chosen, text)
    found = VerificationOverData(names, scored.name)
    signature = Signature.of(first.exported_program(chosen))
    for index, given in _counted(data):
        sample = signature.sample(given, index)
        key = ""
        if store is not None:
            both = f"{programs_key}{sample.digest()}"
            key = hashlib.sha256(both.encode()).hexdigest()
        row = scores.find(key)
        if row is None:
            row = _scores(columns, sample, scored, index)
            scores.add(key, row)
        found.add(SampleScores(index, tuple(row)), partial(picture_of, sample))
    if not found.samples:
        raise InputError("input-invalid", "the data has no sample")
    return found


def _counted(data: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the samples with their numbers, and log progress."""
    if isinstance(data, (torch.Tensor, str, bytes, Mapping)) or not isinstance(
        data, Iterable
    ):
        text = f"the data must be a series of samples, not {type(data).__name__}"
        raise InputError("input-invalid", text, hint="[(x, label), ...]")
    total = f" of {len(data)}" if isinstance(data, Sized) else ""
    for index, given in enumerate(data):
        LOG.info("sample %d%s", index + 1, total)
        yield index, given


def _chosen_method(lowered: LoweredProgram, method: str | None) -> str:
    if method is not None:
        lowered.method(method)  # raises for an unknown name
        return method
    if "forward" in lowered.methods or len(lowered.methods) != 1:
        return "forward"
    return lowered.methods[0]


def _columns(
    programs: Mapping[str, LoweredProgram], method: str, model: Program | None
) -> list[Column]:
    """Return eager PyTorch, then the quantized program if there is one, then all
    lowered programs.
    """
    first = next(iter(programs.values()))

    def call_eager(sample: Sample) -> Any:
        return first.run_eager(sample.args, sample.kwargs, method=method)

    columns = [Column("eager", call_eager)]
    if model is not None:
        columns = [
            Column("eager", partial(_call_model, _module(model))),
            Column("quantized", call_eager),
        ]
    for name, lowered in programs.items():
        columns.append(Column(name, partial(_call_lowered, lowered, method)))
    return columns


def _module(model: Program) -> torch.nn.Module:
    if isinstance(model, ExportedProgram):
        return model.module(check_guards=False)
    return model


def _call_model(model: torch.nn.Module, sample: Sample) -> Any:
    """Call the model; buffers that it writes are copies."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    args, kwargs = copy.deepcopy((sample.args, sample.kwargs))
    with TRACING, torch.no_grad():
        return torch.func.functional_call(model, buffers, args, kwargs)


def _call_lowered(lowered: LoweredProgram, method: str, sample: Sample) -> Any:
    """Call a lowered program in its initial state."""
    args, kwargs = copy.deepcopy((sample.args, sample.kwargs))
    return lowered.instance().method(method)(*args, **kwargs)


def _scores(
    columns: list[Column], sample: Sample, metric: ScoredMetric, index: int
) -> list[float]:
    """Return the score of each column for one sample."""
    eager, *others = columns
    seed = torch.get_rng_state()
    with call_of_model(f"{eager.name}, sample {index}"):
        expected = eager.call(sample)
    scores = [metric.score(expected, sample.label, expected)]
    for column in others:
        torch.set_rng_state(seed)
        outputs = column.call(sample)
        scores.append(metric.score(outputs, sample.label, expected))
    return scores

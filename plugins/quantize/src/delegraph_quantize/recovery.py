"""``recover_accuracy``: finds calls that have to stay in floats for a task's score.

The search tries choices. A choice is a list of items of ``floats``, such as a line
("net.py:31"), a module or the name of a call. Its noise is the sum of the errors that
each tensor that is still quantized causes in the outputs. Its work is the share of multiplications that
it moves to floats, and its price is the work, with a minimum for each item.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from delegraph import Registry, default_registry
from delegraph.errors import InputError
from delegraph.io.escape_for_terminal import table
from delegraph_engines import quietly
from delegraph_programs import TRACING
from delegraph_programs.type_aliases import Program
from torch.export import ExportedProgram
from torch.fx import GraphModule

from .calibration import Batch, checked
from .float_calls import (
    CallPlace,
    call_places,
    calls_in_floats,
    leave_calls_in_floats,
    select,
)
from .flow import (
    Calibrated,
    argument_names,
    calibrate_program,
    convert,
    module_of,
    quantize,
    quantizer_of,
    written_buffers,
)
from .sensitivity import TensorLoss, tensor_losses, work_of_calls
from .task_program import Call, TaskProgram
from .unscaled import bodies, observer_calls

Task = Callable[[torch.nn.Module], float]
"""Runs a program on the user's data and returns a score, larger if it is better."""

ENOUGH = 0.95
"""The share of the recoverable score at which the search looks for fewer calls."""
_LEAST_PRICE = 0.02
"""The part of an item's price that does not depend on its work."""
_FEW_BITS = 4.0
"""Bits of information below which a tensor is suspected, whatever its noise."""
_SMALL_WORK = 0.1
"""The largest share of the work of a call that is suspected without a measured noise."""
_MOST_WORK = 0.75
"""The largest share of the work that a tried choice leaves in floats."""
_SHARES = (0.1, 0.01)
"""The search first looks for items that leave a tenth of the noise, then a hundredth."""
_FEW_CALLS = 20
"""The most calls of a module or line for which each call is an item of its own."""


@dataclass(frozen=True)
class Trial:
    """One evaluation of the task: items of ``floats``, and the score with them.

    ``work``: the share that ``floats`` leaves in floats of all multiplications of
    quantized calls.
    """

    floats: tuple[str, ...]
    score: float
    work: float


@dataclass(frozen=True)
class Recovery:
    """Calls to leave in floats, and the scores that led to them.

    ``program``: quantized with ``floats``. ``eager``, ``integers`` and ``score``: the
    scores of the model, of the program with all calls quantized, and of ``program``.
    ``trials``: all evaluations of quantized programs. ``losses``: the tensors, the one
    with most noise first. ``places``: the calls of the exported program by name.
    ``arguments``: other arguments of ``quantize`` for this program, as code.
    """

    program: ExportedProgram
    floats: tuple[str, ...]
    eager: float
    integers: float
    score: float
    trials: tuple[Trial, ...]
    losses: tuple[TensorLoss, ...]
    places: Mapping[str, CallPlace]
    arguments: tuple[str, ...] = ()

    def code(self) -> str:
        """Return Python that quantizes with these calls in floats.

        It calls the program ``model`` and the calibration batches ``batches``. Other
        objects that you passed, such as a quantizer, have the names of their parameters.
        """
        lines = ["quantized = delegraph.quantize(", "    model,", "    batches,"]
        lines += [f"    {argument}," for argument in self.arguments]
        if self.floats:
            lines.append("    floats=[")
            lines += [f"        {json.dumps(item)}," for item in self.floats]
            lines.append("    ],")
        else:
            lines.append("    floats=[],")
        return "\n".join([*lines, ")"])

    def to_text(self, count: int = 10) -> str:
        """Return the scores, the code to paste, and the worst ``count`` tensors."""
        lines = [
            f"eager {self.eager:.6g}, all in integers {self.integers:.6g}, with"
            f" {len(self.floats)} items in floats {self.score:.6g} (after"
            f" {len(self.trials) + 1} evaluations)",
            "",
            self.code(),
            "",
        ]
        trials = [("SCORE", "WORK IN FLOATS", "FLOATS")]
        for trial in self.trials:
            items = ", ".join(trial.floats) or "none"
            trials.append((f"{trial.score:.6g}", f"{trial.work:.0%}", items))
        lines += [table(trials), ""]
        rows = [("LAYER", "OPERATOR", "AT", "SNR dB", "BITS", "NOISE OF OUTPUTS")]
        for loss in self.losses[:count]:
            place = self.places[loss.layer]
            name = f"weight of {loss.layer}" if loss.is_weight else loss.layer
            where = place.line or place.module
            figures = f"{loss.snr:.1f}", f"{loss.bits:.1f}", f"{loss.noise:.2g}"
            rows.append((name, place.operator, where, *figures))
        return "\n".join([*lines, table(rows)])

    def __str__(self) -> str:
        return self.to_text()


def recover_accuracy(
    program: Program,
    calibration_batches: Iterable[Any],
    task: Task,
    *,
    evaluations: int = 10,
    backend: str | None = None,
    quantizer: Any = None,
    dynamic_shapes: Any = None,
    registry: Registry | None = None,
) -> Recovery:
    """Find the calls that have to stay in floats for the score of a task.

    ``task`` gets the model, then quantized programs, each as a module that is called
    like the model. It runs them on your data and returns a score, larger if it is
    better. NaN is the worst score. It is called at most ``evaluations`` times, at least
    three. Without ``dynamic_shapes``, it calls the module with the shapes of the
    calibration batches.

    The calls are ranked by measurements on the calibration batches: the noise of the
    outputs if one tensor alone is quantized, and the information that its integers
    keep. Cheap calls come before convolutions and products. The other parameters and
    the errors are those of ``quantize``. Raises also InputError if the task returns no
    number, or NaN or minus infinity for the model itself.
    """
    if evaluations < 3:
        text = f"recover_accuracy needs at least 3 evaluations, not {evaluations}"
        raise InputError("input-invalid", text)
    if not callable(task):
        text = f"the task must be a function of a program, not {task!r:.60}"
        hint = "def task(program): return a score, larger if it is better"
        raise InputError("input-invalid", text, hint=hint)
    registry = registry or default_registry()
    given, _ = checked(
        program, calibration_batches, dynamic_shapes is not None, finite=False
    )
    batches = list[Batch](given)
    chosen = quantizer_of(backend, registry) if quantizer is None else quantizer
    calibrated = calibrate_program(
        program, batches, chosen, dynamic_shapes, None, registry
    )
    _fix_scales(calibrated.module)
    buffers = written_buffers(calibrated.exported)
    losses = tensor_losses(calibrated.module, batches, buffers)
    call = Call(batches[0], argument_names(program), dynamic_shapes is not None)
    search = _Search(calibrated, _Items(calibrated, losses), task, call)
    for _ in range(evaluations - 1):
        choice = search.next_choice()
        if choice is None:
            break
        search.evaluate(choice)
    best = search.best()
    arguments = {
        "backend": backend,
        "quantizer": quantizer,
        "dynamic_shapes": dynamic_shapes,
        "registry": registry,
    }
    return Recovery(
        program=quantize(program, batches, floats=best.floats, **arguments),
        floats=best.floats,
        eager=search.eager,
        integers=search.trials[0].score,
        score=best.score,
        trials=tuple(search.trials),
        losses=tuple(sorted(losses, key=lambda loss: -loss.noise)),
        places=search.items.places,
        arguments=tuple(_arguments_as_code(arguments)),
    )


def _fix_scales(prepared: GraphModule) -> None:
    """Compute the scales of observers once, because each trial needs them.

    An observer may search for its scale.
    """
    for body in bodies(prepared):
        for call in observer_calls(body):
            observer: Any = body.get_submodule(str(call.target))
            # torchao's observer of a bias follows from those of the operands
            if not hasattr(observer, "obs_or_fqs"):
                parameters = observer.calculate_qparams()
                observer.calculate_qparams = partial(_unchanged, parameters)


def _unchanged(value: Any) -> Any:
    """Return ``value``. Unlike a lambda, its ``partial`` is copied with the program."""
    return value


def _arguments_as_code(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments that differ from their defaults, such as ``backend="tosa"``.

    An object has the name of its parameter: ``quantizer=quantizer``.
    """
    for name, value in arguments.items():
        if name == "registry" and value is default_registry():
            continue
        if isinstance(value, str):
            yield f"{name}={json.dumps(value)}"
        elif value is not None:
            yield f"{name}={name}"


class _Items:
    """All items that choices are made of, each with the calls that it selects.

    ``calls``: item -> names of the quantized calls that it leaves in floats.
    ``by_call``: quantized call -> the item of it. ``losses``: all quantized tensors.
    """

    def __init__(self, calibrated: Calibrated, losses: Sequence[TensorLoss]) -> None:
        self.places = call_places(calibrated.exported)
        self.losses = losses
        self.total = sum(loss.noise for loss in losses)
        self.work = work_of_calls(calibrated.module, calibrated.first)
        self.calls: dict[str, set[str]] = {}
        self.by_call: dict[str, str] = {}
        # calls without quantized tensors are in floats anyway
        self.quantized = set().union(*(loss.calls for loss in losses))
        self.all_work = max(sum(self.work[name] for name in self.quantized), 1)
        for name in self.places:
            if name not in self.quantized:
                continue
            item = self._item_of(name)
            self.by_call[name] = item
            if item not in self.calls:
                self.calls[item] = self.quantized & calls_in_floats(
                    calibrated.module,
                    calibrated.exported,
                    select(self.places, item),
                )

    def _item_of(self, name: str) -> str:
        """Return the item that selects a call: its module, its line, or its name.

        It is the module if that is one of torch's, such as ``nn.Conv2d``, else the
        line. Exception: if that item also selects a convolution or a product, or all
        quantized calls, it is too expensive, and the name is taken.
        """
        place = self.places[name]
        item = place.line or name
        if place.of_torch and place.module:
            item = place.module
        calls = select(self.places, item)
        has_work = any(self.work[call] for call in calls)
        is_expensive = has_work or calls >= self.quantized
        if is_expensive and 1 < len(calls) <= _FEW_CALLS:
            return name
        return item

    def items_of(self, loss: TensorLoss) -> list[str]:
        """Return the items that select all calls that make or take a tensor."""
        return list(dict.fromkeys(self.by_call[name] for name in loss.calls))

    def in_floats(self, items: Iterable[str]) -> set[str]:
        """Return the names of the calls that items leave in floats."""
        return set().union(*(self.calls[item] for item in items))

    def work_of(self, items: Iterable[str]) -> float:
        """Return the share of the work that items leave in floats."""
        return sum(self.work[name] for name in self.in_floats(items)) / self.all_work

    def price_of(self, items: Sequence[str]) -> float:
        """Return the price of a choice, which rises with work and number of items."""
        return _LEAST_PRICE * len(items) + self.work_of(items)

    def quantized_with(self, items: Iterable[str]) -> list[TensorLoss]:
        """Return the tensors that are still quantized with ``items`` in floats."""
        floats = self.in_floats(items)
        return [loss for loss in self.losses if not floats.issuperset(loss.calls)]

    def noise_with(self, items: Iterable[str]) -> float:
        """Return the noise of the tensors of ``quantized_with``."""
        return sum(loss.noise for loss in self.quantized_with(items))

    def by_noise(self, share: float, chosen: list[str]) -> list[str]:
        """Return ``chosen`` with items added until little noise is left.

        At most ``share`` of all noise may be left. Each step adds the items of one
        tensor: those that remove most noise for the price that they add.
        """
        while self.noise_with(chosen) > share * self.total:
            longer = [[*chosen, *self._addition(loss, chosen)] for loss in self.losses]
            gains = [self._gain(chosen, choice) for choice in longer]
            best = max(gains)
            if best <= 0:
                break
            chosen = longer[gains.index(best)]
        return chosen

    def _gain(self, chosen: Sequence[str], longer: Sequence[str]) -> float:
        """Return the removed noise of a longer choice, divided by its additional price.

        It is 0 for a choice that leaves too much in floats.
        """
        if len(longer) == len(chosen) or not self.is_small(longer):
            return 0.0
        removed = self.noise_with(chosen) - self.noise_with(longer)
        return removed / (self.price_of(longer) - self.price_of(chosen))

    def _addition(self, loss: TensorLoss, chosen: Sequence[str]) -> list[str]:
        """Return the items that ``chosen`` lacks so that a tensor stays in floats."""
        return [item for item in self.items_of(loss) if item not in chosen]

    def is_small(self, items: Sequence[str]) -> bool:
        """Return whether most of the work, and some tensor, stay in integers."""
        return self.work_of(items) <= _MOST_WORK and bool(self.quantized_with(items))

    def suspects(self) -> list[str]:
        """Return cheap items that may matter to a task although their noise is small.

        Their tensors are outputs, where rounding makes different values equal, or
        their integers keep few bits.
        """
        chosen = list[str]()
        for loss in sorted(self.losses, key=lambda loss: loss.bits):
            has_few_bits = loss.bits < _FEW_BITS and not loss.is_weight
            if not loss.is_output and not has_few_bits:
                continue
            for item in self._addition(loss, chosen):
                is_cheap = self.work_of([item]) <= _SMALL_WORK
                if is_cheap and self.is_small([*chosen, item]):
                    chosen.append(item)
        return chosen


class _Search:
    """The evaluations so far, and the choice to try next.

    ``scores``: the items of each tried choice -> its score. ``choices`` is a generator:
    it reads the scores of earlier choices when the next one is needed.
    """

    def __init__(
        self, calibrated: Calibrated, items: _Items, task: Task, call: Call
    ) -> None:
        self.calibrated = calibrated
        self.items = items
        self.task = task
        self.call = call
        self.trials: list[Trial] = []
        self.scores: dict[frozenset[str], float] = {}
        self.eager = self._score(module_of(calibrated.exported))
        if math.isnan(self.eager) or self.eager == -math.inf:
            text = f"the task returns {self.eager} for the model itself"
            hint = "return a finite score, larger if it is better"
            raise InputError("input-invalid", text, hint=hint)
        self.choices = self._choices()

    def _score(self, program: GraphModule) -> float:
        """Run the task on ``program``; InputError if its result is no number."""
        with torch.no_grad():
            score = self.task(TaskProgram(program, self.call))
        try:
            return float(score)
        except (TypeError, ValueError, RuntimeError) as e:
            text = f"the task must return a number; it returned {score!r:.60}"
            hint = "return a score, larger if it is better"
            raise InputError("input-invalid", text, hint=hint) from e

    def evaluate(self, floats: Sequence[str]) -> None:
        """Evaluate the task with items in floats."""
        with TRACING, quietly():
            prepared = copy.deepcopy(self.calibrated.module)
            for body in bodies(prepared):
                for node in body.graph.nodes:
                    # annotations refer to calls of the original graph
                    node.meta.pop("quantization_annotation", None)
            if floats:
                leave_calls_in_floats(prepared, self.items.in_floats(floats))
            module = convert(prepared, self.calibrated.exported)
        score = self._score(module)
        score = -math.inf if math.isnan(score) else score
        self.scores[frozenset(floats)] = score
        self.trials.append(Trial(tuple(floats), score, self.items.work_of(floats)))

    def best(self) -> Trial:
        """Return the cheapest trial whose score is nearly the best."""
        least = self._enough(max(trial.score for trial in self.trials))
        enough = [trial for trial in self.trials if trial.score >= least]
        return min(
            enough, key=lambda trial: (self.items.price_of(trial.floats), -trial.score)
        )

    def _recovers(self) -> bool:
        """Return whether some trial recovered enough of the loss."""
        return max(trial.score for trial in self.trials) >= self._enough(self.eager)

    def _enough(self, goal: float) -> float:
        """Return the score that is enough on the way to ``goal``.

        The way begins at the score with all calls in integers.
        """
        base = self.trials[0].score
        if not math.isfinite(goal - base):
            return goal
        return base + ENOUGH * (goal - base)

    def next_choice(self) -> list[str] | None:
        """Return items that were not tried; None if the search is over."""
        for choice in self.choices:
            if frozenset(choice) not in self.scores:
                return choice
        return None

    def _choices(self) -> Iterator[list[str]]:
        """Yield choices; each depends on the scores of those before."""
        yield []  # all in integers
        if self.trials[0].score >= self.eager:
            return
        suspects = self.items.suspects()
        yield suspects
        for share in _SHARES:
            if self._recovers():
                break
            yield self.items.by_noise(share, suspects)
        if not self._recovers():
            yield from self._regions(self.items.by_noise(_SHARES[0], suspects))
        yield from self._smaller()

    def _regions(self, base: list[str]) -> Iterator[list[str]]:
        """Yield ``base`` with each half of the other items, then halve the better half.

        This is for programs whose score the noise does not predict. For example, errors
        grow in a state that the program returns and takes again.
        """
        others = [item for item in self.items.calls if item not in base]
        while len(others) > 1:
            middle = len(others) // 2
            halves = [others[:middle], others[middle:]]
            halves = [half for half in halves if self.items.is_small([*base, *half])]
            if not halves:
                return
            yield from ([*base, *half] for half in halves)
            others = max(
                halves, key=lambda half: self.scores[frozenset([*base, *half])]
            )

    def _smaller(self) -> Iterator[list[str]]:
        """Yield the best choice with some of its items left out, the least worth first.

        First a half of the items is left out, then a quarter, and so on. When a shorter
        choice becomes the best one, its items are left out next.
        """
        parts = 2
        while True:
            before = self.best()
            items = list(before.floats)
            if len(items) < 2 or parts > len(items):
                return
            count = math.ceil(len(items) / parts)
            ordered = sorted(items, key=self._worth)
            for start in range(0, len(ordered), count):
                dropped = ordered[start : start + count]
                yield [item for item in items if item not in dropped]
                if self.best() != before:
                    break
            else:
                parts *= 2

    def _worth(self, item: str) -> float:
        """Return the noise that an item of the best choice removes, divided by its price."""
        items = self.best().floats
        others = [other for other in items if other != item]
        removed = self.items.noise_with(others) - self.items.noise_with(items)
        return removed / self.items.price_of([item])

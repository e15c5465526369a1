"""From a loss of accuracy to its fix: find calls that have to stay in floats."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from delegraph import Registry, default_registry
from delegraph.errors import InputError
from delegraph.io.escape_for_terminal import table
from delegraph_engines import quietly
from delegraph_programs.argument_types import Program
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from .calibration import Batch, checked
from .float_calls import CallPlace, call_places, leave_calls_in_floats, select
from .flow import calibrate_program, convert, module_of, quantize, quantizer_of
from .sensitivity import TensorLoss, tensor_losses

Task = Callable[[torch.nn.Module], float]
"""Runs a program on the user's data and returns a score, larger if it is better."""

ENOUGH = 0.95
"""The share of the recoverable score at which the search looks for fewer calls."""
_LEAST_PRICE = 0.02
"""The price of a group without products, as a share of all work of the program."""
_FEW_BITS = 4.0
"""Bits of information below which a tensor is suspected, whatever its noise."""
_SMALL_WORK = 0.1
"""The largest share of the work of a call that is suspected without a measured noise."""
_MOST_WORK = 0.75
"""The largest share of the work that a tried choice leaves in floats."""
_SHARES = (0.1, 0.01)
"""Shares of the noise that the tried choices leave, one after the other."""


@dataclass(frozen=True)
class Trial:
    """One evaluation of the task: items of ``floats``, and the score with them.

    ``work``: the share of the program's products that are computed in floats.
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
    ``chosen_by``: the argument of ``quantize`` that chose the quantizer, as code.
    """

    program: ExportedProgram
    floats: tuple[str, ...]
    eager: float
    integers: float
    score: float
    trials: tuple[Trial, ...]
    losses: tuple[TensorLoss, ...]
    places: Mapping[str, CallPlace]
    chosen_by: str = ""

    def code(self) -> str:
        """Return Python that quantizes with these calls in floats."""
        lines = ["quantized = delegraph.quantize(", "    model,", "    batches,"]
        if self.chosen_by:
            lines.append(f"    {self.chosen_by},")
        if self.floats:
            lines.append("    floats=[")
            lines += [f"        {json.dumps(item)}," for item in self.floats]
            lines.append("    ],")
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
    better. It is called at most ``evaluations`` times, at least three.

    The calls are ranked by measurements on the calibration batches: the noise of the
    outputs if one tensor alone is quantized, and the information that its integers
    keep. Cheap calls come before convolutions and products. The other parameters and
    the errors are those of ``quantize``.
    """
    if evaluations < 3:
        text = f"recover_accuracy needs at least 3 evaluations, not {evaluations}"
        raise InputError("input-invalid", text)
    registry = registry or default_registry()
    batches = list(calibration_batches)
    own = quantizer_of(backend, registry) if quantizer is None else quantizer
    calibrated = calibrate_program(
        program, batches, own, dynamic_shapes, None, registry
    )
    given, _ = checked(program, batches, dynamic_shapes is not None)
    losses = tensor_losses(calibrated.module, list[Batch](given))
    groups = _Groups(calibrated.exported, losses)
    search = _Search(calibrated.module, calibrated.exported, groups, task)
    for _ in range(evaluations - 1):
        choice = search.next_choice()
        if choice is None:
            break
        search.evaluate(choice)
    best = search.best()
    settled = {
        "backend": backend,
        "quantizer": quantizer,
        "dynamic_shapes": dynamic_shapes,
        "registry": registry,
    }
    return Recovery(
        program=quantize(program, batches, floats=best.floats, **settled),
        floats=best.floats,
        eager=search.eager,
        integers=search.trials[0].score,
        score=best.score,
        trials=tuple(search.trials),
        losses=tuple(sorted(losses, key=lambda loss: -loss.noise)),
        places=groups.places,
        chosen_by=_chosen_by(backend, quantizer),
    )


def _chosen_by(backend: str | None, quantizer: Any) -> str:
    if quantizer is not None:
        return "quantizer=quantizer"
    return f"backend={json.dumps(backend)}" if backend else ""


class _Groups:
    """Calls by the item of ``floats`` that selects them, with their share of the work."""

    def __init__(self, exported: ExportedProgram, losses: Sequence[TensorLoss]) -> None:
        self.places = call_places(exported)
        self.losses = losses
        self.total = sum(loss.noise for loss in losses)
        work = {node.name: _products(node) for node in exported.graph.nodes}
        total = max(sum(work.values()), 1)
        self.calls: dict[str, set[str]] = {}
        self.work: dict[str, float] = {}
        for place in self.places.values():
            item = place.selector
            if item not in self.calls:
                self.calls[item] = select(self.places, [item])
                products = sum(work[name] for name in self.calls[item])
                self.work[item] = products / total

    def items_of(self, loss: TensorLoss) -> list[str]:
        """Return the items that select all calls that make or take a tensor."""
        return list(dict.fromkeys(self.places[name].selector for name in loss.calls))

    def in_floats(self, items: Iterable[str]) -> set[str]:
        """Return the names of the calls that items select."""
        return set().union(*(self.calls[item] for item in items))

    def work_of(self, items: Iterable[str]) -> float:
        """Return the share of the work that items leave in floats."""
        return sum(self.work[item] for item in items)

    def price_of(self, items: Iterable[str]) -> float:
        """Return the work of items; each has a least price."""
        return sum(_LEAST_PRICE + self.work[item] for item in items)

    def noise_with(self, items: Iterable[str]) -> float:
        """Return the noise of the tensors that are still quantized."""
        floats = self.in_floats(items)
        kept = [loss for loss in self.losses if not floats.issuperset(loss.calls)]
        return sum(loss.noise for loss in kept)

    def by_noise(self, share: float, chosen: list[str]) -> list[str]:
        """Add items until at most a share of the noise is left, cheap ones first."""
        chosen = [*chosen]
        left = self.noise_with(chosen)
        while left > share * self.total:
            options = [self._addition(loss, chosen) for loss in self.losses]
            additions = [
                added for added in options if added and self.is_small([*chosen, *added])
            ]
            if not additions:
                break
            best = max(additions, key=lambda added: self._gain(chosen, added, left))
            chosen += best
            left = self.noise_with(chosen)
        return chosen

    def _addition(self, loss: TensorLoss, chosen: Sequence[str]) -> tuple[str, ...]:
        return tuple(item for item in self.items_of(loss) if item not in chosen)

    def is_small(self, items: Iterable[str]) -> bool:
        """Return whether most of the work stays in integers."""
        return self.work_of(items) <= _MOST_WORK

    def _gain(self, chosen: Sequence[str], added: Sequence[str], left: float) -> float:
        """Return the noise that added items remove, by their price."""
        removed = left - self.noise_with([*chosen, *added])
        return removed / self.price_of(added)

    def suspects(self) -> list[str]:
        """Return cheap items that may matter to a task although their noise is small.

        These make outputs, where rounding makes equal scores of different ones, or
        tensors whose integers keep few bits.
        """
        chosen = dict[str, None]()
        for loss in sorted(self.losses, key=lambda loss: loss.bits):
            items = self.items_of(loss)
            if loss.is_output or (loss.bits < _FEW_BITS and not loss.is_weight):
                cheap = [item for item in items if self.work[item] <= _SMALL_WORK]
                chosen.update(dict.fromkeys(cheap))
        return list(chosen)


_PRODUCTS = ("conv", "linear", "addmm", "matmul", "bmm", "mm.", "attention")


def _products(node: Node) -> int:
    """Return about how many products a call computes."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor):
        return 0
    if not any(name in str(node.target) for name in _PRODUCTS):
        return 0
    operands = [n.meta.get("val") for n in node.all_input_nodes]
    tensors = [operand for operand in operands if isinstance(operand, torch.Tensor)]
    if len(tensors) < 2:
        return 0
    sizes = [int(size) for size in value.shape]
    weight = [int(size) for size in tensors[1].shape]
    if "conv" in str(node.target) or "linear" in str(node.target):
        return prod(sizes) * prod(weight[1:])
    return prod(sizes) * int(tensors[0].shape[-1])


class _Search:
    """The evaluations so far, and the choice to try next."""

    def __init__(
        self,
        prepared: GraphModule,
        exported: ExportedProgram,
        groups: _Groups,
        task: Task,
    ) -> None:
        self.prepared = prepared
        self.exported = exported
        self.groups = groups
        self.task = task
        self.trials: list[Trial] = []
        self.eager = float(task(module_of(exported)))
        self.choices = self._choices()

    def evaluate(self, items: Sequence[str]) -> None:
        """Evaluate the task with items in floats."""
        with quietly():
            prepared = copy.deepcopy(self.prepared)
        for node in prepared.graph.nodes:
            # the annotations have calls of the original graph
            node.meta.pop("quantization_annotation", None)
        if items:
            leave_calls_in_floats(prepared, self.groups.in_floats(items))
        module = convert(prepared, self.exported)
        with torch.no_grad():
            score = float(self.task(module))
        self.trials.append(Trial(tuple(items), score, self.groups.work_of(items)))

    def best(self) -> Trial:
        """Return the cheapest trial whose score is nearly the best."""
        most = max(trial.score for trial in self.trials)
        base = self.trials[0].score
        enough = [t for t in self.trials if t.score >= base + ENOUGH * (most - base)]
        return min(enough, key=lambda t: (self.groups.price_of(t.floats), -t.score))

    def next_choice(self) -> list[str] | None:
        """Return items that were not tried; None if the search is over."""
        tried = [set(trial.floats) for trial in self.trials]
        for choice in self.choices:
            if set(choice) not in tried:
                return choice
        return None

    def _choices(self) -> Iterator[list[str]]:
        """Yield choices; each depends on the scores of those before."""
        yield []
        if self.trials[0].score >= self.eager:
            return
        suspects = self.groups.suspects()
        yield suspects
        for share in _SHARES:
            if self._recovers(ENOUGH):
                break
            yield self.groups.by_noise(share, suspects)
        if not self._recovers(ENOUGH):
            yield from self._regions(self.groups.by_noise(_SHARES[0], suspects))
        yield from self._smaller()

    def _regions(self, base: list[str]) -> Iterator[list[str]]:
        """Yield ``base`` with a half of the other items, then with halves of the better
        half.

        The noise of one call does not show how errors grow in a state that the program
        returns and takes again. The score does.
        """
        others = [item for item in self.groups.calls if item not in base]
        while len(others) > 1:
            middle = len(others) // 2
            halves = [others[:middle], others[middle:]]
            choices = [[*base, *half] for half in halves]
            choices = [one for one in choices if self.groups.is_small(one)]
            yield from choices
            scores = {trial.floats: trial.score for trial in self.trials}
            tried = [one for one in choices if tuple(one) in scores]
            if not tried:
                return
            best = max(tried, key=lambda one: scores[tuple(one)])
            others = best[len(base) :]

    def _recovers(self, share: float) -> bool:
        """Return whether some trial recovered a share of the loss."""
        base = self.trials[0].score
        most = max(trial.score for trial in self.trials)
        return most - base >= share * (self.eager - base)

    def _smaller(self) -> Iterator[list[str]]:
        """Yield the best choice without half of its items, then without fewer."""
        size = 2
        while True:
            items = list(self.best().floats)
            if len(items) < 2 or size > len(items):
                return
            part = -(-len(items) // size)
            ordered = sorted(items, key=self._worth)
            before = self.best()
            for start in range(0, len(ordered), part):
                dropped = ordered[start : start + part]
                yield [item for item in items if item not in dropped]
                if self.best() != before:
                    break
            else:
                size *= 2

    def _worth(self, item: str) -> float:
        """Return the noise that an item removes from the best choice, by its price."""
        items = self.best().floats
        others = [one for one in items if one != item]
        removed = self.groups.noise_with(others) - self.groups.noise_with(items)
        return removed / self.groups.price_of([item])

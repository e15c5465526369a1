"""Measures the loss of each quantized tensor alone, while all others are floats."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from delegraph_engines import quietly
from delegraph_programs import TRACING
from torch._ops import OpOverload
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from .calibration import Batch
from .float_calls import layer_of
from .unscaled import bodies, leaves_program, observed, observer_calls

BATCHES = 8
"""The most batches that are run."""
RUNS = 1000
"""The most runs, about. A program with many tensors is run on fewer batches."""
_VALUES = 1 << 16
"""The most values of a tensor whose integers are counted."""
_MOST_NOISE = 1e6
"""The noise of an output that is no longer finite."""


@dataclass(frozen=True)
class TensorLoss:
    """The loss of one quantized tensor, while all others are floats.

    ``layer``: the call that makes it; for a weight or an input, the call that takes it.
    ``calls``: all calls that make or take it, by name. ``is_weight``: it is a constant.
    ``is_output``: the program returns it, or writes it to a buffer. ``snr``: the
    signal-to-noise
    ratio of its integers in dB; infinite without an error. ``bits``: the entropy of its
    integers over distinct values, at most 8 for int8. Few bits: many different values
    have become equal. ``noise``: the squared errors of the outputs, relative to their
    squares, summed over the outputs.
    """

    layer: str
    calls: tuple[str, ...]
    is_weight: bool
    is_output: bool
    snr: float
    bits: float
    noise: float


def work_of_calls(prepared: GraphModule, batch: Batch) -> Counter[str]:
    """Return the number of multiplications and additions of each call, by name.

    They are counted in a run, because sizes in the program may be symbols.
    """
    with TRACING, torch.no_grad():
        counting = _Counting(without_rounding(prepared))
        counting.run(*copy.deepcopy(pytree.tree_leaves((batch.args, batch.kwargs))))
    return counting.work


class _Counting(Interpreter):
    """Runs a program, and counts the work of its calls by name."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.work = Counter[str]()

    def run_node(self, n: Node) -> Any:
        # torch cannot count the work of loops
        if not isinstance(n.target, OpOverload):
            return super().run_node(n)
        with FlopCounterMode(display=False) as counter:
            value = super().run_node(n)
        self.work[layer_of(n)] += counter.get_total_flops()
        return value


def tensor_losses(
    prepared: GraphModule,
    batches: Sequence[Batch],
    buffers: Mapping[str, torch.Tensor],
) -> list[TensorLoss]:
    """Measure each quantized tensor of a calibrated program, with others in floats.

    ``buffers``: those that the program writes by name, with their first values.
    """
    module = without_rounding(prepared)
    tensors = list(_tensors(module))
    count = RUNS // max(len(tensors), 1)
    chosen = _spread(batches, min(max(count, 1), BATCHES))

    def outputs() -> list[list[torch.Tensor]]:
        """Return the outputs of each chosen batch, from the first buffers on."""
        for name, value in buffers.items():
            module.get_buffer(name).copy_(value)
        return [_outputs(module, batch) for batch in chosen]

    found = []
    with TRACING, torch.no_grad():
        expected = outputs()
        for tensor in tensors:
            rounders = [module.get_submodule(str(o.target)) for o in tensor.observers]
            with Rounding(rounders) as rounding:
                noise = _noise(outputs(), expected)
            calls = _calls_around(tensor)
            if calls and rounding.seen:
                is_written = str(tensor.value.target) in buffers
                is_constant = tensor.value.op == "get_attr" and not is_written
                found.append(
                    TensorLoss(
                        layer=calls[0],
                        calls=tuple(calls),
                        is_weight=is_constant,
                        is_output=_is_output(tensor),
                        snr=rounding.snr(),
                        bits=rounding.bits(),
                        noise=noise,
                    )
                )
    return found


def _spread(batches: Sequence[Batch], count: int) -> list[Batch]:
    """Return ``count`` batches from all parts of the sequence."""
    step = max(1, len(batches) // count)
    return list(batches[::step][:count])


class _Observed(NamedTuple):
    """A value of the main graph, and its observers."""

    observers: tuple[Node, ...]
    value: Node


def _tensors(module: GraphModule) -> Iterator[_Observed]:
    """Yield the observed tensors of the main graph, but not biases."""
    by_value: dict[Node, list[Node]] = {}
    for observer in observer_calls(module):
        # torchao's observer of a bias, whose scale follows from those of the operands
        if isinstance(module.get_submodule(str(observer.target)), Rounder):
            by_value.setdefault(observed(observer), []).append(observer)
    for value, observers in by_value.items():
        yield _Observed(tuple(observers), value)


def _calls_around(tensor: _Observed) -> list[str]:
    """Return the names of the calls that make or take a tensor, the maker first."""
    calls = [tensor.value]
    for observer in tensor.observers:
        calls += observer.users
    names = dict[str, None]()
    for call in calls:
        if call.op == "call_function" and not leaves_program(call) and layer_of(call):
            names[layer_of(call)] = None
    return list(names)


def _is_output(tensor: _Observed) -> bool:
    """Return whether the program returns a tensor, or writes it to a buffer."""
    users = [user for observer in tensor.observers for user in observer.users]
    return any(map(leaves_program, users))


class Rounder(torch.nn.Module):
    """Replaces an observer: passes values on, and rounds them in a ``Rounding``."""

    def __init__(self, observer: Any) -> None:
        super().__init__()
        self.observer = observer
        self.rounding: Rounding | None = None

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if self.rounding is None:
            return value
        rounded, integers = self.round(value)
        self.rounding.record(value, rounded, integers)
        return rounded

    @cached_property
    def _scale_and_zero_point(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The scale and the zero point, for which an observer may search long."""
        scale, zero_point = self.observer.calculate_qparams()
        return scale.float(), zero_point.float()

    def round(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a value as the observer's integers represent it, and the integers."""
        axis = getattr(self.observer, "ch_axis", None)
        shape = [1] * value.dim()
        scale, zero_point = self._scale_and_zero_point
        if scale.numel() > 1 and axis is not None:
            shape[int(axis)] = -1
        scale = scale.reshape(shape)
        zero_point = zero_point.reshape(shape)
        integers = (value / scale).round() + zero_point
        integers = integers.clamp(self.observer.quant_min, self.observer.quant_max)
        return (integers - zero_point) * scale, integers


def without_rounding(prepared: GraphModule) -> GraphModule:
    """Return a copy of a calibrated program that computes in floats.

    It has a ``Rounder`` in the place of each observer, and no observers of biases.
    """
    with quietly():
        module = copy.deepcopy(prepared)
    for body in bodies(module):
        for call in observer_calls(body):
            observer = body.get_submodule(str(call.target))
            is_derived = hasattr(observer, "obs_or_fqs")
            replacement = torch.nn.Identity() if is_derived else Rounder(observer)
            setattr(body, str(call.target), replacement)
    return module


def _outputs(module: GraphModule, batch: Batch) -> list[torch.Tensor]:
    """Return the outputs of a batch, in double precision."""
    # a program may write its inputs
    args, kwargs = copy.deepcopy((batch.args, batch.kwargs))
    tensors = pytree.tree_leaves(module(*args, **kwargs))
    return [t.double() for t in tensors if isinstance(t, torch.Tensor)]


class Rounding:
    """Lets some rounders round in a ``with`` block, and describes what they rounded."""

    def __init__(self, rounders: Sequence[Any]) -> None:
        self.rounders = rounders
        self.signal = 0.0
        self.error = 0.0
        self.seen: list[torch.Tensor] = []
        self.integers: list[torch.Tensor] = []

    def __enter__(self) -> Rounding:
        for rounder in self.rounders:
            rounder.rounding = self
        return self

    def __exit__(self, *error: object) -> None:
        for rounder in self.rounders:
            rounder.rounding = None

    def record(
        self, value: torch.Tensor, rounded: torch.Tensor, integers: torch.Tensor
    ) -> None:
        """Add values, as they were and as their integers represent them."""
        self.signal += float(value.double().square().sum())
        self.error += float((rounded - value).double().square().sum())
        step = max(1, value.numel() // _VALUES)
        self.seen.append(value.reshape(-1)[::step])
        self.integers.append(integers.reshape(-1)[::step])

    def snr(self) -> float:
        """Return the signal-to-noise ratio of the rounded values in dB."""
        if self.error == 0 or self.signal == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.error)

    def bits(self) -> float:
        """Return the entropy of the integers over distinct values."""
        values = torch.cat(self.seen)
        integers = torch.cat(self.integers)
        pairs = torch.stack([values.double(), integers.double()], 1)
        distinct = torch.unique(pairs, dim=0)
        _, counts = torch.unique(distinct[:, 1], return_counts=True)
        shares = counts.double() / counts.sum()
        return float(-(shares * shares.log2()).sum())


def _noise(
    got: Sequence[Sequence[torch.Tensor]], expected: Sequence[Sequence[torch.Tensor]]
) -> float:
    """Return the squared errors of each output, relative to its squares, and summed.

    ``got`` and ``expected``: the outputs of each batch. Elements that are infinite or
    NaN in floats are left out: a masked score has no error. An output of another shape
    has the most noise.
    """
    noise = 0.0
    for position in range(len(expected[0])):
        error = 0.0
        signal = 0.0
        for values, floats in zip(got, expected, strict=True):
            one = values[position]
            other = floats[position]
            if one.shape != other.shape:
                return _MOST_NOISE
            finite = other.isfinite()
            error += float((one - other)[finite].square().sum())
            signal += float(other[finite].square().sum())
        if signal > 0:
            is_small = error < _MOST_NOISE * signal  # False if the error is NaN
            noise += error / signal if is_small else _MOST_NOISE
    return noise

"""What each quantized tensor alone costs: with all others in floats."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from delegraph_programs import TRACING
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from .calibration import Batch
from .float_calls import layer_of
from .unscaled import observed, observer_calls

SECONDS = 60.0
"""The time that the measurement may take. A slow program is run on fewer batches."""
BATCHES = 8
"""The most batches that are run."""
_VALUES = 1 << 16
"""The most values of a tensor whose integers are counted."""


@dataclass(frozen=True)
class TensorLoss:
    """The loss of one quantized tensor, while all others are floats.

    ``layer``: the call that makes it; for a weight or an input, the call that takes it.
    ``calls``: all calls that make or take it, by name. ``is_weight``: it is a constant.
    ``is_output``: the program returns it. ``snr``: the signal-to-noise
    ratio of its integers in dB; infinite without an error. ``bits``: the information
    that its integers keep of distinct values, at most 8 for int8. ``noise``: the noise
    of the outputs, relative to their squares, summed over the outputs.
    """

    layer: str
    calls: tuple[str, ...]
    is_weight: bool
    is_output: bool
    snr: float
    bits: float
    noise: float


class _Observed(NamedTuple):
    """A tensor with an observer, and the numbers of its integers."""

    observers: tuple[Node, ...]
    value: Node


def tensor_losses(prepared: GraphModule, batches: Sequence[Batch]) -> list[TensorLoss]:
    """Measure each quantized tensor of a calibrated program, with others in floats."""
    tensors = list(_tensors(prepared))
    found = []
    with TRACING, torch.no_grad():
        start = time.perf_counter()
        floats = _Rounding(prepared)
        outputs = [floats.outputs(batch) for batch in batches[:1]]
        once = time.perf_counter() - start
        count = int(SECONDS / max(once * len(tensors), 1e-9))
        chosen = _spread(batches, min(max(count, 1), BATCHES))
        outputs = [floats.outputs(batch) for batch in chosen]
        for tensor in tensors:
            rounding = _Rounding(prepared, tensor.observers)
            noise = 0.0
            for batch, expected in zip(chosen, outputs, strict=True):
                noise += _noise(rounding.outputs(batch), expected)
            calls = _calls_around(tensor)
            if calls and rounding.seen:
                found.append(
                    TensorLoss(
                        layer=calls[0],
                        calls=tuple(calls),
                        is_weight=tensor.value.op == "get_attr",
                        is_output=_is_output(tensor),
                        snr=rounding.snr(),
                        bits=rounding.bits(),
                        noise=noise / len(chosen),
                    )
                )
    return found


def _spread(batches: Sequence[Batch], count: int) -> list[Batch]:
    """Return ``count`` batches from all parts of the sequence."""
    step = max(1, len(batches) // count)
    return list(batches[::step][:count])


def _tensors(prepared: GraphModule) -> Iterator[_Observed]:
    """Yield the observed tensors of the main graph, but not biases."""
    by_value: dict[Node, list[Node]] = {}
    for observer in observer_calls(prepared):
        module = prepared.get_submodule(str(observer.target))
        # torchao's observer of a bias, whose scale follows from those of the operands
        if not hasattr(module, "obs_or_fqs"):
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
        if call.op == "call_function" and layer_of(call):
            names[layer_of(call)] = None
    return list(names)


def _is_output(tensor: _Observed) -> bool:
    """Return whether the program returns a tensor."""
    users = [user for observer in tensor.observers for user in observer.users]
    return any(user.op == "output" for user in users)


class _Rounding(Interpreter):
    """Runs a program in floats, but rounds the values of some observers to integers."""

    def __init__(self, prepared: GraphModule, observers: Sequence[Node] = ()) -> None:
        super().__init__(prepared)
        self.observers = set(observers)
        self.signal = 0.0
        self.error = 0.0
        self.seen: list[torch.Tensor] = []
        self.integers: list[torch.Tensor] = []

    def outputs(self, batch: Batch) -> list[torch.Tensor]:
        """Return the outputs of a batch, in double precision."""
        leaves = pytree.tree_leaves((batch.args, batch.kwargs))
        # a program may write its inputs
        returned = self.run(*copy.deepcopy(leaves))
        tensors = pytree.tree_leaves(returned)
        return [t.double() for t in tensors if isinstance(t, torch.Tensor)]

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.fetch_attr(str(target))
        if not hasattr(module, "calculate_qparams"):
            return super().call_module(target, args, kwargs)
        return args[0]

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n not in self.observers:
            return value
        rounded, integers = _rounded(value, self.fetch_attr(str(n.target)))
        self._record(value, rounded, integers)
        return rounded

    def _record(
        self, value: torch.Tensor, rounded: torch.Tensor, integers: torch.Tensor
    ) -> None:
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


def _rounded(value: torch.Tensor, observer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the value as an observer's integers represent it, and the integers."""
    scale, zero_point = observer.calculate_qparams()
    axis = getattr(observer, "ch_axis", None)
    shape = [1] * value.dim()
    if scale.numel() > 1 and axis is not None:
        shape[int(axis)] = -1
    scale = scale.float().reshape(shape)
    zero_point = zero_point.float().reshape(shape)
    integers = (value / scale).round() + zero_point
    integers = integers.clamp(observer.quant_min, observer.quant_max)
    return (integers - zero_point) * scale, integers


def _noise(got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Return the squared errors of outputs, relative to the squares of each output."""
    noise = 0.0
    for one, other in zip(got, expected, strict=True):
        error = float((one - other).square().nan_to_num().sum())
        noise += error / max(float(other.square().sum()), 1e-30)
    return noise

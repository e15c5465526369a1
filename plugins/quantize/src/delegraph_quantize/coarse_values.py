"""Finds calls for which integers are too coarse, such as the logarithm of a spectrum.

The steps of integers are equally wide over the whole range of a value. ``log``, ``sqrt``
and quotients magnify the steps of small values: with a step of 1, the logarithms of
0.01 and of 0.4 become equal. No other scale mends that. So such a call takes floats,
and so do the calls before it, up to values whose rounding its result survives.

This is measured: the program runs in floats, one value is rounded as its observer would
round it, and the call is computed again from there.

Scores that are sorted are not measured. In integers, large probabilities become equal
and lose their order. So the calls between a layer and the sort of its scores, such as
softmax, always stay in floats.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from delegraph_programs import TRACING
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Interpreter, Node
from torch.utils import _pytree as pytree

from .calibration import Batch
from .float_calls import CallPlace, layer_of
from .recurrent_layers import recurrent_layers
from .sensitivity import Rounder, without_rounding
from .signal_to_noise import is_ruined, signal_to_noise
from .unscaled import observed

MAGNIFYING = set(
    "atan2 div exp exp2 expm1 linalg_vector_norm log log10 log1p log2 norm pow"
    " reciprocal rsqrt sqrt true_divide".split()
)
"""Operators that may magnify errors of their operands."""
SORTING = {"argsort", "kthvalue", "msort", "sort", "topk"}
"""Operators whose result depends on the order of scores."""
SCORING = {
    "exp",
    "hardsigmoid",
    "log_softmax",
    "mul",
    "sigmoid",
    "softmax",
    "sqrt",
    "tanh",
}
"""Operators that turn the results of a layer into scores."""
MOVING = {"cat", "clone", "contiguous", "flatten", "index_select", "reshape", "stack"}
"""Operators between scores and a sort; so are views."""
MOST_BATCHES = 16


class CoarseCall(NamedTuple):
    """A call that needs floats, with names as in the exported program.

    ``before``: the calls before it that have to stay in floats for it, the nearest
    first. ``results``: the calls that take one of its results.
    """

    name: str
    before: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def in_floats(self) -> set[str]:
        """Return the names of all calls that have to stay in floats."""
        return {self.name, *self.before, *self.results}

    def describe(self, places: Mapping[str, CallPlace]) -> str:
        """Return ``log (net.py:31) after matmul, square``."""
        place = places[self.name]
        line = f" ({place.line})" if place.line else ""
        after = f" after {', '.join(self.before)}" if self.before else ""
        return f"{self.name}{line}{after}"


class SampleOfBatches:
    """Keeps batches, evenly spread over those that pass, and at most ``MOST_BATCHES``.

    ``exported``: the program to calibrate. Without calls to judge, no batch is kept.
    """

    def __init__(self, exported: ExportedProgram) -> None:
        self.kept: list[Batch] = []
        self._step = 1
        self._is_needed = bool(recurrent_layers(exported)) or any(
            map(_magnifies, exported.graph.nodes)
        )

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield each batch; keep a copy of every ``_step``-th one."""
        for number, batch in enumerate(batches):
            if self._is_needed and number % self._step == 0:
                # a copy, because loaders reuse memory
                self.kept.append(copy.deepcopy(batch))
            if len(self.kept) > MOST_BATCHES:
                self.kept = self.kept[::2]
                self._step *= 2
            yield batch


def coarse_calls(
    prepared: GraphModule, batches: Sequence[Batch], in_floats: Container[str]
) -> list[CoarseCall]:
    """Return the calls of a calibrated program that need floats, in order.

    ``in_floats``: the names of calls that stay in floats already. They are not judged,
    and the calls before them only if another call takes their results, too. Calls in
    bodies of loops and branches are not judged.
    """
    module = without_rounding(prepared)
    searches = [
        _Search(call, module, in_floats)
        for call in module.graph.nodes
        if _magnifies(call) and layer_of(call) not in in_floats
    ]
    # each round goes one value further up from the calls
    while batches and any(search.pending for search in searches):
        with TRACING, torch.no_grad():
            for batch in batches:
                values = _Values(module, batch)
                for search in searches:
                    search.measure(values)
        for search in searches:
            search.go_up()
    makers_by_call = {search.call: list(search.makers) for search in searches}
    for call in module.graph.nodes:
        if _operator_of(call) in SORTING and layer_of(call) not in in_floats:
            makers_by_call[call] = _makers_of_scores(call)
    return [
        _coarse_call(call, makers)
        for call, makers in makers_by_call.items()
        if makers and layer_of(call)
    ]


def _coarse_call(call: Node, makers: Iterable[Node]) -> CoarseCall:
    """Return a call of the prepared program with names as in the exported one."""
    name = layer_of(call)
    before = dict.fromkeys(layer_of(n) for n in makers if n.op == "call_function")
    results = (layer_of(n) for n in call.users if n.target is operator.getitem)
    return CoarseCall(
        name,
        tuple(n for n in before if n not in ("", name)),
        tuple(filter(None, results)),
    )


def _operator_of(node: Node) -> str:
    """Return ``log`` of calls of ``aten.log.default`` and of ``aten.log_.default``."""
    if not isinstance(node.target, OpOverload):
        return ""
    return node.target._schema.name.rpartition("::")[2].removesuffix("_")


def _magnifies(node: Node) -> bool:
    return _operator_of(node) in MAGNIFYING


class _Search:
    """A search from a call towards the inputs, for values that need floats.

    It goes on from a value as long as rounding it ruins the result of the call.
    ``pending``: the rounders to measure next, with the ratios in dB of the batches so
    far. ``makers``: the nodes that have to compute in floats, the nearest first.
    """

    def __init__(
        self, call: Node, module: GraphModule, in_floats: Container[str]
    ) -> None:
        self.call = call
        self.makers: dict[Node, None] = {}
        self._module = module
        self._in_floats = in_floats
        self._seen: set[Node] = set()
        self.pending: dict[Node, list[float]] = {}
        self._add_before(call)

    def measure(self, values: _Values) -> None:
        """Measure the result of the call with each of the pending values rounded."""
        for rounder, ratios in self.pending.items():
            ratios.append(values.snr(rounder, _path(rounder, self.call)))

    def go_up(self) -> None:
        """Replace the pending values that ruin the result by those before them.

        Values whose rounding the result survives are dropped.
        """
        measured = self.pending
        self.pending = {}
        for rounder, ratios in measured.items():
            if is_ruined(ratios):
                maker = observed(rounder)
                nodes = [*reversed(_path(rounder, self.call)), maker]
                self.makers.update(dict.fromkeys(nodes))
                self._add_before(maker)

    def _add_before(self, node: Node) -> None:
        """Add the nearest rounders before a node, except those of constants.

        Nothing is added before calls that stay in floats already: their operands are
        not rounded.
        """
        if layer_of(node) in self._in_floats:
            return
        waiting = [*node.all_input_nodes]
        while waiting:
            before = waiting.pop()
            if before in self._seen:
                continue
            self._seen.add(before)
            if before.op != "call_module":
                if layer_of(before) not in self._in_floats:
                    waiting += before.all_input_nodes
                continue
            # the other modules are those that ``without_rounding`` puts for biases
            is_rounder = isinstance(
                self._module.get_submodule(str(before.target)), Rounder
            )
            if is_rounder and observed(before).op != "get_attr":
                self.pending[before] = []


def _path(start: Node, end: Node) -> list[Node]:
    """Return the nodes that depend on ``start`` and lead to ``end``, in order."""
    reached = {start}
    after = []
    for node in start.graph.nodes:
        if not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
            after.append(node)
        if node is end:
            break
    leading = {end}
    path = []
    for node in reversed(after):
        if node in leading:
            path.append(node)
            leading.update(node.all_input_nodes)
    return path[::-1]


class _Values(Interpreter):
    """Runs a program in floats on a batch, and keeps all values."""

    def __init__(self, module: GraphModule, batch: Batch) -> None:
        super().__init__(module)
        self._values: dict[Node, Any] = {}
        self.run(*_copy(pytree.tree_leaves((batch.args, batch.kwargs))))

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        # a later call may write it
        self._values[n] = _copy(value)
        return value

    def snr(self, rounder: Node, path: Sequence[Node]) -> float:
        """Return the ratio in dB at the end of a path if its start alone is rounded."""
        rounded, _ = self.fetch_attr(str(rounder.target)).round(self._values[rounder])
        values = {rounder: rounded}
        for node in path:
            operands = {n: values.get(n, self._values[n]) for n in node.all_input_nodes}
            args, kwargs = pytree.tree_map_only(
                Node, _copy(operands).__getitem__, (node.args, node.kwargs)
            )
            values[node] = getattr(self, node.op)(node.target, args, kwargs)
        return signal_to_noise(values[path[-1]], self._values[path[-1]])


def _copy(value: Any) -> Any:
    """Return a copy of a value, which a call may write."""
    return pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, value)


def _makers_of_scores(sort: Node) -> list[Node]:
    """Return the calls between a sort and the layers whose results it sorts as scores."""
    found = []
    waiting = [*sort.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node.op == "call_module":
            waiting += node.all_input_nodes
        elif node not in found and (_operator_of(node) in SCORING or _moves(node)):
            found.append(node)
            waiting += node.all_input_nodes
    makes_scores = any(_operator_of(node) in SCORING for node in found)
    return found if makes_scores else []


def _moves(node: Node) -> bool:
    """Return whether a call only moves elements."""
    if node.target is operator.getitem or _operator_of(node) in MOVING:
        return True
    # views are those that return an alias of an operand
    return isinstance(node.target, OpOverload) and any(
        returned.alias_info for returned in node.target._schema.returns
    )

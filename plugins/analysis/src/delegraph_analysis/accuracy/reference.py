"""Compare each value of a lowered program with eager PyTorch and float64.

Both follow the lowered program's graph, and the original programs of delegates. If
eager PyTorch could decide differently, such as for a tie in a top-k, both take the
decision of the lowered program. So later values stay comparable.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from delegraph import LoweredProgram
from delegraph.delegates import DelegateInfo, LoweredBackendModule
from delegraph.host import OutputStatistics, Verification, compare, is_observable
from delegraph.runtime import Inside
from delegraph_programs import is_random, source_of, user_inputs
from delegraph_programs.exported_program import CALL_DELEGATE, MUTATIONS
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from .eager_values import EagerValues, Pair, is_same, widened
from .inside import DelegateValues
from .operators import (
    OperatorStatistics,
    OperatorVerification,
    VerificationByOperator,
    merged,
)
from .reruns import verify_ties
from .ties import picked_from, why_tied
from .values import Accuracy, Measured, measure

RANDOM = (
    "random: eager draws other numbers, and goes on with those of the lowered program"
)
DECIDED = "eager gives the same where it decides as the program did: see the operators"
UNDECIDED = "eager disagrees with itself: in float64 it decides otherwise there too"
ITERATIONS = 1000
"""The most iterations of a branch or loop body that are compared, in all."""
LATER = f"in a branch or loop body that was run before {ITERATIONS} times"
WHOLE = "in a branch or loop that is a part of a delegate"
VECTORIZED = "in a body that torch runs on many elements at a time"


class _Place(NamedTuple):
    """A place that computes values, with the values of eager PyTorch there.

    ``path``: the attributes that lead to the branch or loop body. ``iteration``: the
    number of the current run of the body; None outside of loops.
    """

    where: str
    values: EagerValues
    path: str = ""
    iteration: int | None = None


def verify_operators(
    lowered: LoweredProgram,
    *args: Any,
    method: str | None = None,
    ties: bool = False,
    **kwargs: Any,
) -> VerificationByOperator:
    """Verify like ``lowered.verify``, with the figures of every operator
    (``operators``).

    ``ties``: also accept outputs that another run of eager PyTorch returns, as
    ``verify_ties`` does.
    """
    reference = _reference_of(lowered, method)
    if ties:
        outputs = verify_ties(
            lowered, *args, method=method, observer=reference, **kwargs
        )
    else:
        outputs = lowered.verify(*args, method=method, observer=reference, **kwargs)
    return reference.added_to(outputs)


def _reference_of(lowered: LoweredProgram, method: str | None) -> Reference:
    name = method or ("forward" if "forward" in lowered.methods else lowered.methods[0])
    return Reference(name, lowered.exported_program(name))


class Reference:
    """The observer of one run; ``verification`` is its result."""

    def __init__(self, method: str, program: ExportedProgram) -> None:
        self._method = method
        self._host = _Place("host", EagerValues(program))
        self._places: list[_Place | None] = [self._host]
        """The host's graph and its running subgraphs; None beyond ``ITERATIONS``."""
        self._runs: Counter[str] = Counter()
        self._rows: list[OperatorStatistics] = []
        self._missing: Counter[str] = Counter()
        self._inside: dict[LoweredBackendModule, Inside] = {}
        self._results = self._host.values.returned(MUTATIONS)
        self._returned: dict[Node, Any] = {}
        """The program's outputs, before a call writes its buffers."""
        self._outputs = Verification(())

    @property
    def verification(self) -> OperatorVerification:
        """Return all compared values."""
        return OperatorVerification(tuple(merged(self._rows)), dict(self._missing))

    def added_to(self, found: Verification) -> VerificationByOperator:
        """Return ``found`` with all this.

        Outputs that agree after eager PyTorch took the program's decisions get a
        remark.
        """
        decided = any(row.figures.remark for row in self._rows)
        pairs = zip(found.outputs, self._outputs.outputs, strict=True)
        outputs = [
            (
                b._replace(remark=DECIDED)
                if decided and not a.agrees() and b.agrees()
                else a
            )
            for a, b in pairs
        ]
        return VerificationByOperator(tuple(outputs), self.verification)

    def begin(self, values: Mapping[Node, Any]) -> None:
        results = {v for v in self._results if isinstance(v, Node)}
        self._returned = {
            node: value for node, value in values.items() if node in results
        }
        for node, value in values.items():
            self._host.values.known[node] = Pair(value, widened(value))

    def end(self) -> None:
        """Compare the results before the caller's tensors are written."""
        wanted = [
            self._host.values.pair(v).eager if isinstance(v, Node) else v
            for v in self._results
        ]
        got = [
            self._returned.get(v, w) if isinstance(v, Node) else v
            for v, w in zip(self._results, wanted, strict=True)
        ]
        self._outputs = Verification.of(got, wanted)

    def inside(self, delegate: DelegateInfo, values: Inside) -> None:
        self._inside[delegate.module] = values

    def enter(self, owner: Node, module: GraphModule, inputs: Sequence[Any]) -> None:
        """Begin a run of a branch or loop body, which is compared by itself.

        Eager PyTorch begins with the lowered program's inputs. So an error in one
        iteration is not reported for all later ones.
        """
        around = self._places[-1]
        path = f"{around.path}{owner.target}." if around is not None else ""
        self._runs[path] += 1
        if around is None or self._runs[path] > ITERATIONS:
            self._places.append(None)
            return
        values = EagerValues(module)
        given = zip(
            (n for n in module.graph.nodes if n.op == "placeholder"),
            inputs,
            strict=True,
        )
        values.known.update(
            {node: Pair(value, widened(value)) for node, value in given}
        )
        repeated = any(
            getattr(user.target, "__name__", "") != "cond" for user in owner.users
        )
        iteration = self._runs[path] if repeated else around.iteration
        self._places.append(_Place(f"host, in {path[:-1]}", values, path, iteration))

    def leave(self) -> None:
        self._places.pop()

    def see(self, node: Node, value: Any) -> None:
        place = self._places[-1]
        if place is None:
            self._missing[LATER] += 1
            return
        if node.target is CALL_DELEGATE:
            pair = self._follow(node, value, place)
        else:
            self._note_unseen(node, place, in_delegate=False)
            pair = place.values.compute(node, value)
            if node.target is not operator.getitem:  # its call was compared
                pair = self._judge(node, value, pair, place)
        if place is self._host and node in self._results:
            self._returned[node] = value
        place.values.keep(node, pair, value)

    def _note_unseen(self, call: Node, place: _Place, in_delegate: bool) -> None:
        """Count the values in subgraphs of a call that no observer receives."""
        if isinstance(call.target, OpOverload):
            return  # it has none
        for owner in (n for n in place.values.operands[call] if n.op == "get_attr"):
            module = getattr(place.values.module, str(owner.target), None)
            if isinstance(module, GraphModule) and (
                in_delegate or not is_observable(owner)
            ):
                calls = sum(n.op == "call_function" for n in module.graph.nodes)
                self._missing[WHOLE if in_delegate else VECTORIZED] += calls

    def _follow(self, call: Node, outputs: tuple[Any, ...], around: _Place) -> Pair:
        """Compare the operators of a delegate with the values from its runtime, and its
        results.
        """
        owner: Any = call.args[0]
        module: LoweredBackendModule = getattr(around.values.module, owner.target)
        delegate = DelegateValues(module, self._inside.pop(module, None))
        place = _Place(
            f"{around.path}{owner.target}",
            delegate.values,
            around.path,
            around.iteration,
        )
        given = [
            around.values.pair(a) if isinstance(a, Node) else Pair(a, a)
            for a in call.args[1:]
        ]
        place.values.known.update(
            zip(user_inputs(module.original_module), given, strict=True)
        )
        shown = dict(zip(delegate.returned, outputs, strict=True))
        first = len(self._rows)
        for node in place.values.operands:
            self._note_unseen(node, place, in_delegate=True)
            pair = place.values.compute(node)
            told = (
                (shown[node], None)
                if node in shown
                else self._find(node, pair, delegate)
            )
            place.values.keep(
                node,
                (
                    pair
                    if told is None
                    else self._judge(node, told[0], pair, place, told[1])
                ),
            )
        self._drop_fused(first, place, shown)
        pairs = [
            place.values.pair(n) if isinstance(n, Node) else Pair(n, n)
            for n in delegate.returned
        ]
        # where eager has the same bits, what follows on the host is eager's too, and is
        # not computed twice
        eager = (
            got if is_same(p.eager, got) else p.eager
            for p, got in zip(pairs, outputs, strict=True)
        )
        return Pair(tuple(eager), tuple(p.exact for p in pairs))

    def _find(
        self, node: Node, pair: Pair, delegate: DelegateValues
    ) -> tuple[torch.Tensor, OutputStatistics | None] | None:
        if not isinstance(pair.eager, torch.Tensor):
            return None
        found = delegate.find(node, pair)
        if found is None:
            self._missing[delegate.why_not] += 1
        return found

    def _drop_fused(self, first: int, place: _Place, shown: Mapping[Any, Any]) -> None:
        """Drop values in a delegate that differ although all their uses agree.

        Backends fuse and move operators: under this debug handle, the backend computed
        another value. If a use could not be compared, the uses of its result decide.
        """
        agreed: dict[str, bool] = {row.node: row.agrees() for row in self._rows[first:]}
        for node in reversed(place.values.operands):
            users = [agreed[u.name] for u in node.users if u.name in agreed]
            if node.name not in agreed and users:
                agreed[node.name] = all(users)
            elif (
                not agreed.get(node.name, True)
                and node not in shown
                and users
                and all(users)
            ):
                agreed[node.name] = True
                self._rows[first:] = [
                    row for row in self._rows[first:] if row.node != node.name
                ]
                self._missing["the backend has fused or moved them"] += 1

    def _judge(
        self,
        node: Node,
        got: Any,
        pair: Pair,
        place: _Place,
        known: OutputStatistics | None = None,
    ) -> Pair:
        """Compare each tensor of ``node``; return the values for eager PyTorch and
        float64.

        ``known``: the comparison of a single tensor with float64, if it was made
        already.
        """
        if isinstance(pair.eager, torch.Tensor) and isinstance(got, torch.Tensor):
            return self._judge_one(node, Measured(node.name, got, *pair), place, known)
        if not isinstance(pair.eager, (tuple, list, dict)):
            return pair
        (eagers, spec), gots = pytree.tree_flatten(pair.eager), pytree.tree_leaves(got)
        sides = zip(gots, eagers, pytree.tree_leaves(pair.exact), strict=True)
        taken = []
        for k, (value, eager, exact) in enumerate(sides):
            name = f"{node.name}[{k}]" if len(gots) > 1 else node.name
            tensors = isinstance(value, torch.Tensor) and isinstance(
                eager, torch.Tensor
            )
            measured = Measured(name, value, eager, exact)
            taken.append(
                self._judge_one(node, measured, place, known)
                if tensors
                else Pair(eager, exact)
            )
        return Pair(
            *(
                pytree.tree_unflatten([one[side] for one in taken], spec)
                for side in (0, 1)
            )
        )

    def _judge_one(
        self, node: Node, value: Measured, place: _Place, known: OutputStatistics | None
    ) -> Pair:
        name, got, eager, exact = value
        if is_random(node):
            self._add_row(
                node,
                place,
                Accuracy(compare(name, got, got)._replace(remark=RANDOM), 0.0),
            )
            return Pair(got, widened(got))
        if eager.is_floating_point() or eager.is_complex():
            self._add_row(node, place, measure(value, known))
            return Pair(eager, exact)
        figures = compare(name, got, eager)
        differs = figures.max_abs_error > 0 or figures.mismatched > 0
        remark = _why_undecided(node, got, eager, exact, place) if differs else ""
        self._add_row(
            node,
            place,
            Accuracy(figures._replace(remark=remark) if remark else figures, 0.0),
        )
        return Pair(got, got) if remark else Pair(eager, eager)

    def _add_row(self, node: Node, place: _Place, accuracy: Accuracy) -> None:
        # of one of several results
        maker = node.args[0] if node.target is operator.getitem else node
        target = _text(getattr(maker, "target", node.target))
        handle = node.meta.get("debug_handle")
        named = (self._method, node.name, target, handle, place.where, source_of(node))
        quantizes = target.startswith("quantized_decomposed.quantize")
        self._rows.append(
            OperatorStatistics(*named, *accuracy, quantizes, place.iteration)
        )


@cache
def _text(target: Any) -> str:
    """Cache operator names: torch formats them at each use."""
    return str(target)


def _why_undecided(node: Node, got: Any, eager: Any, exact: Any, place: _Place) -> str:
    """Return why integers or bools may differ, if they may."""
    if got.shape != eager.shape:
        return ""
    maker = picked_from(node)
    source = None if maker is None else maker.args[0]
    if maker is not None and isinstance(source, Node):
        tied = why_tied(maker, got, eager, place.values.pair(source).eager)
        if tied:
            return tied
    comparable = isinstance(exact, torch.Tensor) and exact.shape == eager.shape
    return (
        UNDECIDED if comparable and bool((exact != eager)[got != eager].all()) else ""
    )

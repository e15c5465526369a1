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
from .inside import FUSED, DelegateValues, Found
from .operators import (
    OperatorStatistics,
    OperatorVerification,
    VerificationByOperator,
    merged,
)
from .reruns import verify_ties
from .ties import picked_from, why_tied
from .values import Accuracy, Measured, measure

# remarks, which excuse a difference
RANDOM = (
    "random: eager draws other numbers, and continues with those of the lowered program"
)
DECIDED = "with the program's decisions, eager gives the same result: see the operators"
UNDECIDED = "eager disagrees with itself: in float64 it makes another decision there"
ITERATIONS = 1000
"""The most runs of a branch or loop body that are compared."""
# reasons why values are not compared
LATER = f"in a branch or loop body after {ITERATIONS} runs"
WHOLE = "in a branch or loop inside a delegate"
VECTORIZED = "in a body that torch runs on many elements at once"


class _Place(NamedTuple):
    """A graph that the program runs, with the values of eager PyTorch.

    ``where``: the name of the place in reports: ``host``, ``host, in PATH`` or a
    delegate. ``path``: the attributes that lead to the branch or loop body, with a dot
    at the end. ``iteration``: the number of the current run of a loop body, or None.
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
    name = lowered.chosen_method(method)
    reference = Reference(name, lowered.exported_program(name))
    if ties:
        outputs = verify_ties(
            lowered, *args, method=method, observer=reference, **kwargs
        )
    else:
        outputs = lowered.verify(*args, method=method, observer=reference, **kwargs)
    return reference.added_to(outputs)


class Reference:
    """The observer of one run, which compares each value; see ``Observer``.

    ``begin``, ``enter``, ``inside``, ``see``, ``leave`` and ``end`` are called during
    the run. Afterwards, ``verification`` is the result.
    """

    def __init__(self, method: str, program: ExportedProgram) -> None:
        self._method = method
        self._host = _Place("host", EagerValues(program))
        self._places: list[_Place | None] = [self._host]
        """The host's graph and its running subgraphs; None beyond ``ITERATIONS``."""
        self._runs: Counter[str] = Counter()
        """Path of a branch or loop body -> how often it ran."""
        self._rows: list[OperatorStatistics] = []
        self._missing: Counter[str] = Counter()
        """Reason -> the number of values that were not compared."""
        self._inside: dict[LoweredBackendModule, Inside] = {}
        """Delegate -> its inner values, until ``see`` gets its call."""
        self._results = self._host.values.returned(MUTATIONS)
        """The nodes and constants that the program returns."""
        self._returned: dict[Node, Any] = {}
        """Returned node -> its value, before a call writes buffers."""
        self._outputs = Verification(())
        """The comparison of outputs with eager that took the program's decisions."""

    @property
    def verification(self) -> OperatorVerification:
        """Return all compared values."""
        return OperatorVerification(tuple(merged(self._rows)), dict(self._missing))

    def added_to(self, found: Verification) -> VerificationByOperator:
        """Return ``found``, the comparison of outputs, with the figures of operators.

        If an output differs, but agrees once eager PyTorch takes the program's
        decisions, it gets a remark.
        """
        decided = any(row.figures.remark for row in self._rows)
        outputs = []
        for output, followed in zip(found.outputs, self._outputs.outputs, strict=True):
            if decided and not output.agrees() and followed.agrees():
                output = followed._replace(remark=DECIDED)
            outputs.append(output)
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
        wanted = []
        got = []
        for value in self._results:
            if isinstance(value, Node):
                eager = self._host.values.pair(value).eager
                wanted.append(eager)
                got.append(self._returned.get(value, eager))
            else:
                wanted.append(value)
                got.append(value)
        self._outputs = Verification.of(got, wanted)

    def inside(self, delegate: DelegateInfo, values: Inside) -> None:
        self._inside[delegate.module] = values

    def enter(self, owner: Node, module: GraphModule, inputs: Sequence[Any]) -> None:
        """Begin a run of a branch or loop body, which is compared separately.

        Eager PyTorch begins with the lowered program's inputs. So an error in one
        iteration is not reported for all later ones.
        """
        outer = self._places[-1]
        path = f"{outer.path}{owner.target}." if outer is not None else ""
        self._runs[path] += 1
        if outer is None or self._runs[path] > ITERATIONS:
            self._places.append(None)
            return
        values = EagerValues(module)
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        for node, value in zip(placeholders, inputs, strict=True):
            values.known[node] = Pair(value, widened(value))
        # the operators that use the body, such as ``cond`` or ``while_loop``
        names = {getattr(user.target, "__name__", "") for user in owner.users}
        is_loop = bool(names - {"cond"})
        iteration = self._runs[path] if is_loop else outer.iteration
        self._places.append(_Place(f"host, in {path[:-1]}", values, path, iteration))

    def leave(self) -> None:
        self._places.pop()

    def see(self, node: Node, value: Any) -> None:
        place = self._places[-1]
        if place is None:
            self._missing[LATER] += 1
            return
        if node.target is CALL_DELEGATE:
            pair = self._compare_delegate(node, value, place)
        else:
            self._count_unseen(node, place, in_delegate=False)
            pair = place.values.compute(node, value)
            # ``getitem`` unpacks a result that was compared already
            if node.target is not operator.getitem:
                pair = self._compare(node, value, pair, place)
        if place is self._host and node in self._results:
            self._returned[node] = value
        place.values.record(node, pair, value)

    def _count_unseen(self, call: Node, place: _Place, in_delegate: bool) -> None:
        """Count the values in branches and bodies of a call that no observer receives."""
        if isinstance(call.target, OpOverload):
            return  # it has no branches or bodies
        for owner in place.values.operands[call]:
            if owner.op != "get_attr" or (not in_delegate and is_observable(owner)):
                continue
            module = getattr(place.values.module, str(owner.target), None)
            if isinstance(module, GraphModule):
                calls = sum(n.op == "call_function" for n in module.graph.nodes)
                self._missing[WHOLE if in_delegate else VECTORIZED] += calls

    def _compare_delegate(
        self, call: Node, outputs: tuple[Any, ...], outer: _Place
    ) -> Pair:
        """Compare the operators in a delegate, and its outputs.

        Eager and float64 run the delegate's original program. Their values are compared
        with those that its runtime observed. Returns their outputs.
        """
        owner: Any = call.args[0]
        module: LoweredBackendModule = getattr(outer.values.module, owner.target)
        delegate = DelegateValues(module, self._inside.pop(module, None))
        where = f"{outer.path}{owner.target}"
        place = _Place(where, delegate.values, outer.path, outer.iteration)
        inputs = user_inputs(module.original_module)
        for node, operand in zip(inputs, call.args[1:], strict=True):
            place.values.known[node] = _pair_of(operand, outer.values)
        shown = dict(zip(delegate.returned, outputs, strict=True))
        first = len(self._rows)
        for node in place.values.operands:
            self._count_unseen(node, place, in_delegate=True)
            pair = place.values.compute(node)
            if node in shown:
                pair = self._compare(node, shown[node], pair, place)
            else:
                found = self._find(node, pair, delegate)
                if found is not None:
                    pair = self._compare(node, found.value, pair, place, found.figures)
            place.values.record(node, pair)
        self._drop_fused(first, place, shown)
        eager = []
        exact = []
        for node, got in zip(delegate.returned, outputs, strict=True):
            pair = _pair_of(node, place.values)
            # for equal values, take the very object of the lowered program: then
            # ``EagerValues.compute`` need not compute the host's later values again
            eager.append(got if is_same(pair.eager, got) else pair.eager)
            exact.append(pair.exact)
        return Pair(tuple(eager), tuple(exact))

    def _find(self, node: Node, pair: Pair, delegate: DelegateValues) -> Found | None:
        """Return the observed value of a node; if there is none, count it as missing."""
        if not isinstance(pair.eager, torch.Tensor):
            return None
        found = delegate.find(node, pair)
        if found is None:
            self._missing[delegate.why_not] += 1
        return found

    def _drop_fused(self, first: int, place: _Place, shown: Mapping[Any, Any]) -> None:
        """Drop values in a delegate that differ although all their uses agree.

        Backends fuse and move operators: then the value that was observed for a node is
        another one than the node computes. If a use of it was not compared, the uses of
        that use decide, and so on. ``first``: the first of the delegate's rows.
        ``shown``: its outputs, which are never dropped.
        """
        agreed: dict[str, bool] = {row.node: row.agrees() for row in self._rows[first:]}
        dropped = set()
        # uses come before the values that they use
        for node in reversed(place.values.operands):
            uses = [agreed[u.name] for u in node.users if u.name in agreed]
            if not uses:
                continue
            if node.name not in agreed:
                agreed[node.name] = all(uses)
            elif not agreed[node.name] and all(uses) and node not in shown:
                agreed[node.name] = True
                dropped.add(node.name)
                self._missing[FUSED] += 1
        kept = [row for row in self._rows[first:] if row.node not in dropped]
        self._rows[first:] = kept

    def _compare(
        self,
        node: Node,
        got: Any,
        pair: Pair,
        place: _Place,
        known: OutputStatistics | None = None,
    ) -> Pair:
        """Compare each tensor of ``node``, and add its row.

        ``got``: the value of the lowered program. ``known``: the comparison with
        float64, if it was made before. Returns the values with which eager PyTorch and
        float64 continue: those of ``pair``, or the program's decisions.
        """
        if isinstance(pair.eager, torch.Tensor) and isinstance(got, torch.Tensor):
            measured = Measured(node.name, got, pair.eager, pair.exact)
            return self._compare_tensor(node, measured, place, known)
        if not isinstance(pair.eager, (tuple, list, dict)):
            return pair
        eagers, spec = pytree.tree_flatten(pair.eager)
        exacts = pytree.tree_leaves(pair.exact)
        gots = pytree.tree_leaves(got)
        for k, value in enumerate(gots):
            if not isinstance(value, torch.Tensor):
                continue
            if not isinstance(eagers[k], torch.Tensor):
                continue
            name = f"{node.name}[{k}]" if len(gots) > 1 else node.name
            measured = Measured(name, value, eagers[k], exacts[k])
            continued = self._compare_tensor(node, measured, place, known)
            eagers[k] = continued.eager
            exacts[k] = continued.exact
        return Pair(
            pytree.tree_unflatten(eagers, spec), pytree.tree_unflatten(exacts, spec)
        )

    def _compare_tensor(
        self, node: Node, value: Measured, place: _Place, known: OutputStatistics | None
    ) -> Pair:
        """Compare one tensor: see ``_compare``.

        Random numbers are those of the program. So are integers and bools that differ
        for a reason that excuses it, such as a tie.
        """
        name, got, eager, exact = value
        if is_random(node):
            figures = compare(name, got, got)._replace(remark=RANDOM)
            self._add_row(node, place, Accuracy(figures, 0.0))
            return Pair(got, widened(got))
        if eager.is_floating_point() or eager.is_complex():
            self._add_row(node, place, measure(value, known))
            return Pair(eager, exact)

        figures = compare(name, got, eager)
        remark = ""
        if figures.max_abs_error > 0 or figures.mismatched > 0:
            remark = _why_undecided(node, got, eager, exact, place)
        if remark:
            figures = figures._replace(remark=remark)
        self._add_row(node, place, Accuracy(figures, 0.0))
        return Pair(got, got) if remark else Pair(eager, eager)

    def _add_row(self, node: Node, place: _Place, accuracy: Accuracy) -> None:
        # getitem unpacks one of several results
        maker = node.args[0] if node.target is operator.getitem else node
        target = _text(getattr(maker, "target", node.target))
        row = OperatorStatistics(
            method=self._method,
            node=node.name,
            operator=target,
            debug_handle=node.meta.get("debug_handle"),
            where=place.where,
            source=source_of(node),
            figures=accuracy.figures,
            eager_error=accuracy.eager_error,
            quantizes=target.startswith("quantized_decomposed.quantize"),
            iteration=place.iteration,
        )
        self._rows.append(row)


def _pair_of(value: Any, values: EagerValues) -> Pair:
    """Return the values of a node; for a constant, the constant twice."""
    if isinstance(value, Node):
        return values.pair(value)
    return Pair(value, value)


@cache
def _text(target: Any) -> str:
    """Cache operator names: torch formats them at each use."""
    return str(target)


def _why_undecided(node: Node, got: Any, eager: Any, exact: Any, place: _Place) -> str:
    """Return the reason why differing integers or bools are no error, or "".

    They may be positions of equal elements. Or eager itself may differ from float64 at
    each of these elements, so that rounding decides.
    """
    if got.shape != eager.shape:
        return ""
    maker = picked_from(node)
    source = None if maker is None else maker.args[0]
    if maker is not None and isinstance(source, Node):
        tied = why_tied(maker, got, eager, place.values.pair(source).eager)
        if tied:
            return tied
    if not isinstance(exact, torch.Tensor) or exact.shape != eager.shape:
        return ""
    disagrees = (exact != eager)[got != eager]
    return UNDECIDED if bool(disagrees.all()) else ""

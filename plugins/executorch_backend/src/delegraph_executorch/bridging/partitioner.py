"""A partitioner of ExecuTorch as one of delegraph."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, ClassVar

import torch
from delegraph.backend import CompileSpec
from delegraph.errors import ContractViolation, DelegraphError, Unsupported
from delegraph.io.quiet import quietly
from delegraph.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    Refusal,
    tag_constant_data,
    tag_mutated_buffer,
)
from delegraph_engines import why_subgraph
from delegraph_programs import constant_placeholders, placeholders, written_values
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..emit.sizes import upper_bounds
from .cycles import without_cycles
from .edge import MARKS, pieces_of, to_edge_dialect
from .parts import remember
from .quantized import computes_channels, mark_quantized

LOG = logging.getLogger("delegraph.failures")
"""The logger of delegraph for exceptions that become refusals."""
MOST_ATTEMPTS = 8
"""How often the other partitioner is asked again to find the calls on which it fails.
"""
aten = torch.ops.aten
_PRODUCTS = (
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
)


class BridgedPartitioner(Partitioner):
    """Tags what a partitioner of ExecuTorch tags in a copy of the program in edge
    dialect, as the same partitions.

    A call whose pieces would go to different partitions, or only in part, is refused,
    as is one with sizes that nothing bounds. A subclass that ``bridge`` made has
    ``backend_id``, ``make``, which is called with the options and returns the other
    partitioner, and ``refuses``, which says why a call is not even shown to it, or
    None.
    """

    backend_id: ClassVar[str]
    make: ClassVar[Callable[..., Any]]
    refuses: ClassVar[Callable[[Node, Collection[Node]], str | None]]
    cached: ClassVar[bool] = False

    def __init__(self, **options: Any) -> None:
        super().__init__(options)
        self.theirs = type(self).make(**options)

    def fingerprint(self, exported_program: ExportedProgram) -> str | None:
        """If answers may be cached: versions of ExecuTorch and of the bridge, options,
        and what products come from.

        XNNPACK's partitioner asks tracers' metadata whether a product was a linear
        layer.
        """
        if not self.cached:
            return None
        calls = [n for n in exported_program.graph.nodes if n.target in _PRODUCTS]
        whence = [
            [
                str(n.meta.get(key))
                for key in ("source_fn_stack", "torch_fn", "nn_module_stack")
            ]
            for n in calls
        ]
        return repr(
            [
                *map(version, ("executorch", "delegraph-executorch")),
                sorted(self.spec.items()),
                whence,
            ]
        )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        calls = [n for n in exported_program.graph.nodes if n.op == "call_function"]
        constants = constant_placeholders(exported_program)
        hidden = ((n, self._why_hidden(n, exported_program, constants)) for n in calls)
        reasons = {n: why for n, why in hidden if why is not None}
        # What is refused although a piece of it was tagged is hidden from the
        # partitioner, which is then asked again: its partitions would lie before and
        # behind that call otherwise, and leave no order to run them in. So is a clone
        # that leaves a partition beside its original: backends drop clones, and a blob
        # has no result twice.
        attempts = _Attempts()
        while True:
            try:
                result, known = self._ask(exported_program, reasons)
            except Exception as error:
                if isinstance(error, (DelegraphError, MemoryError)):
                    raise
                candidates = [n for n in calls if n not in reasons]
                failing = attempts.failing(
                    candidates,
                    partial(self._asks, exported_program, frozenset(reasons)),
                )
                if not failing:
                    raise
                LOG.info("%s failed", type(self.theirs).__name__, exc_info=error)
                text = str(error).strip().partition("\n")[0]
                reason = f"ExecuTorch fails on it: {type(error).__name__}" + (
                    f": {text}" if text else ""
                )
                reasons |= dict.fromkeys(failing, reason)
                continue
            pieces = pieces_of(result.tagged_exported_program)
            tags = {
                n: next(iter(_tags(pieces.get(_call_of(n).name, ()))), None)
                for n in calls
            }
            _tag_dropped(calls, tags, pieces)
            split = {
                n
                for n in calls
                if n not in reasons and len(_tags(pieces.get(n.name, ()))) > 1
            }
            twice = _clones_beside_originals(calls, tags)
            if not split and not twice:
                break
            reasons |= dict.fromkeys(
                split, f"{type(self.theirs).__name__} takes only a part of it"
            )
            reasons |= dict.fromkeys(
                twice,
                "its original is a result of the same delegate, which has no result"
                " twice",
            )
        tags, was = without_cycles(calls, tags)
        # in the order of the program
        used = dict.fromkeys(tag for tag in tags.values() if tag is not None)
        for node in (n for n in calls if tags[n] is not None):
            node.meta["delegation_tag"] = tags[node]
            _keep_marks(node, pieces.get(node.name, ()), known.get(node.name, ()))
        remember(
            exported_program,
            result.tagged_exported_program,
            [n for n in calls if tags[n] is not None],
        )
        tag_constant_data(exported_program)
        _hand_over_constants(result.tagged_exported_program, exported_program)
        if self._keeps_buffers(result.tagged_exported_program, exported_program):
            tag_mutated_buffer(exported_program)
        given = result.partition_tags
        specs = {
            tag: self._delegation(tag, given[was[tag]])
            for tag in used
            if was[tag] in given
        }
        refused = [n for n in calls if tags[n] is None]
        refusals = [
            Refusal(n, reasons.get(n) or self._why_untagged(n)) for n in refused
        ]
        return PartitionResult(exported_program, specs, refusals=refusals)

    def _ask(
        self, program: ExportedProgram, hidden: Collection[Node]
    ) -> tuple[Any, dict[str, list[set[str]]]]:
        """The other partitioner's result without the calls in ``hidden``, and which
        keys each piece had in its meta.
        """
        edge = to_edge_dialect(program, hidden)
        mark_quantized(edge)
        known = {
            name: [set(piece.meta) for piece in pieces]
            for name, pieces in pieces_of(edge).items()
        }
        with quietly():
            return self.theirs.partition(edge), known

    def _asks(
        self, program: ExportedProgram, hidden: Collection[Node], more: Collection[Node]
    ) -> bool:
        """Whether the other partitioner answers without the calls in ``hidden`` and
        ``more``.
        """
        try:
            self._ask(program, {*hidden, *more})
        except Exception as error:
            if isinstance(error, (DelegraphError, MemoryError)):
                raise
            return False
        return True

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """Those of the other partitioner; operators that write or alias cannot stay
        whole in a functional program.
        """
        operators, wanted = self.theirs.ops_to_not_decompose(ep)
        return [
            op for op in operators if isinstance(op, OpOverload) and not _aliases(op)
        ], wanted

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        changed: ExportedProgram = self.theirs.transform_for_pre_decomposition(
            exported_program
        )
        return changed

    def _delegation(self, tag: str, spec: Any) -> DelegationSpec:
        if spec.backend_id != self.backend_id:
            text = (
                f"{type(self.theirs).__name__} gave the partition {tag} to"
                f" {spec.backend_id}, not {self.backend_id}"
            )
            raise ContractViolation(
                "contract-violation", text, hint="bridge it together with that backend"
            )
        return DelegationSpec(
            spec.backend_id,
            [CompileSpec(s.key, bytes(s.value)) for s in spec.compile_specs],
        )

    def _why_hidden(
        self, node: Node, program: ExportedProgram, constants: Collection[Node]
    ) -> str | None:
        """Why a call must not be delegated, whatever the partitioner thinks of it."""
        if computes_channels(node):
            return "it has a scale for each channel of what is computed at run time"
        for value in (node, *node.all_input_nodes):
            for val in pytree.tree_leaves(value.meta.get("val")):
                try:
                    upper_bounds(
                        val.shape if isinstance(val, torch.Tensor) else (),
                        program.range_constraints,
                        value,
                    )
                except Unsupported as e:
                    return f"{e.message}; {e.hint}"
        return type(self).refuses(node, constants)

    def _why_untagged(self, node: Node) -> str:
        """Return a reason for a call that the other partitioner left without one; its
        types, as they may matter.
        """
        name = type(self.theirs).__name__
        why = why_subgraph(node, name)
        if why is not None:
            return why
        values = [value.meta.get("val") for value in (*node.all_input_nodes, node)]
        tensors = [
            leaf
            for leaf in pytree.tree_leaves(values)
            if isinstance(leaf, torch.Tensor)
        ]
        types = {str(tensor.dtype): None for tensor in tensors}
        if set(types) <= {"torch.float32"}:
            return f"{name} does not take it"
        return f"{name} does not take it with {', '.join(types)}"

    def _keeps_buffers(self, edge: ExportedProgram, own: ExportedProgram) -> bool:
        names = {n.name for n in written_values(own)}
        return any(
            "delegation_tag" in n.meta
            for n in edge.graph.nodes
            if n.op == "placeholder" and n.name in names
        )


class _Attempts:
    """Finds the calls on which the other partitioner, or the conversion to edge
    dialect, raises an exception.
    """

    def __init__(self) -> None:
        self._left = MOST_ATTEMPTS

    def failing(
        self, calls: Sequence[Node], works_without: Callable[[Sequence[Node]], bool]
    ) -> Sequence[Node]:
        """The call, or few of them, that must be hidden so that those before them work;
        none if that is not found.

        ``works_without`` tells whether it works without the calls that it gets.
        """
        if not self._left:
            return ()
        good = 0
        bad = len(calls)
        while bad - good > 1 and self._left:
            self._left -= 1
            middle = (good + bad) // 2
            if works_without(calls[middle:]):
                good = middle
            else:
                bad = middle
        return calls[good:bad]


def _hand_over_constants(edge: ExportedProgram, own: ExportedProgram) -> None:
    """Leave the constants that the other partitioner left untagged to the host, which
    hands them over with each call.

    XNNPACK takes the weights of its layers only. It would hold a constant without
    dimensions as one of one dimension, and so compute a result without dimensions that
    its runtime then refuses to return.
    """
    tagged = {
        n.name
        for n in edge.graph.nodes
        if n.op == "placeholder" and "delegation_tag" in n.meta
    }
    for node, _ in placeholders(own):
        if node.name not in tagged:
            node.meta.pop("delegation_tag", None)


def _tag_dropped(
    calls: Sequence[Node], tags: dict[Node, Any], pieces: Mapping[str, Sequence[Node]]
) -> None:
    """Give calls inside of one partition of which edge dialect has nothing left, as
    they change nothing, its tag.

    On the host, they would make the partition need its own result.
    """
    dropped = [n for n in calls if _call_of(n).name not in pieces]
    for node in dropped:
        before = {tags.get(i) for i in node.all_input_nodes}
        tags[node] = next(iter(before)) if len(before) == 1 else None
    for node in reversed(dropped):
        if not node.users or any(tags.get(user) != tags[node] for user in node.users):
            tags[node] = None


def _clones_beside_originals(
    calls: Sequence[Node], tags: Mapping[Node, Any]
) -> set[Node]:
    """Clones that leave their partition although the cloned value, or another clone of
    it, leaves it too.
    """
    found: set[Node] = set()
    leaving: set[Node] = set()
    for node in calls:
        tag = tags[node]
        if tag is None or all(tags.get(user) == tag for user in node.users):
            continue
        original = node
        while (
            original.target is torch.ops.aten.clone.default
            and tags.get(original.args[0]) == tag  # type: ignore[arg-type]
        ):
            original = original.args[0]  # type: ignore[assignment]
        (found if original in leaving else leaving).add(
            node if original in leaving else original
        )
    return found


def _tags(pieces: Sequence[Node]) -> set[Any]:
    """The tags of the pieces of a call, None for one that has none."""
    return {piece.meta.get("delegation_tag") for piece in pieces}


def _keep_marks(node: Node, pieces: Sequence[Node], known: Sequence[set[str]]) -> None:
    """Keep what the other partitioner wrote into the meta of pieces, such as XNNPACK's
    of what is quantized.
    """
    pairs = zip(pieces, known, strict=False)
    marks = [
        {k: v for k, v in p.meta.items() if k not in old and k != "delegation_tag"}
        for p, old in pairs
    ]
    if any(marks):
        node.meta[MARKS] = marks


def _call_of(node: Node) -> Node:
    """The call of whose results ``node`` takes one; ``node`` itself if it takes none."""
    return _call_of(node.args[0]) if node.target is operator.getitem else node  # type: ignore[arg-type]


def _aliases(op: OpOverload) -> bool:
    schema = op._schema
    return schema.is_mutable or any(r.alias_info is not None for r in schema.returns)

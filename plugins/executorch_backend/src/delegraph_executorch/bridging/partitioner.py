"""Use a partitioner of ExecuTorch, ``theirs``, as one of delegraph.

``theirs`` gets a copy of the program in edge dialect, where a call becomes one or
several pieces. It tags pieces; ``BridgedPartitioner`` tags the calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, ClassVar, NamedTuple

import torch
from delegraph.backend import CompileSpec
from delegraph.errors import ContractViolation, DelegraphError, Unsupported
from delegraph.partitioner import DelegationSpec, Partitioner, PartitionResult, Refusal
from delegraph_engines import (
    quietly,
    tag_constant_data,
    tag_mutated_buffer,
    why_subgraph,
)
from delegraph_programs import constant_placeholders, placeholders, written_values
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..emit.size_bounds import upper_bounds
from .cut_partition import remember_conversion
from .cycles import split_cycles
from .edge import (
    MARKS,
    ORIGIN_KEYS,
    calls_of,
    pieces_of,
    producer_of,
    to_edge_dialect,
)
from .quantized import computes_channels, mark_quantized

LOG = logging.getLogger("delegraph.failures")
"""The logger of delegraph for exceptions that become refusals."""
MOST_ATTEMPTS = 8
"""The most attempts to find the calls on which ExecuTorch's partitioner fails."""
aten = torch.ops.aten
_PRODUCTS = (
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
)


class BridgedPartitioner(Partitioner):
    """Tags the calls with pieces that a partitioner of ExecuTorch tags.

    A call is refused if its pieces are in different partitions, if only some of them
    are tagged, or if a size has no upper bound.

    ``bridge`` makes subclasses. ``make`` returns ``theirs`` for the options. ``refuses``
    returns the reason why a call is not offered to it, or None. ``cached``: whether a
    cache may keep tags.
    """

    backend_id: ClassVar[str]
    make: ClassVar[Callable[..., Any]]
    refuses: ClassVar[Callable[[Node, Collection[Node]], str | None]]
    cached: ClassVar[bool] = False

    def __init__(self, **options: Any) -> None:
        super().__init__(options)
        self.theirs = type(self).make(**options)

    def fingerprint(self, exported_program: ExportedProgram) -> str | None:
        """Return the key under which answers are cached; None if they must not be.

        The key contains the versions of ExecuTorch and of this plugin, and the options.
        It also has the origin of each matrix product: XNNPACK's partitioner checks
        whether a product was a linear layer.
        """
        if not self.cached:
            return None
        origins = []
        for node in exported_program.graph.nodes:
            if node.target in _PRODUCTS:
                origins.append([str(node.meta.get(key)) for key in ORIGIN_KEYS])
        versions = [version("executorch"), version("delegraph-executorch")]
        return repr([*versions, sorted(self.spec.items()), origins])

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the calls that ``theirs`` takes; refuse the others with reasons."""
        calls = calls_of(exported_program)
        reasons = self._reasons_to_hide(calls, exported_program)
        tagging = self._run_until_consistent(exported_program, calls, reasons)
        tags, original_tag = split_cycles(calls, tagging.tags)
        tagged = [n for n in calls if tags[n] is not None]
        for node in tagged:
            node.meta["delegation_tag"] = tags[node]
            _store_marks(
                node,
                tagging.pieces.get(node.name, ()),
                tagging.keys_before.get(node.name, ()),
            )
        edge = tagging.result.tagged_exported_program
        remember_conversion(exported_program, edge, tagged)
        tag_constant_data(exported_program)
        _untag_constants(edge, exported_program)
        if _tags_written_buffer(edge, exported_program):
            tag_mutated_buffer(exported_program)
        # Parts of a split partition have the compile specs of the original partition.
        their_specs = tagging.result.partition_tags
        specs = {}
        for node in tagged:
            tag = str(tags[node])
            their_tag = original_tag[tag]
            if tag not in specs and their_tag in their_specs:
                specs[tag] = self._delegation(tag, their_specs[their_tag])
        refusals = [
            Refusal(n, reasons.get(n) or self._why_untagged(n))
            for n in calls
            if tags[n] is None
        ]
        return PartitionResult(exported_program, specs, refusals=refusals)

    def _reasons_to_hide(
        self, calls: Sequence[Node], program: ExportedProgram
    ) -> dict[Node, str]:
        """Return the calls that must not be offered to ``theirs``, with reasons."""
        constants = constant_placeholders(program)
        reasons: dict[Node, str] = {}
        for node in calls:
            why = self._why_hidden(node, program, constants)
            if why is not None:
                reasons[node] = why
        return reasons

    def _run_until_consistent(
        self, program: ExportedProgram, calls: Sequence[Node], reasons: dict[Node, str]
    ) -> _Tagging:
        """Run ``theirs`` until no call that it tags has to be refused.

        ``reasons`` are the calls that are hidden from ``theirs``. After each run, this
        method adds the calls to refuse, and the calls on which ``theirs`` failed.
        Without another run, a partition could contain calls before and after a refused
        call, and would depend on its own result.
        """
        attempts = _Attempts()
        while True:
            try:
                result, keys_before = self._run_theirs(program, reasons)
            except (DelegraphError, MemoryError):
                raise
            except Exception as error:
                offered = [n for n in calls if n not in reasons]
                runs_without = partial(self._runs_without, program, frozenset(reasons))
                failing = attempts.failing(offered, runs_without)
                if not failing:
                    # no attempts are left
                    raise
                LOG.info("%s failed", type(self.theirs).__name__, exc_info=error)
                reasons |= dict.fromkeys(failing, _why_failed(error))
                continue
            pieces = pieces_of(result.tagged_exported_program)
            tags = _tags_of(calls, pieces)
            refused = self._refused_by_tags(calls, tags, pieces)
            new = {n: why for n, why in refused.items() if n not in reasons}
            if not new:
                return _Tagging(result, pieces, tags, keys_before)
            reasons |= new

    def _refused_by_tags(
        self,
        calls: Sequence[Node],
        tags: Mapping[Node, Any],
        pieces: Mapping[str, Sequence[Node]],
    ) -> dict[Node, str]:
        """Return the calls that must be refused because of their tags, with reasons."""
        name = type(self.theirs).__name__
        found: dict[Node, str] = {}
        for node in calls:
            # an untagged piece counts as a tag of its own
            if len(_tags(_pieces_of_call(node, pieces))) > 1:
                found[node] = f"{name} takes only a part of it"
        for node in _clones_of_results(calls, tags):
            found[node] = (
                "its original is a result of the same delegate, which cannot return a"
                " value twice"
            )
        return found

    def _run_theirs(
        self, program: ExportedProgram, hidden: Collection[Node]
    ) -> tuple[Any, dict[str, list[set[str]]]]:
        """Run ``theirs`` without the calls in ``hidden``.

        Return its result, and for each call the keys of its pieces' meta before the run.
        """
        edge = to_edge_dialect(program, hidden)
        mark_quantized(edge)
        keys_before = {}
        for name, pieces in pieces_of(edge).items():
            keys_before[name] = [set(piece.meta) for piece in pieces]
        with quietly():
            return self.theirs.partition(edge), keys_before

    def _runs_without(
        self, program: ExportedProgram, hidden: Collection[Node], more: Collection[Node]
    ) -> bool:
        """Return whether ``theirs`` succeeds if ``hidden`` and ``more`` are hidden."""
        try:
            self._run_theirs(program, {*hidden, *more})
        except (DelegraphError, MemoryError):
            raise
        except Exception:
            return False
        return True

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """Return the operators that ``theirs`` wants whole, and its check of a call.

        Operators that write an argument or return a view are left out: a functional
        program has none.
        """
        operators, wanted = self.theirs.ops_to_not_decompose(ep)
        kept = [
            op for op in operators if isinstance(op, OpOverload) and not _aliases(op)
        ]
        return kept, wanted

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        changed: ExportedProgram = self.theirs.transform_for_pre_decomposition(
            exported_program
        )
        return changed

    def _delegation(self, tag: str, spec: Any) -> DelegationSpec:
        """Convert the delegation of a partition to delegraph's class.

        Raises ContractViolation if it names another backend.
        """
        if spec.backend_id != self.backend_id:
            text = (
                f"{type(self.theirs).__name__} assigned the partition {tag} to the"
                f" backend {spec.backend_id}, but is bridged with {self.backend_id}"
            )
            hint = f"pass the class {spec.backend_id} to bridge"
            raise ContractViolation("contract-violation", text, hint=hint)
        return DelegationSpec(
            spec.backend_id,
            [CompileSpec(s.key, bytes(s.value)) for s in spec.compile_specs],
        )

    def _why_hidden(
        self, node: Node, program: ExportedProgram, constants: Collection[Node]
    ) -> str | None:
        """Return why a call must not be offered to ``theirs``, or None."""
        if computes_channels(node):
            return "it has a scale for each channel of a value computed at run time"
        for value in (node, *node.all_input_nodes):
            for val in pytree.tree_leaves(value.meta.get("val")):
                if not isinstance(val, torch.Tensor):
                    continue
                try:
                    upper_bounds(val.shape, program.range_constraints, value)
                except Unsupported as e:
                    return f"{e.message}; {e.hint}"
        return type(self).refuses(node, constants)

    def _why_untagged(self, node: Node) -> str:
        """Return a reason for a call that ``theirs`` left without a tag.

        ExecuTorch's partitioners give no reasons. The types may explain the refusal.
        """
        name = type(self.theirs).__name__
        why = why_subgraph(node, name)
        if why is not None:
            return why
        values = [value.meta.get("val") for value in (*node.all_input_nodes, node)]
        # A dictionary is a set that keeps its order.
        types: dict[str, None] = {}
        for leaf in pytree.tree_leaves(values):
            if isinstance(leaf, torch.Tensor):
                types[str(leaf.dtype)] = None
        if set(types) <= {"torch.float32"}:
            return f"{name} does not take it"
        return f"{name} does not take it with {', '.join(types)}"


class _Tagging(NamedTuple):
    """The result of a run of ExecuTorch's partitioner.

    ``pieces`` and ``keys_before``: name of a call -> its pieces, and the keys of their
    meta before the run. ``tags``: call -> its tag, or None.
    """

    result: Any
    pieces: dict[str, list[Node]]
    tags: dict[Node, Any]
    keys_before: dict[str, list[set[str]]]


class _Attempts:
    """Finds the calls on which ExecuTorch's partitioner or conversion raises an error."""

    def __init__(self) -> None:
        self._left = MOST_ATTEMPTS

    def failing(
        self, calls: Sequence[Node], works_without: Callable[[Sequence[Node]], bool]
    ) -> Sequence[Node]:
        """Return the call to hide, or several if attempts run out while searching.

        Return none if no attempts are left. ``works_without`` returns whether hiding the
        given calls avoids the error.
        """
        if not self._left:
            return ()
        # Bisect: the first ``good`` calls alone raise no error, the first ``bad`` calls
        # do. So one of ``calls[good:bad]`` causes the error.
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


def _tags_written_buffer(edge: ExportedProgram, program: ExportedProgram) -> bool:
    """Return whether ExecuTorch's partitioner tagged a buffer that the program writes."""
    names = {n.name for n in written_values(program)}
    return any(
        "delegation_tag" in n.meta
        for n in edge.graph.nodes
        if n.op == "placeholder" and n.name in names
    )


def _untag_constants(edge: ExportedProgram, program: ExportedProgram) -> None:
    """Remove the tags of constants that ExecuTorch's partitioner did not tag in ``edge``.

    The host passes untagged constants with each call. XNNPACK's partitioner tags only
    weights of layers. If a blob contains a scalar constant, XNNPACK gives it one
    dimension, and its runtime then refuses to return a scalar result.
    """
    tagged = {
        n.name
        for n in edge.graph.nodes
        if n.op == "placeholder" and "delegation_tag" in n.meta
    }
    for node, _ in placeholders(program):
        if node.name not in tagged:
            node.meta.pop("delegation_tag", None)


def _tags_of(
    calls: Sequence[Node], pieces: Mapping[str, Sequence[Node]]
) -> dict[Node, Any]:
    """Return the tag of each call, or None.

    The conversion to edge dialect drops calls that change nothing, so they have no
    pieces. If all inputs and users of such a call have one tag, it gets this tag. On
    the host, it would make the partition depend on its own result.
    """
    tags: dict[Node, Any] = {}
    for node in calls:
        found = _tags(_pieces_of_call(producer_of(node), pieces))
        tags[node] = next(iter(found), None)
    dropped = [n for n in calls if not _pieces_of_call(producer_of(n), pieces)]
    for node in dropped:
        tags_before = {tags.get(i) for i in node.all_input_nodes}
        tags[node] = tags_before.pop() if len(tags_before) == 1 else None
    for node in reversed(dropped):
        if not node.users or any(tags.get(user) != tags[node] for user in node.users):
            tags[node] = None
    return tags


def _pieces_of_call(node: Node, pieces: Mapping[str, Sequence[Node]]) -> Sequence[Node]:
    """Return the pieces of a call, or else the pieces of its ``getitem`` calls.

    ExecuTorch's partitioner may replace a call with several results by one call for
    each result. Then only the ``getitem`` calls have pieces.
    """
    if node.name in pieces or not isinstance(node.meta.get("val"), (list, tuple)):
        return pieces.get(node.name, ())
    return [piece for user in node.users for piece in pieces.get(user.name, ())]


def _clones_of_results(calls: Sequence[Node], tags: Mapping[Node, Any]) -> set[Node]:
    """Return the clones that would make a partition return one value twice.

    Backends drop clones, so a clone and its original are one value.
    """
    clones: set[Node] = set()
    results: set[Node] = set()
    for node in calls:
        tag = tags[node]
        if tag is None or all(tags.get(user) == tag for user in node.users):
            continue
        # The partition returns ``node``.
        original: Any = node
        while original.target is aten.clone.default and (
            tags.get(original.args[0]) == tag
        ):
            original = original.args[0]
        if original in results:
            clones.add(node)
        else:
            results.add(original)
    return clones


def _tags(pieces: Sequence[Node]) -> set[Any]:
    """Return the tags of a call's pieces, with None for an untagged one."""
    return {piece.meta.get("delegation_tag") for piece in pieces}


def _store_marks(node: Node, pieces: Sequence[Node], keys: Sequence[set[str]]) -> None:
    """Store the entries that ExecuTorch's partitioner added to the meta of the pieces.

    XNNPACK's partitioner marks quantized calls by such entries. ``keys`` has the keys of
    each piece's meta before the partitioner ran.
    """
    marks = []
    for piece, keys_before in zip(pieces, keys, strict=False):
        known = {*keys_before, "delegation_tag"}
        marks.append({k: v for k, v in piece.meta.items() if k not in known})
    if any(marks):
        node.meta[MARKS] = marks


def _why_failed(error: Exception) -> str:
    """Return a refusal's reason: the class and the first line of ExecuTorch's error."""
    reason = f"ExecuTorch fails on it: {type(error).__name__}"
    text = str(error).strip().partition("\n")[0]
    return f"{reason}: {text}" if text else reason


def _aliases(op: OpOverload) -> bool:
    """Return whether an operator writes an argument or returns a view."""
    schema = op._schema
    returns_view = any(r.alias_info is not None for r in schema.returns)
    return schema.is_mutable or returns_view

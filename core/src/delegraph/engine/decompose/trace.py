"""Tracing one call: the operators that its decomposition is made of, under fake tensors, remembered by signature."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._export.utils import _check_valid_to_preserve, _special_op_to_preserve_cia
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx import Graph, Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from ..functionalize.writes import functionalize
from ..tracing import TRACING, unlogged
from .tables import RECURRENT, Decomposed, core_table, is_composite, to_core

aten = torch.ops.aten
Table = Mapping[OpOverload, Decomposed]
_IDENTITIES = frozenset({aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default})
LINEAR = frozenset({aten.linear.default})
"""What stays whole for a backend that can be asked: the one composite that recurrent layers are made of."""


class Untraceable(Exception):
    """A decomposition that cannot stand for its call; the message says why."""


@dataclass(frozen=True)
class Pieces:
    """What one call is made of, in a graph of its own. ``single``: it returns one value, not a tuple."""

    graph: Graph
    single: bool

    @cached_property
    def placeholders(self) -> list[Node]:
        return [n for n in self.graph.nodes if n.op == "placeholder"]

    @cached_property
    def calls(self) -> list[Node]:
        return [n for n in self.graph.nodes if n.op == "call_function"]

    @cached_property
    def results(self) -> tuple[Any, ...]:
        values: Any = self.graph.output_node().args[0]
        return tuple(values)

    def numbered(self) -> Iterator[tuple[int, Any]]:
        return iter(enumerate(self.results))

    def inputs_of(self, node: Node) -> list[Node]:
        """The values that a call of the same signature passes, one a placeholder."""
        return _leaves(node)

    def live(self, wanted: Iterable[int]) -> set[Node]:
        """Calls that the results at positions ``wanted`` need."""
        found: set[Node] = set()
        waiting = [r for k in wanted if isinstance(r := self.results[k], Node)]
        while waiting:
            node = waiting.pop()
            if node not in found and node.op == "call_function":
                found.add(node)
                waiting += node.all_input_nodes
        return found


class Tracer:
    """Traces each distinct call once: operator, types, shapes and strides of tensors, all other arguments."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._memo: dict[Hashable, Pieces | None] = {}
        self._core: dict[Hashable, Pieces | None] = {}

    def pieces(self, node: Node, decomposed: Decomposed | None, kept: frozenset[Any] = LINEAR) -> Pieces | None:
        """The pieces of ``node`` by the function ``decomposed``; None if they cannot take its place.

        Operators in ``kept`` stay whole among the pieces, also those that torch itself opens.
        """
        if decomposed is None:
            return None
        key = (kept, self.signature(node))
        if key not in self._memo:
            self._memo[key] = self._tried(node, decomposed, kept)
        found = self._memo[key]
        return found if found is not None and _replaceable(node, found) else None

    def core_pieces(self, node: Node, kept: frozenset[Any]) -> Pieces | None:
        """The pieces of ``node`` in core ATen or in ``kept``, by one trace; None if only single steps may succeed."""
        decomposed = to_core(node.target)
        if decomposed is None:
            return None
        key = (kept, self.signature(node))
        if key not in self._core:
            try:
                self._core[key] = self._traced(node, decomposed, kept, core_table(kept))
            except Untraceable:  # if no step succeeds either, `pieces` says why
                self._core[key] = None
        found = self._core[key]
        return found if found is not None and _replaceable(node, found) else None

    def signature(self, node: Node) -> Hashable:
        """Everything that a decomposition may look at, and which operands are one value, as in ``x * x``."""
        flat, spec = pytree.tree_flatten((node.args, node.kwargs))
        operands = [leaf for leaf in flat if isinstance(leaf, Node)]
        first = {leaf: k for k, leaf in reversed(list(enumerate(operands)))}
        same = tuple(first[leaf] for leaf in operands)
        return (node.target, _mode_of(node), str(spec), same, *(_key(leaf) for leaf in flat))

    def _tried(self, node: Node, decomposed: Decomposed, kept: frozenset[Any]) -> Pieces | None:
        try:
            return self._traced(node, decomposed, kept)
        except Untraceable as e:
            if to_core(node.target):
                self.failures.append(f"{node.target} was left whole: {e}")
        return None

    def _traced(self, node: Node, decomposed: Decomposed, kept: frozenset[Any], table: Table | None = None) -> Pieces:
        mode: Any = detect_fake_mode([n.meta.get("val") for n in (node, *node.all_input_nodes)])
        if mode is None:
            raise Untraceable("its values have no fake tensors")
        before = _guards(mode)
        pieces = _run(node, decomposed, mode, kept, table)
        if _guards(mode) != before:
            raise Untraceable("its decomposition holds for some of the symbolic sizes only")
        self._check(pieces)
        return pieces

    def _check(self, pieces: Pieces) -> None:
        for call in pieces.calls:
            tags = getattr(call.target, "tags", ())
            if torch.Tag.nondeterministic_seeded in tags and self.pieces(call, to_core(call.target)) is None:
                raise Untraceable(f"its decomposition draws random numbers ({call.target})")


def _mode_of(node: Node) -> int:
    return id(detect_fake_mode([n.meta.get("val") for n in (node, *node.all_input_nodes)]))


def _key(leaf: Any) -> Hashable:
    """Python takes 1, 1.0 and True for equal; operators do not."""
    if not isinstance(leaf, Node):
        return type(leaf), str(leaf) if isinstance(leaf, float) else leaf
    val = leaf.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return "number", type(val), str(val)
    placed = (_sizes(val.stride()), str(val.storage_offset())) if val.layout is torch.strided else None
    return val.dtype, _sizes(val.shape), placed, val.device, val.layout


def _sizes(sizes: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(d if isinstance(d, int) else str(d) for d in sizes)


def _leaves(node: Node) -> list[Node]:
    return [leaf for leaf in pytree.tree_leaves((node.args, node.kwargs)) if isinstance(leaf, Node)]


def _sizes_kept(mode: Any) -> Any:
    """A decomposition that would fix a symbolic size fails instead."""
    return nullcontext() if mode.shape_env is None else mode.shape_env.error_on_new_guards()


def _guards(mode: Any) -> int:
    env = mode.shape_env
    return 0 if env is None else len(env.guards) + len(env.replacements)


def _run(node: Node, decomposed: Decomposed, mode: Any, kept: frozenset[Any], table: Table | None) -> Pieces:
    """Trace one step of the decomposition.

    What it calls stays whole, unless ``table`` opens it, or torch itself does because it is not in ``kept``.
    """
    call, vals = _callable(node, decomposed), _operands(node)
    single: list[bool] = []
    wanted: Any = node.meta.get("val")

    def flat(*values: Any) -> tuple[Any, ...]:
        made = call(*values)
        single.append(not isinstance(made, (list, tuple)))
        results = (made,) if single[-1] else tuple(made)
        return tuple(map(_laid_out, results, wanted if isinstance(wanted, (list, tuple)) else (wanted,)))

    try:
        with TRACING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its own code
            with (
                mode,
                torch.no_grad(),
                _plain(node),
                _whole(kept - {node.target}),
                _sizes_kept(mode),
                unlogged(),
                _use_lazy_graph_module(True),
            ):
                graph = make_fx(flat, table)(*vals).graph
    except Exception as e:
        raise Untraceable(f"tracing its decomposition gave {type(e).__name__}: {str(e).strip()[:200]}") from e
    return Pieces(_tidied(graph, mode), single[-1])


def _operands(node: Node) -> list[Any]:
    """The recorded values that ``node`` is given, each operand's an object of its own: tracers tell them apart by that.

    Calls that were decomposed alike share their pieces' recorded values.
    """
    made: dict[Node, Any] = {}
    seen: set[int] = set()
    for given in dict.fromkeys(_leaves(node)):
        val = given.meta["val"]
        made[given] = val.detach() if isinstance(val, torch.Tensor) and id(val) in seen else val
        seen.add(id(val))
    return [made[given] for given in _leaves(node)]


def _laid_out(made: Any, wanted: Any) -> Any:
    """``made`` with the strides of ``wanted``: a view further on may count on them."""
    comparable = isinstance(made, torch.Tensor) and isinstance(wanted, torch.Tensor) and made.dim() == wanted.dim()
    if not comparable or _strides(made) == _strides(wanted):
        return made
    strides: Any = wanted.stride()
    if not all(isinstance(s, int) for s in strides):
        return made  # to compare symbolic strides would fix them
    outer_first = sorted(range(made.dim()), key=lambda d: -strides[d])
    back = [outer_first.index(d) for d in range(made.dim())]
    return made.permute(outer_first).clone(memory_format=torch.contiguous_format).permute(back)


def _strides(tensor: torch.Tensor) -> list[str]:
    return [str(s) for s, d in zip(tensor.stride(), tensor.shape, strict=True) if not (isinstance(d, int) and d == 1)]


def _callable(node: Node, decomposed: Decomposed) -> Callable[..., Any]:
    flat, spec = pytree.tree_flatten((node.args, node.kwargs))
    places = [k for k, leaf in enumerate(flat) if isinstance(leaf, Node)]

    def call(*values: Any) -> Any:
        filled = list(flat)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return decomposed(*map(_plain_lists, args), **{k: _plain_lists(v) for k, v in kwargs.items()})

    return call


def _plain_lists(argument: Any) -> Any:
    """Lists in a graph cannot be written to; some decompositions write to those that they are given."""
    return list(argument) if isinstance(argument, list) else argument


@contextmanager
def _plain(node: Node) -> Iterator[None]:
    """Recurrent layers are otherwise traced to one call of the CPU library that this torch was built with."""
    if not isinstance(node.target, OpOverload) or node.target._schema.name not in RECURRENT:
        yield
        return
    with torch.backends.mkldnn.flags(enabled=False):
        yield


@contextmanager
def _whole(kept: Collection[Any]) -> Iterator[None]:
    """Let composite operators in ``kept`` reach the trace; torch opens them before a tracer sees them."""
    composites = [op for op in kept if is_composite(op) and _check_valid_to_preserve(op)]
    if not composites:
        yield
        return
    with _override_composite_implicit_decomp(dict.fromkeys(composites, _special_op_to_preserve_cia)):
        with enable_python_dispatcher():
            yield


def _tidied(graph: Graph, mode: Any) -> Graph:
    """The traced graph in functional form, or Untraceable."""
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and to_core(node.target) is None:
            raise Untraceable(f"its decomposition draws random numbers ({node.target})")
    found = functionalize(graph)
    if found.unproven or found.last_value:
        raise Untraceable(
            f"its decomposition writes in place ({'; '.join(r.text for r in found.unproven) or 'an argument'})"
        )
    for node in list(graph.nodes):
        if node.target in _IDENTITIES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.op == "get_attr":
            _as_call(node, mode)
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if node.op not in ("placeholder", "call_function", "output") or isinstance(
            node.target, torch._ops.HigherOrderOperator
        ):
            raise Untraceable(f"its decomposition calls {node.target}")
        if isinstance(node.target, OpOverload) and node.target.namespace == "prims":
            raise Untraceable(f"its decomposition needs {node.target}, which is no ATen operator")
    return graph


def _as_call(node: Node, mode: Any) -> None:
    """A number that the decomposition made into a tensor, as the call that makes it."""
    module: Any = node.graph.owning_module
    tensor: Any = getattr(module, str(node.target))
    tensor = getattr(tensor, "constant", None) if hasattr(tensor, "fake_mode") else tensor
    if not isinstance(tensor, torch.Tensor) or tensor.dim():
        raise Untraceable("its decomposition makes a constant tensor")
    with node.graph.inserting_before(node):
        made = node.graph.call_function(aten.full.default, ([], tensor.item()), {"dtype": tensor.dtype})
    with mode:
        made.meta["val"] = torch.empty([], dtype=tensor.dtype)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def _replaceable(node: Node, pieces: Pieces) -> bool:
    """Whether all users of ``node`` can use the pieces' results instead, which are of the same types."""
    val: Any = node.meta.get("val")
    results = pieces.results
    if pieces.single:
        return _alike(val, results[0])
    unpacked = all(u.target is operator.getitem and isinstance(u.args[1], int) for u in node.users)
    whole = isinstance(val, (list, tuple)) and len(val) == len(results)
    return unpacked and whole and all(_alike(val[u.args[1]], results[u.args[1]]) for u in node.users)  # type: ignore[index]


def _alike(val: Any, result: Any) -> bool:
    made = result.meta.get("val") if isinstance(result, Node) else None
    if not isinstance(val, torch.Tensor) or not isinstance(made, torch.Tensor):
        return False
    return val.dtype == made.dtype and _sizes(val.shape) == _sizes(made.shape)

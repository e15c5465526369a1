"""Traces a call under fake tensors, to find the operators of its decomposition.

Decompositions are kept, so that equal calls are traced once.
"""

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
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.export.exported_program import _override_composite_implicit_decomp
from torch.fx import Graph, Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    GuardOnDataDependentSymNode,
    _ShapeEnvGuardError,
)
from torch.utils import _pytree as pytree

from ..compute_constant_calls import ConstantValues, constants_of
from ..functionalize.writes import functionalize
from ..interpolation_scale_factors import why_factor_undecided
from ..operator_schema import is_random, may_be_random
from ..reachable_nodes import reachable
from ..source_line import source_of
from ..symbolic_sizes import are_static, comparable
from ..tracing_lock import unlogged
from .decomposition_tables import (
    RECURRENT,
    Decompose,
    is_attention,
    is_composite,
    to_core,
)
from .simplify_masked_attention import PLAIN_SOFTMAX, sees_every_row
from .symbolic_convolution import convolution_of_any_size

aten = torch.ops.aten
Table = Mapping[OpOverload, Decompose]
"""Operator -> the function that a trace calls in its place."""
_IDENTITIES = frozenset(
    {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}
)
LINEAR = frozenset({aten.linear.default})
"""The composite operators that traces keep whole by default.

Recurrent layers are made of it, and many backends take it whole.
"""
_DEPENDS_ON_SIZES = (
    "torch decomposes it in different ways for different sizes, which are known at run"
    " time only; export with fixed sizes, or narrow them by Dim(.., min=.., max=..)"
)


class Untraceable(Exception):
    """A call has no decomposition that can replace it; the message explains why."""


@dataclass(frozen=True)
class Decomposition:
    """The calls that replace one call, in a graph of their own.

    ``single``: the call returns one value, not a tuple.
    """

    graph: Graph
    single: bool

    @cached_property
    def placeholders(self) -> list[Node]:
        """The placeholders of the graph, one for each operand that the call passes."""
        return [n for n in self.graph.nodes if n.op == "placeholder"]

    @cached_property
    def calls(self) -> list[Node]:
        """The calls of the graph, in order."""
        return [n for n in self.graph.nodes if n.op == "call_function"]

    @cached_property
    def results(self) -> tuple[Any, ...]:
        """The nodes that the graph returns, by position of the result."""
        values: Any = self.graph.output_node().args[0]
        return tuple(values)

    def needed_for(self, results: Iterable[Any]) -> set[Node]:
        """Return the calls on which ``results`` depend."""
        nodes = [r for r in results if isinstance(r, Node)]
        needed = reachable(nodes, lambda node: node.all_input_nodes)
        return needed.difference(self.placeholders)

    def can_replace(self, node: Node) -> bool:
        """Return whether the results have the dtypes and shapes of those of ``node``.

        If ``node`` returns several results, all of its users must be calls of
        ``getitem``. Results that no user unpacks are not compared.
        """
        val: Any = node.meta.get("val")
        if self.single:
            return _is_alike(val, self.results[0])
        if not isinstance(val, (list, tuple)) or len(val) != len(self.results):
            return False
        for user in node.users:
            if user.target is not operator.getitem:
                return False
            k: Any = user.args[1]
            if not _is_alike(val[k], self.results[k]):
                return False
        return True


class Tracer:
    """Traces calls. Calls of equal signature are traced once.

    ``failures``: why calls have no decomposition although ``to_core`` has their
    operator, for notes in the report. ``_known``: key of a call (its signature, and
    how it is traced) -> its decomposition, or None if it has none.
    """

    def __init__(self) -> None:
        """Start without traced calls; ``begin`` sets the program."""
        self.failures: list[str] = []
        self._known: dict[Hashable, Decomposition | None] = {}
        self._constants: ConstantValues | None = None

    def begin(self, program: ExportedProgram) -> None:
        """Set the program of the next calls; a constant mask may simplify attention."""
        self._constants = ConstantValues(constants_of(program))

    def decompose(
        self, node: Node, how: Decompose | None, whole: frozenset[Any] = LINEAR
    ) -> Decomposition | None:
        """Return the calls that ``how``, a function of the tables, makes for ``node``.

        None if ``how`` is None, or if no decomposition can replace ``node``. In the
        second case ``failures`` has the reason, if ``to_core`` has the operator.
        Composite operators in ``whole`` stay whole; torch decomposes all others.
        """
        if how is None:
            return None
        if why_factor_undecided(node) is not None:
            # torch's decomposition steps by the scale factor at all sizes, and eager
            # does not
            return None
        if any(_is_dynamic(operand.meta.get("val")) for operand in operands(node)):
            graph = convolution_of_any_size(node, _fake_mode(node))
            if graph is not None:
                return Decomposition(graph, single=True)
        table: Table = {}
        if is_attention(node.target) and sees_every_row(node, self._constants):
            table = PLAIN_SOFTMAX
        key = (whole, table is PLAIN_SOFTMAX, self.signature(node))
        if key not in self._known:
            try:
                self._known[key] = self._trace_for_signature(node, how, whole, table)
            except Untraceable as e:
                self._known[key] = None
                if to_core(node.target):
                    source = source_of(node)
                    where = f" ({source.place})" if source else ""
                    self.failures.append(f"{node.target}{where} was left whole: {e}")
        decomposition = self._known[key]
        if decomposition is None or not decomposition.can_replace(node):
            return None
        return decomposition

    def signature(self, node: Node) -> Hashable:
        """Return everything that the decomposition of ``node`` may depend on, as a key.

        It has the operator, the mode of the fake tensors, the structure of the
        arguments, types, shapes, strides and literal values.
        """
        flat, structure = pytree.tree_flatten((node.args, node.kwargs))
        # the operands, numbered by first occurrence: (0, 0) for ``x * x``, (0, 1) for
        # ``x * y``
        numbers: dict[Node, int] = {}
        numbered = tuple(
            numbers.setdefault(operand, len(numbers)) for operand in operands(node)
        )
        keys = tuple(map(_key_of, flat))
        return node.target, id(_fake_mode(node)), str(structure), numbered, keys

    def _trace_for_signature(
        self, node: Node, how: Decompose, whole: frozenset[Any], table: Table
    ) -> Decomposition:
        """Trace ``node`` for all calls of its signature.

        Raises Untraceable if the result would be wrong for some of them.
        """
        mode = _fake_mode(node)
        if mode is None:
            raise Untraceable(
                "the program does not record the types and shapes of its operands and"
                " results"
            )
        # torch's decomposition of a recurrent layer omits the dropout between its layers
        if is_random(node):
            raise Untraceable(
                "it draws random numbers for its dropout; call model.eval() before the"
                " export"
            )
        # if the trace adds a guard, the decomposition is right for some sizes only
        before = _count_guards(mode)
        decomposition = _trace(node, how, mode, whole, table)
        if _count_guards(mode) != before:
            raise Untraceable(_DEPENDS_ON_SIZES)
        for call in decomposition.calls:
            # random operators, such as a dropout of probability 0, are right only if
            # they are decomposed in the next step
            if may_be_random(call.target) and not self.decompose(
                call, to_core(call.target)
            ):
                raise Untraceable(
                    f"its decomposition draws random numbers ({call.target})"
                )
        return decomposition


def _fake_mode(node: Node) -> Any:
    """Return the mode of the fake tensors of a call and its operands, or None."""
    return detect_fake_mode([n.meta.get("val") for n in (node, *node.all_input_nodes)])


def _key_of(leaf: Any) -> Hashable:
    """Return the part of a signature for one argument of a call."""
    if isinstance(leaf, float):
        # as text, because NaN does not equal itself, and 0.0 equals -0.0
        return float, str(leaf)
    if not isinstance(leaf, Node):
        # with the type, because 1 equals 1.0 and True
        return type(leaf), leaf
    val = leaf.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return "number", type(val), str(val)
    strides_and_offset = None
    if val.layout is torch.strided:
        strides_and_offset = (comparable(val.stride()), str(val.storage_offset()))
    return val.dtype, comparable(val.shape), strides_and_offset, val.device, val.layout


def _is_alike(val: Any, result: Any) -> bool:
    """Return whether ``val`` has the dtype and shape of the node ``result``.

    False if one of them is no tensor.
    """
    new = result.meta.get("val") if isinstance(result, Node) else None
    if not isinstance(val, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    return val.dtype == new.dtype and comparable(val.shape) == comparable(new.shape)


def _count_guards(mode: Any) -> int:
    """Return how many conditions on symbolic sizes torch has recorded so far."""
    env = mode.shape_env
    if env is None:
        return 0
    # a replacement makes two symbols equal, or a symbol a number
    return len(env.guards) + len(env.replacements)


def _trace(
    node: Node, how: Decompose, mode: Any, whole: frozenset[Any], table: Table
) -> Decomposition:
    """Trace one step of the decomposition by ``how``; raise Untraceable if that fails.

    ``whole``: the composite operators that torch shall not decompose by itself.
    ``table``: decompositions of operators that ``how`` calls. ``mode``: the fake tensor
    mode of the recorded values.
    """
    call = _as_function(node, how)
    vals = _recorded_values(node)
    recorded: Any = node.meta.get("val")
    single = True  # whether the call returns one value; ``flat`` finds it out

    def flat(*values: Any) -> tuple[Any, ...]:
        """Return the call's results as a flat tuple, with the recorded strides."""
        nonlocal single
        returned = call(*values)
        single = not isinstance(returned, (list, tuple))
        results = (returned,) if single else tuple(returned)
        wanted = recorded if isinstance(recorded, (list, tuple)) else (recorded,)
        return tuple(map(_give_strides, results, wanted))

    # a decomposition that would fix a symbolic size fails instead
    no_new_guards: Any = nullcontext()
    if mode.shape_env is not None:
        no_new_guards = mode.shape_env.error_on_new_guards()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own code
            with (
                mode,
                torch.no_grad(),
                _avoid_cpu_libraries(node),
                _leave_whole(whole - {node.target}),
                no_new_guards,
            ):
                with unlogged(), _use_lazy_graph_module(True):
                    graph = make_fx(flat, table)(*vals).graph
    except (_ShapeEnvGuardError, GuardOnDataDependentSymNode) as e:
        raise Untraceable(_DEPENDS_ON_SIZES) from e
    except Exception as e:
        # decompositions are functions of torch and of users, which may raise anything
        raise Untraceable(
            "torch's decomposition of it fails:"
            f" {str(e).strip()[:200] or type(e).__name__}"
        ) from e
    _make_usable(graph, mode)
    return Decomposition(graph, single)


def operands(node: Node) -> list[Node]:
    """Return the nodes among a call's arguments, one for each placeholder of its trace.

    An operand that is passed twice is listed twice.
    """
    return [
        leaf
        for leaf in pytree.tree_leaves((node.args, node.kwargs))
        if isinstance(leaf, Node)
    ]


def _recorded_values(node: Node) -> list[Any]:
    """Return the recorded values of the operands, another object for each operand.

    Tracers identify operands by object, but two nodes may share one recorded value.
    """
    values: dict[Node, Any] = {}
    seen: set[int] = set()
    for operand in dict.fromkeys(operands(node)):
        val = operand.meta["val"]
        is_shared = isinstance(val, torch.Tensor) and id(val) in seen
        values[operand] = val.detach() if is_shared else val
        seen.add(id(val))
    return [values[operand] for operand in operands(node)]


def _give_strides(result: Any, wanted: Any) -> Any:
    """Return ``result`` with the strides of ``wanted``, its recorded value.

    A later view may depend on them. The result is unchanged if the strides are equal or
    symbolic, or if the two are not tensors of equal rank.
    """
    if not isinstance(result, torch.Tensor) or not isinstance(wanted, torch.Tensor):
        return result
    if result.dim() != wanted.dim() or _strides_of(result) == _strides_of(wanted):
        return result
    strides: Any = wanted.stride()
    if not are_static(strides):
        return result  # sorting symbolic strides would fix them
    # permute so that the outermost dimension in memory is the first, copy contiguously,
    # permute back
    outer_first = sorted(range(result.dim()), key=lambda d: -strides[d])
    inverse = [outer_first.index(d) for d in range(result.dim())]
    packed = result.permute(outer_first).clone(memory_format=torch.contiguous_format)
    return packed.permute(inverse)


def _strides_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return strides in a comparable form, without those of dimensions of size 1."""
    dimensions = zip(tensor.stride(), comparable(tensor.shape), strict=True)
    return comparable(stride for stride, size in dimensions if size != 1)


def _as_function(node: Node, how: Decompose) -> Callable[..., Any]:
    """Return a function that calls ``how`` with the arguments of ``node``.

    Its parameters are the values of ``operands(node)``.
    """
    flat, spec = pytree.tree_flatten((node.args, node.kwargs))
    places = [k for k, leaf in enumerate(flat) if isinstance(leaf, Node)]

    def call(*values: Any) -> Any:
        """Call ``how`` with ``values`` as the operands of ``node``."""
        filled = list(flat)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return how(
            *map(_plain_list, args), **{k: _plain_list(v) for k, v in kwargs.items()}
        )

    return call


def _plain_list(argument: Any) -> Any:
    """Return a copy of a list, and any other argument unchanged.

    Lists of a graph are read-only, and decompositions may write their lists.
    """
    return list(argument) if isinstance(argument, list) else argument


@contextmanager
def _avoid_cpu_libraries(node: Node) -> Iterator[None]:
    """Trace ``node`` in this block as if torch were built without mkldnn and nnpack.

    Recurrent layers would otherwise become one call of mkldnn. For a convolution, torch
    uses nnpack depending on the batch size, and fails if that is symbolic. For other
    calls, the block does nothing.
    """
    op = node.target
    recurrent = isinstance(op, OpOverload) and op._schema.name in RECURRENT
    dynamic = any(_is_dynamic(operand.meta["val"]) for operand in operands(node))
    if not recurrent and not dynamic:
        yield
        return
    nnpack: Any = torch.backends.nnpack
    with torch.backends.mkldnn.flags(enabled=False), nnpack.flags(enabled=False):
        yield


def _is_dynamic(val: Any) -> bool:
    """Return whether a recorded value is a tensor with a symbolic size."""
    return isinstance(val, torch.Tensor) and not are_static(val.shape)


@contextmanager
def _leave_whole(operators: Collection[Any]) -> Iterator[None]:
    """Let traces in this block see calls of those ``operators`` that are composite.

    Without it, torch decomposes composite operators before a tracer sees them.
    """
    composites = [
        op for op in operators if is_composite(op) and _check_valid_to_preserve(op)
    ]
    if not composites:
        yield
        return
    preserved = dict.fromkeys(composites, _special_op_to_preserve_cia)
    with _override_composite_implicit_decomp(preserved), enable_python_dispatcher():
        yield


def _make_usable(graph: Graph, mode: Any) -> None:
    """Make a traced graph functional, without identities and tensor attributes.

    Raises Untraceable if that fails.
    """
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if may_be_random(node.target) and to_core(node.target) is None:
            raise Untraceable(f"its decomposition draws random numbers ({node.target})")
    mutations = functionalize(graph)
    # ``last_value`` has the placeholders that are written
    if mutations.unproven or mutations.last_value:
        reasons = "; ".join(r.text for r in mutations.unproven) or "an argument"
        raise Untraceable(f"its decomposition writes in place ({reasons})")
    for node in list(graph.nodes):
        if node.target in _IDENTITIES:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
        elif node.op == "get_attr":
            _replace_by_call(node, mode)
    graph.eliminate_dead_code()
    _expect_aten(graph)


def _expect_aten(graph: Graph) -> None:
    """Raise Untraceable if a node calls anything but ATen operators and functions."""
    for node in graph.nodes:
        target = node.target
        is_known = node.op in ("placeholder", "call_function", "output")
        is_prim = isinstance(target, OpOverload) and target.namespace == "prims"
        if not is_known or is_prim or isinstance(target, HigherOrderOperator):
            raise Untraceable(
                f"its decomposition calls {target}, which is no ATen operator"
            )


def _replace_by_call(node: Node, mode: Any) -> None:
    """Replace ``node``, which fetches a constant scalar, by a call that makes the
    scalar.

    Raises Untraceable for a constant with several elements.
    """
    module: Any = node.graph.owning_module
    tensor: Any = getattr(module, str(node.target))
    # a fake tensor keeps the real tensor of a number that it was made of
    if hasattr(tensor, "fake_mode"):
        tensor = getattr(tensor, "constant", None)
    if not isinstance(tensor, torch.Tensor) or tensor.dim():
        raise Untraceable(
            "its decomposition makes a constant tensor with several elements"
        )
    with node.graph.inserting_before(node):
        call = node.graph.call_function(
            aten.full.default, ([], tensor.item()), {"dtype": tensor.dtype}
        )
    with mode:
        call.meta["val"] = torch.empty([], dtype=tensor.dtype)
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)

"""Traces one call under fake tensors, to find the operators of its decomposition.

Results are kept by the signature of the call.
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
from torch._ops import OpOverload
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
from ..operator_schema import is_random
from ..reachable_nodes import reachable
from ..source_line import source_of
from ..tracing_lock import unlogged
from .decomposition_tables import RECURRENT, Decompose, is_composite, to_core
from .simplify_masked_attention import SEEN_ROWS, is_attention, sees_every_row
from .symbolic_convolution import convolution_of_any_size

aten = torch.ops.aten
Table = Mapping[OpOverload, Decompose]
_IDENTITIES = frozenset(
    {aten.detach.default, aten.alias.default, aten.lift_fresh_copy.default}
)
LINEAR = frozenset({aten.linear.default})
"""Operators that traces keep whole by default: the only composite in recurrent layers.
"""
_DEPENDS_ON_SIZES = (
    "torch decomposes it in different ways for different sizes, which are known at run"
    " time only; export with fixed sizes, or narrow them by Dim(.., min=.., max=..)"
)


class Untraceable(Exception):
    """A decomposition that cannot replace its call; the message explains why."""


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
        needed = reachable(
            (r for r in results if isinstance(r, Node)),
            lambda node: node.all_input_nodes,
        )
        return needed.difference(self.placeholders)

    def can_replace(self, node: Node) -> bool:
        """Return whether the results have the dtypes and shapes of those of ``node``.

        If ``node`` returns several results, all of its users must be calls of
        ``getitem``. Only results that one of them unpacks are compared.
        """
        val: Any = node.meta.get("val")
        if self.single:
            return _is_alike(val, self.results[0])
        if not isinstance(val, (list, tuple)) or len(val) != len(self.results):
            return False
        for user in node.users:
            k: Any = user.args[1] if user.target is operator.getitem else None
            if not isinstance(k, int) or not _is_alike(val[k], self.results[k]):
                return False
        return True


class Tracer:
    """Traces calls. Calls of equal signature are traced once.

    The signature is operator, types, shapes, strides and other arguments. ``failures``:
    why calls have no decomposition although ``to_core`` has their operator, for notes
    in the report. ``_known``: key of a call -> its decomposition, None if it has none.
    """

    def __init__(self) -> None:
        """Start without traced calls; ``begin`` sets the program."""
        self.failures: list[str] = []
        self._known: dict[Hashable, Decomposition | None] = {}
        self._constants: ConstantValues | None = None

    def begin(self, program: ExportedProgram) -> None:
        """Set the program of the next calls; its constants may simplify decompositions."""
        self._constants = ConstantValues(constants_of(program))

    def decompose(
        self, node: Node, how: Decompose | None, whole: frozenset[Any] = LINEAR
    ) -> Decomposition | None:
        """Return the decomposition of ``node`` by one step of the function ``how``.

        None if ``how`` is None, or if no decomposition can replace ``node``. In the
        second case ``failures`` has the reason, if ``to_core`` has the operator.
        Operators in ``whole`` stay whole in it, even if torch would decompose them by
        itself.
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
        table = self._simpler_parts(node)
        # ``table`` is empty or ``SEEN_ROWS``, so its length identifies it
        key = (whole, len(table), self.signature(node))
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

    def _simpler_parts(self, node: Node) -> Table:
        """Return decompositions that replace torch's inside of ``node``.

        They are empty except for attention. If every query is known to see a key, the
        softmax of attention can be simpler.
        """
        if is_attention(node.target) and sees_every_row(node, self._constants):
            return SEEN_ROWS
        return {}

    def signature(self, node: Node) -> Hashable:
        """Return everything that the decomposition of ``node`` may depend on, as a key.

        It has the operator, the mode of the fake tensors, the structure of the
        arguments, types, and literal values. It shows which operands are the same node
        (``x * x``).
        """
        flat, structure = pytree.tree_flatten((node.args, node.kwargs))
        # number the operands by first occurrence: (0, 0) for ``x * x``, (0, 1) for ``x
        # * y``
        numbers: dict[Node, int] = {}
        same = tuple(
            numbers.setdefault(leaf, len(numbers))
            for leaf in flat
            if isinstance(leaf, Node)
        )
        return (
            node.target,
            id(_fake_mode(node)),
            str(structure),
            same,
            *(_key_of(leaf) for leaf in flat),
        )

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
        # torch's decomposition of a recurrent layer leaves the dropout between its
        # layers out
        if is_random(node):
            raise Untraceable(
                "it draws random numbers for its dropout; call model.eval() before the"
                " export"
            )
        # a guard that the trace adds means that the decomposition is right for some
        # sizes only
        before = _count_guards(mode)
        decomposition = _trace(node, how, mode, whole, table)
        if _count_guards(mode) != before:
            raise Untraceable(_DEPENDS_ON_SIZES)
        for call in decomposition.calls:
            # a call that draws random numbers may only be there if the next step
            # decomposes it
            if _is_random(call) and self.decompose(call, to_core(call.target)) is None:
                raise Untraceable(
                    f"its decomposition draws random numbers ({call.target})"
                )
        return decomposition


def _fake_mode(node: Node) -> Any:
    """Return the mode of the fake tensors of a call and its operands, or None."""
    return detect_fake_mode([n.meta.get("val") for n in (node, *node.all_input_nodes)])


def _key_of(leaf: Any) -> Hashable:
    """Return the part of a key for one argument of a call.

    Python takes 1, 1.0 and True for equal, and operators do not, so the key has the
    type of a literal.
    """
    if isinstance(leaf, float):
        # as text, because NaN does not equal itself, and 0.0 equals -0.0
        return float, str(leaf)
    if not isinstance(leaf, Node):
        return type(leaf), leaf
    val = leaf.meta.get("val")
    if not isinstance(val, torch.Tensor):
        return "number", type(val), str(val)
    strides_and_offset = None
    if val.layout is torch.strided:
        strides_and_offset = (_sizes(val.stride()), str(val.storage_offset()))
    return val.dtype, _sizes(val.shape), strides_and_offset, val.device, val.layout


def _sizes(sizes: Iterable[Any]) -> tuple[Any, ...]:
    """Return sizes or strides in a comparable form, symbolic ones as text.

    Comparing the values of symbolic sizes would fix them.
    """
    return tuple(d if isinstance(d, int) else str(d) for d in sizes)


def _is_random(node: Node) -> bool:
    """Return whether torch tags the operator of a call as possibly random."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _is_alike(val: Any, result: Any) -> bool:
    """Return whether ``val`` has the dtype and shape recorded for ``result``.

    False if one of them is no tensor.
    """
    new = result.meta.get("val") if isinstance(result, Node) else None
    if not isinstance(val, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    return val.dtype == new.dtype and _sizes(val.shape) == _sizes(new.shape)


def _count_guards(mode: Any) -> int:
    """Return how many conditions on symbolic sizes torch has recorded so far.

    A replacement makes two symbols equal, or a symbol a number.
    """
    env = mode.shape_env
    return 0 if env is None else len(env.guards) + len(env.replacements)


def _trace(
    node: Node, how: Decompose, mode: Any, whole: frozenset[Any], table: Table
) -> Decomposition:
    """Trace one step of the decomposition by ``how``; raise Untraceable if that fails.

    Operators that ``how`` calls stay whole, unless ``table`` decomposes them, or torch
    does by itself because they are not in ``whole``. ``mode``: the fake tensor mode of
    the recorded values.
    """
    call = _as_function(node, how)
    vals = _recorded_values(node)
    single: list[bool] = []  # filled by ``flat``: whether the call returned one value
    recorded: Any = node.meta.get("val")

    def flat(*values: Any) -> tuple[Any, ...]:
        """Return the call's results as a flat tuple, with the recorded strides."""
        returned = call(*values)
        single.append(not isinstance(returned, (list, tuple)))
        results = (returned,) if single[-1] else tuple(returned)
        wanted = recorded if isinstance(recorded, (list, tuple)) else (recorded,)
        return tuple(map(_give_strides, results, wanted))

    # a decomposition that would fix a symbolic size fails instead
    no_new_guards: Any = nullcontext()
    if mode.shape_env is not None:
        no_new_guards = mode.shape_env.error_on_new_guards()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, about its own code
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
    return Decomposition(graph, single[-1])


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
    """Return the recorded values of the operands of ``node``, a separate object for
    each.

    Tracers identify operands by object, and calls with the same decomposition share
    recorded values.
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
    comparable = (
        isinstance(result, torch.Tensor)
        and isinstance(wanted, torch.Tensor)
        and result.dim() == wanted.dim()
    )
    if not comparable or _strides_of(result) == _strides_of(wanted):
        return result
    strides: Any = wanted.stride()
    if not all(isinstance(s, int) for s in strides):
        return result  # comparing symbolic strides would fix them
    # a contiguous copy with the outermost dimension first, with the dimensions then put
    # back in order
    outer_first = sorted(range(result.dim()), key=lambda d: -strides[d])
    inverse = [outer_first.index(d) for d in range(result.dim())]
    return (
        result.permute(outer_first)
        .clone(memory_format=torch.contiguous_format)
        .permute(inverse)
    )


def _strides_of(tensor: torch.Tensor) -> list[str]:
    """Return strides as text, to compare them, without those of dimensions of size 1."""
    return [
        str(s)
        for s, d in zip(tensor.stride(), tensor.shape, strict=True)
        if not (isinstance(d, int) and d == 1)
    ]


def _as_function(node: Node, how: Decompose) -> Callable[..., Any]:
    """Return a function that calls ``how`` with the arguments of ``node``.

    Its parameters are the operands. An operand that the call passes twice is two
    parameters.
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
    """Return a list of the graph, which is read-only, as a plain list.

    Decompositions may write their lists. Other arguments are unchanged.
    """
    return list(argument) if isinstance(argument, list) else argument


@contextmanager
def _avoid_cpu_libraries(node: Node) -> Iterator[None]:
    """Trace ``node`` in this block as if torch were built without mkldnn and nnpack.

    Recurrent layers would otherwise become one call of mkldnn. For a convolution, torch
    uses nnpack depending on the batch size, and fails if that is symbolic. For other
    calls, the block does nothing.
    """
    recurrent = (
        isinstance(node.target, OpOverload) and node.target._schema.name in RECURRENT
    )
    if not recurrent and not any(
        _is_dynamic(operand.meta["val"]) for operand in operands(node)
    ):
        yield
        return
    nnpack: Any = torch.backends.nnpack
    with torch.backends.mkldnn.flags(enabled=False), nnpack.flags(enabled=False):
        yield


def _is_dynamic(val: Any) -> bool:
    """Return whether a recorded value is a tensor with a symbolic size."""
    return isinstance(val, torch.Tensor) and not all(
        isinstance(d, int) for d in val.shape
    )


@contextmanager
def _leave_whole(operators: Collection[Any]) -> Iterator[None]:
    """Keep calls of the composite ``operators`` in traces inside of this block.

    Otherwise torch decomposes them before a tracer sees them.
    """
    composites = [
        op for op in operators if is_composite(op) and _check_valid_to_preserve(op)
    ]
    if not composites:
        yield
        return
    with _override_composite_implicit_decomp(
        dict.fromkeys(composites, _special_op_to_preserve_cia)
    ):
        with enable_python_dispatcher():
            yield


def _make_usable(graph: Graph, mode: Any) -> None:
    """Make a traced graph functional, without identities and tensor attributes.

    Raises Untraceable if that fails.
    """
    graph.eliminate_dead_code()
    for node in graph.nodes:
        if _is_random(node) and to_core(node.target) is None:
            raise Untraceable(f"its decomposition draws random numbers ({node.target})")
    mutations = functionalize(graph)
    # a last value: it writes to one of its arguments
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
    """Raise Untraceable for higher-order calls, calls of ``prims``, and other nodes."""
    for node in graph.nodes:
        higher_order = isinstance(node.target, torch._ops.HigherOrderOperator)
        if node.op not in ("placeholder", "call_function", "output") or higher_order:
            raise Untraceable(
                f"its decomposition calls {node.target}, which is no ATen operator"
            )
        if isinstance(node.target, OpOverload) and node.target.namespace == "prims":
            raise Untraceable(
                f"its decomposition needs {node.target}, which is no ATen operator"
            )


def _replace_by_call(node: Node, mode: Any) -> None:
    """Replace ``node``, which fetches a constant scalar, by a call that makes the
    scalar.

    Raises Untraceable for a constant with several elements.
    """
    module: Any = node.graph.owning_module
    tensor: Any = getattr(module, str(node.target))
    if hasattr(tensor, "fake_mode"):
        tensor = getattr(tensor, "constant", None)  # the number that it was made of
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

"""Asking a backend again: what would it take if the reason for a refusal did not hold?

The program that the backend was asked about is copied with one thing changed (fixed sizes, or a cast of one value).
Every value behind that gets its new type, and the partitioner is asked as in a lowering. Reports do this when somebody
reads them, not when they are made.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ..errors import DelegraphError
from ..exported.gc_pause import pause_collection
from ..exported.tracing import TRACING, unlogged
from ..exported_program import (
    build_program,
    copy_node,
    name_outputs,
    output_values,
    placeholders,
    root_call,
)
from ..partitioner import Partitioner
from ..partitioner.contract import Reason
from .decompose import Decomposer
from .partition import Plan

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Asked:
    """What is needed to ask the backends of one lowering again.

    ``_kept``: method and backend -> the program that was partitioned, the partitioner, and the debug handles of what
    only the compiler refused.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[ExportedProgram, Partitioner, frozenset[int]]] = {}
        self._lock = threading.Lock()

    def keep(
        self, method: str, backend: str, plan: Plan, partitioner: Partitioner, not_compiled: Iterable[Node]
    ) -> None:
        """Keep what is needed to ask again, if a refusal says what would have to change.

        ``not_compiled`` are the nodes that the partitioner takes, but the compiler refused. Programs with subgraphs are
        left out.
        """
        if not plan.inner and any(getattr(r.reason, "unless", None) is not None for r in plan.refusals):
            handles = frozenset(n.meta.get("debug_handle", 0) for n in not_compiled)
            self._kept[method, backend] = plan.program, partitioner, handles

    def __call__(self, method: str, backend: str, reason: Reason) -> frozenset[int] | None:
        """The debug handles of what the backend would still refuse if ``reason`` did not hold.

        None if that is not known.
        """
        if (method, backend) not in self._kept:
            return None
        program, partitioner, not_compiled = self._kept[method, backend]
        with self._lock, TRACING, unlogged(), pause_collection():
            try:
                changed = (
                    _fixed_sizes(program)
                    if reason.unless == "static"
                    else _with_cast(program, reason.of, reason.unless)
                )
                answer = Decomposer(watched=False).ask(changed, partitioner)
            # then the report leaves out the figure; it says nothing wrong
            except (_Impossible, DelegraphError):
                return None
        return not_compiled.union(r.node.meta.get("debug_handle", 0) for r in answer.result.refusals)


class _Impossible(Exception):
    """The program cannot be changed in the way that the question needs."""


def _fixed_sizes(program: ExportedProgram) -> ExportedProgram:
    """A copy of ``program`` with the sizes of its example inputs, which torch keeps as the hints of symbolic sizes."""
    graph, copies, sized = Graph(owning_module=program.graph_module), dict[Node, Any](), _FixedSizes()
    for node in program.graph.nodes:
        recorded = node.meta.get("val")
        val = [sized(v) for v in recorded] if isinstance(recorded, (list, tuple)) else sized(recorded)
        if isinstance(recorded, _SYMBOLIC) and node.op == "call_function":
            copies[node] = val  # a call that computes a size is left out: its users get the number
        elif node.op != "output":
            copies[node] = copy = copy_node(graph, node, copies.__getitem__)
            copy.meta["val"] = val
            copies[node] = val if isinstance(val, (int, float, bool)) else copy
    static = _program_of_copies(program, graph, copies)
    # nothing is left to constrain: a partitioner that looks for dynamic sizes has to find none
    static._range_constraints = {}
    return static


class _FixedSizes:
    """Replaces the symbols in recorded values by numbers.

    Values of equal shape and type share one tensor, which saves time.
    """

    def __init__(self) -> None:
        self._made: dict[Any, FakeTensor] = {}

    def __call__(self, val: Any) -> Any:
        if isinstance(val, _SYMBOLIC):
            return _fixed_number(val)
        if not isinstance(val, torch.Tensor) or not val._has_symbolic_sizes_strides or val.layout is not torch.strided:
            return val
        sizes, strides = tuple(map(_fixed_number, val.shape)), tuple(map(_fixed_number, val.stride()))
        key = sizes, strides, val.dtype, val.device
        if key not in self._made:
            meta = torch.empty_strided(sizes, strides, dtype=val.dtype, device="meta")
            self._made[key] = FakeTensor(detect_fake_mode([val]), meta, val.device)
        return self._made[key]


def _fixed_number(number: Any) -> Any:
    """The number that torch remembers for a symbolic size; anything else as it is."""
    if not isinstance(number, _SYMBOLIC):
        return number
    if number.node.hint is None:
        raise _Impossible(f"{number} depends on the data")
    return number.node.hint


def _with_cast(program: ExportedProgram, of: Node | None, dtype: Any) -> ExportedProgram:
    """A copy of ``program`` as if the user had written ``of.to(dtype)``: what is computed from it gets its new types.

    Raises _Impossible if ``of`` is None or not a value of this program.
    """
    graph, copies, changed = Graph(owning_module=program.graph_module), dict[Node, Any](), set[Node]()
    for node in program.graph.nodes:
        # behind the last placeholder: all of them have to come first
        if of is not None and of in copies and not changed and node.op != "placeholder":
            copies[of] = cast = graph.call_function(torch.ops.aten.to.dtype, (copies[of], dtype))
            cast.meta["val"] = _value_of_call(cast)
            changed.add(cast)
        if node.op != "output":
            copies[node] = copy = copy_node(graph, node, copies.__getitem__)
            if changed.intersection(copy.all_input_nodes):
                copy.meta["val"] = _value_of_call(copy)
                changed.add(copy)
    if not changed:
        raise _Impossible("the value is not in the program that was partitioned")
    return _program_of_copies(program, graph, copies)


def _value_of_call(node: Node) -> Any:
    """What the call ``node`` returns, under fake tensors, for the values recorded for its operands."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode: Any = detect_fake_mode([n.meta.get("val") for n in node.all_input_nodes])
    try:
        with mode, torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception as e:  # for a type that it does not take, each operator raises an error of its own
        raise _Impossible(f"{node.target} does not take it") from e


def _program_of_copies(program: ExportedProgram, graph: Graph, copies: dict[Node, Any]) -> ExportedProgram:
    """The program whose graph is ``graph``, with ``program``'s signature.

    ``copies`` maps its nodes to those of ``graph``.
    """
    values: Any = torch.fx.map_arg(output_values(program), copies.__getitem__)
    graph.output(tuple(values)).meta["val"] = None
    outputs = name_outputs(program.graph_signature.output_specs, values)
    inputs = [spec for _, spec in placeholders(program)]
    return build_program(program.graph_module, graph, inputs, outputs, program, root_call(program), check=False)

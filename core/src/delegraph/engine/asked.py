"""Asking a backend again: what it would take if the reason for a refusal did not hold.

The program that it was asked about is copied with one thing changed, every value after that gets its new type, and the
partitioner is asked as in a lowering. Reports do it, when they are read.
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
    """By method and backend: the program that was partitioned, and the partitioner."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[ExportedProgram, Partitioner, frozenset[int]]] = {}
        self._lock = threading.Lock()

    def keep(
        self, method: str, backend: str, plan: Plan, partitioner: Partitioner, not_compiled: Iterable[Node]
    ) -> None:
        """Keep what to ask again, if a refusal says what would have to change. Programs with subgraphs are left out.

        ``not_compiled``: what the partitioner takes, and the compiler does not.
        """
        if not plan.inner and any(getattr(r.reason, "unless", None) is not None for r in plan.refusals):
            handles = frozenset(n.meta.get("debug_handle", 0) for n in not_compiled)
            self._kept[method, backend] = plan.program, partitioner, handles

    def __call__(self, method: str, backend: str, reason: Reason) -> frozenset[int] | None:
        """The debug handles of what the backend refuses where ``reason`` does not hold; None if that is not known."""
        if (method, backend) not in self._kept:
            return None
        program, partitioner, not_compiled = self._kept[method, backend]
        with self._lock, TRACING, unlogged(), pause_collection():
            try:
                changed = _static(program) if reason.unless == "static" else _retyped(program, reason.of, reason.unless)
                answer = Decomposer(watched=False).ask(changed, partitioner)
            except (_Impossible, DelegraphError):  # then the report says less, but nothing wrong
                return None
        return not_compiled.union(r.node.meta.get("debug_handle", 0) for r in answer.result.refusals)


class _Impossible(Exception):
    """The program cannot be changed in that way."""


def _static(program: ExportedProgram) -> ExportedProgram:
    """``program`` with the sizes of its example inputs, which torch remembers as the hints of symbolic sizes."""
    graph, copies, sized = Graph(owning_module=program.graph_module), dict[Node, Any](), _Sized()
    for node in program.graph.nodes:
        recorded = node.meta.get("val")
        val = [sized(v) for v in recorded] if isinstance(recorded, (list, tuple)) else sized(recorded)
        if isinstance(recorded, _SYMBOLIC) and node.op == "call_function":
            copies[node] = val
        elif node.op != "output":
            copies[node] = copy = copy_node(graph, node, copies.__getitem__)
            copy.meta["val"] = val
            copies[node] = val if isinstance(val, (int, float, bool)) else copy
    static = _program(program, graph, copies)
    static._range_constraints = {}  # nothing is left to constrain, and who looks for sizes sees that there are none
    return static


class _Sized:
    """Replaces the symbols in recorded values by numbers. Values of one shape and type become one tensor."""

    def __init__(self) -> None:
        self._made: dict[Any, FakeTensor] = {}

    def __call__(self, val: Any) -> Any:
        if isinstance(val, _SYMBOLIC):
            return _number(val)
        if not isinstance(val, torch.Tensor) or not val._has_symbolic_sizes_strides or val.layout is not torch.strided:
            return val
        sizes, strides = tuple(map(_number, val.shape)), tuple(map(_number, val.stride()))
        key = sizes, strides, val.dtype, val.device
        if key not in self._made:
            meta = torch.empty_strided(sizes, strides, dtype=val.dtype, device="meta")
            self._made[key] = FakeTensor(detect_fake_mode([val]), meta, val.device)
        return self._made[key]


def _number(number: Any) -> Any:
    if not isinstance(number, _SYMBOLIC):
        return number
    if number.node.hint is None:
        raise _Impossible(f"{number} depends on the data")
    return number.node.hint


def _retyped(program: ExportedProgram, of: Node | None, dtype: Any) -> ExportedProgram:
    """``program`` with a cast of the value ``of``, as the user would write it."""
    graph, copies, changed = Graph(owning_module=program.graph_module), dict[Node, Any](), set[Node]()
    for node in program.graph.nodes:
        if of is not None and of in copies and not changed and node.op != "placeholder":  # all placeholders come first
            copies[of] = cast = graph.call_function(torch.ops.aten.to.dtype, (copies[of], dtype))
            cast.meta["val"] = _computed(cast)
            changed.add(cast)
        if node.op != "output":
            copies[node] = copy = copy_node(graph, node, copies.__getitem__)
            if changed.intersection(copy.all_input_nodes):
                copy.meta["val"] = _computed(copy)
                changed.add(copy)
    if not changed:
        raise _Impossible("the value is not in the program that was partitioned")
    return _program(program, graph, copies)


def _computed(node: Node) -> Any:
    """What a call gives for the recorded values of its operands."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode: Any = detect_fake_mode([n.meta.get("val") for n in node.all_input_nodes])
    try:
        with mode, torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception as e:  # which error torch raises for a type that an operator does not take is up to the operator
        raise _Impossible(f"{node.target} does not take it") from e


def _program(program: ExportedProgram, graph: Graph, copies: dict[Node, Any]) -> ExportedProgram:
    values: Any = torch.fx.map_arg(output_values(program), copies.__getitem__)
    graph.output(tuple(values)).meta["val"] = None
    outputs = name_outputs(program.graph_signature.output_specs, values)
    inputs = [spec for _, spec in placeholders(program)]
    return build_program(program.graph_module, graph, inputs, outputs, program, root_call(program), check=False)

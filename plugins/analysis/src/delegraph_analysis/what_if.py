"""Predict how many operators a backend would take without the cause of a refusal.

The report does this when it is printed (``Cause.frees``). The cause is removed from a
copy of the program: sizes are fixed, one value is cast, or an input gets a range. Values
that depend on a cast value get new types. Then the backend's support check is repeated
with the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from delegraph.errors import DelegraphError, Unsupported
from delegraph.partitioner import Reason
from delegraph_programs import (
    TRACING,
    build_program,
    copy_node,
    name_outputs,
    output_values,
    placeholders,
    root_call,
)
from delegraph_programs.call_names import WITHIN
from delegraph_programs.tracing_lock import unlogged
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Graph, Node

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Prediction(NamedTuple):
    """A reason of a refusal, and how many more operators the backend would take without
    it (``frees``); None if that is unknown.
    """

    reason: str
    frees: int | None


Refused = Callable[[ExportedProgram], frozenset[int]]
"""Returns the debug handles of the operators that a backend refuses in a program."""


def predict(
    program: ExportedProgram, refused: Refused, reason: str, left: Sequence[Node]
) -> Prediction:
    """Return the prediction for ``reason``, or for a better alternative to it.

    ``reason.instead`` names another way out of the refusal, which may have a next one.
    The result is the first one with which the backend takes most operators.
    ``program``: the partitioned program. ``left``: calls of all operators that are left
    to the host.
    """
    best = Prediction(reason, _count_freed(program, refused, reason, left))
    other = getattr(reason, "instead", None)
    while other is not None and best.frees != len(left):
        frees = _count_freed(program, refused, other, left)
        if frees is not None and (best.frees is None or frees > best.frees):
            best = Prediction(other, frees)
        other = other.instead
    return best


def _count_freed(
    program: ExportedProgram, refused: Refused, reason: str, left: Sequence[Node]
) -> int | None:
    """Return how many of ``left`` the backend would take if ``reason`` did not hold.

    Returns None if ``reason`` names no change that removes it (``unless``), or if the
    program cannot be changed so.
    """
    if not isinstance(reason, Reason) or reason.unless is None:
        return None
    with TRACING, unlogged():
        try:
            still_refused = refused(remove_cause(program, reason))
        except DelegraphError:
            return None
    return sum(node.meta.get("debug_handle", 0) not in still_refused for node in left)


def remove_cause(program: ExportedProgram, reason: Reason) -> ExportedProgram:
    """Return a copy of ``program`` with the change that removes ``reason``.

    ``reason.unless`` is "static" for fixed sizes, a range of an input, or a dtype to
    which the value ``reason.of`` is cast. Raises Unsupported if that is impossible.
    """
    if reason.unless == "static":
        return _fixed_sizes(program)
    if isinstance(reason.unless, tuple):
        return _with_range(program, reason.of, reason.unless)
    return _with_cast(program, reason.of, reason.unless)


def _with_range(
    program: ExportedProgram, of: Node | None, range: tuple[int, int]
) -> ExportedProgram:
    """Return a copy of ``program`` with a declared ``range`` of the input ``of``.

    Raises Unsupported if ``of`` is no input of this program.
    """
    if of is None or of.op != "placeholder":
        raise _impossible(f"{of} is no input, and only inputs have a range")
    graph = Graph(owning_module=program.graph_module)
    copies = dict[Node, Any]()
    for node in program.graph.nodes:
        if node.op != "output":
            copies[node] = copy_node(graph, node, copies.__getitem__)
    if of not in copies:
        raise _impossible("the value is not in the program that was partitioned")
    copies[of].meta[WITHIN] = [*range]
    return _program_of_copies(program, graph, copies)


def _fixed_sizes(program: ExportedProgram) -> ExportedProgram:
    """Return a copy of ``program`` with the sizes of its example inputs.

    Torch keeps these sizes as hints of symbols.
    """
    graph = Graph(owning_module=program.graph_module)
    copies = dict[Node, Any]()
    sized = _FixedSizes()
    for node in program.graph.nodes:
        recorded = node.meta.get("val")
        if isinstance(recorded, (list, tuple)):
            val: Any = [sized(value) for value in recorded]
        else:
            val = sized(recorded)
        if isinstance(recorded, _SYMBOLIC) and node.op == "call_function":
            # a call that computes a size is not copied: its users get the number
            copies[node] = val
        elif node.op != "output":
            copies[node] = copy = copy_node(graph, node, copies.__getitem__)
            copy.meta["val"] = val
            # users of a size that is an input get the number, too
            copies[node] = val if isinstance(val, (int, float, bool)) else copy
    static = _program_of_copies(program, graph, copies)
    # a partitioner that looks for dynamic sizes must find none
    static._range_constraints = {}
    return static


class _FixedSizes:
    """Replaces the symbols in recorded values by numbers.

    Values of equal shape, strides, dtype and device share one fake tensor, which saves
    time.
    """

    def __init__(self) -> None:
        self._fake_tensors: dict[Any, FakeTensor] = {}

    def __call__(self, val: Any) -> Any:
        """Return ``val`` with numbers in place of symbols.

        Raises Unsupported for a symbol that depends on data.
        """
        if isinstance(val, _SYMBOLIC):
            return _fixed_number(val)
        if (
            not isinstance(val, torch.Tensor)
            or not val._has_symbolic_sizes_strides
            or val.layout is not torch.strided
        ):
            return val
        sizes = tuple(map(_fixed_number, val.shape))
        strides = tuple(map(_fixed_number, val.stride()))
        key = sizes, strides, val.dtype, val.device
        if key not in self._fake_tensors:
            meta = torch.empty_strided(sizes, strides, dtype=val.dtype, device="meta")
            self._fake_tensors[key] = FakeTensor(
                detect_fake_mode([val]), meta, val.device
            )
        return self._fake_tensors[key]


def _fixed_number(number: Any) -> Any:
    """Return the number with which torch traced a symbol; other numbers as they are.

    Raises Unsupported if it has none.
    """
    if not isinstance(number, _SYMBOLIC):
        return number
    if number.node.hint is None:
        raise _impossible(f"{number} depends on the data")
    return number.node.hint


def _with_cast(
    program: ExportedProgram, of: Node | None, dtype: Any
) -> ExportedProgram:
    """Return a copy of ``program`` as if the user had written ``of.to(dtype)``.

    Values that are computed from it get new types. Raises Unsupported if ``of`` is None or no value of this program.
    """
    graph = Graph(owning_module=program.graph_module)
    copies = dict[Node, Any]()
    changed = set[Node]()
    for node in program.graph.nodes:
        # The cast is inserted once, as soon as ``of`` was copied, but after the last
        # placeholder: placeholders have to come first. From then on ``copies[of]`` is
        # the cast, so that all later users of ``of`` use the cast.
        if of is not None and of in copies and not changed and node.op != "placeholder":
            copies[of] = cast = graph.call_function(
                torch.ops.aten.to.dtype, (copies[of], dtype)
            )
            cast.meta["val"] = _value_of_call(cast)
            changed.add(cast)
        if node.op != "output":
            copies[node] = copy = copy_node(graph, node, copies.__getitem__)
            if changed.intersection(copy.all_input_nodes):
                copy.meta["val"] = _value_of_call(copy)
                changed.add(copy)
    if not changed:
        raise _impossible("the value is not in the program that was partitioned")
    return _program_of_copies(program, graph, copies)


def _value_of_call(node: Node) -> Any:
    """Return the value of ``node``, computed with fake tensors.

    Raises Unsupported if its operator refuses its operands.
    """
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    mode: Any = detect_fake_mode([n.meta.get("val") for n in node.all_input_nodes])
    try:
        with mode, torch.no_grad():
            return node.target(*args, **kwargs)  # type: ignore[operator]
    except Exception as e:
        # operators raise errors of any kind for a dtype that they do not take
        raise _impossible(f"{node.target} does not take the dtype") from e


def _program_of_copies(
    program: ExportedProgram, graph: Graph, copies: dict[Node, Any]
) -> ExportedProgram:
    """Return ``program`` with ``graph`` in place of its own graph.

    ``copies``: node -> its copy in ``graph``, which has no output node yet.
    """
    values: Any = torch.fx.map_arg(output_values(program), copies.__getitem__)
    graph.output(tuple(values)).meta["val"] = None
    outputs = name_outputs(program.graph_signature.output_specs, values)
    inputs = [spec for _, spec in placeholders(program)]
    return build_program(
        program.graph_module,
        graph,
        inputs,
        outputs,
        program,
        root_call(program),
        check=False,
    )


def _impossible(why: str) -> Unsupported:
    """Return the error for a cause that cannot be removed from a program.

    The report then makes no prediction.
    """
    return Unsupported("unsupported", why)

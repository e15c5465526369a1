"""Converts partitions to Core AI programs with Apple's converter, ``coreai_torch``.

``TorchConverter.to_coreai`` prints progress, and its errors do not name the call. So
``_Converter`` calls the same steps itself. Only this module uses private names of
coreai_torch.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import torch
import torch.ao.quantization.fx._decomposed  # the operators quantized_decomposed
from coreai.authoring import AIProgram, Module, graph_builder
from delegraph_engines import NumberedCalls, Signature
from delegraph_programs import (
    TRACING,
    constant_tensor,
    output_node,
    output_values,
    placeholders,
    user_inputs,
    written_targets,
    written_values,
)
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument
from torch.fx import Node

with warnings.catch_warnings():
    # it takes a local version of torch, 2.13.0+cpu, for one that it does not know
    warnings.simplefilter("ignore")
    from coreai_torch import TorchConverter, _utils
    from coreai_torch._aten_to_core import _aten_to_core_resolver
    from coreai_torch._compression._intx import IntxTensor

from .border_types import keep_floats
from .corrections import RULES
from .least_sizes import MaybeEmpty, least_sizes
from .names import MAIN

DEQUANTIZE_CHANNELS = torch.ops.quantized_decomposed.dequantize_per_channel.default
INDEX_PUT = torch.ops.aten.index_put.default
_EXPAND = torch.ops.aten.expand.default
_VIEW = torch.ops.aten.view.default


class Draft(NumberedCalls):
    """A partition and its Core AI program.

    Inputs are named ``x0``, ``x1``, ..., outputs ``y0``, ``y1``, ..., states ``s0``,
    ``s1``, .... ``states``: the first values of the states, by name of the buffer.
    ``least``: the least sizes of inputs.
    """

    def __init__(self, program: ExportedProgram) -> None:
        """Convert ``program``. Raises Unsupported with the reason, at the call."""
        super().__init__()
        self.signature = Signature.of(program)
        self.calls = [n for n in program.graph.nodes if n.op == "call_function"]
        numbers = {node: number for number, node in enumerate(self.calls)}
        keep_floats(program)
        _flatten_index_put(program)
        _separate_outputs(program)
        self.states = _order_states(program)
        try:
            self.least = least_sizes(program)
        except MaybeEmpty as error:
            raise self.refused(str(error), f"n{numbers[error.call]}/") from error
        _sizes_as_tensors(program)
        converter = _Converter()
        try:
            self.program = converter.convert(program)
        except Exception as error:  # the converter raises errors of any kind
            # None if the converter failed before the first call
            number = numbers.get(converter.node)
            name = "" if number is None else f"n{number}/"
            raise self.refused(_reason_of(error), name) from error


class _Converter(TorchConverter):  # type: ignore[misc]
    """Apple's converter without its output. ``node``: the call that it converts."""

    def __init__(self) -> None:
        super().__init__(mode=TorchConverter.Mode.RELEASE)
        self.node: Any = None
        self._user_defined_torch_lowering.update(RULES)

    def convert(self, program: ExportedProgram) -> AIProgram:
        """Return the Core AI program."""
        with self.context, _exact_literals(), _numbered_functions():
            module = Module.create()
            with (
                module,
                self._debug_info_recorder.record_module(module._mlir_module),
            ):
                self._init_conversion_state()
                self._progress_bar = _NoProgress()
                self.exported_program = program
                inputs = range(len(user_inputs(program)))
                states = range(len(written_values(program)))
                outputs = range(len(output_values(program)) - len(states))
                self.user_input_names = [f"x{k}" for k in inputs]
                self.user_output_names = [f"y{k}" for k in outputs]
                self.user_state_names = [f"s{k}" for k in states]
                self._get_graph_op(MAIN, primary_entrypoint=True)
        return AIProgram(module)

    def _handle_placeholder_op(self, node: Node) -> Any:
        """Pack weights of four bits, which torch stores as int8."""
        constants = (self._parameters_map, self._buffers_map, self._constants_map)
        for known in constants:
            if node.name in known and has_four_bits(node):
                known[node.name] = IntxTensor.from_unpacked(known[node.name], 4)
        return super()._handle_placeholder_op(node)

    def _get_operation(self, node: Node) -> Any:
        """Convert a call, and record it for errors."""
        self.node = node
        return super()._get_operation(node)


def has_four_bits(node: Node) -> bool:
    """Return whether a constant in int8 is quantized to four bits, in all of its uses."""
    if node.meta["val"].dtype is not torch.int8 or not node.users:
        return False
    return all(
        user.target is DEQUANTIZE_CHANNELS and user.args[4] >= -8 and user.args[5] <= 7  # type: ignore[operator]
        for user in node.users
    )


@contextmanager
def _exact_literals() -> Iterator[None]:
    """Let the converter take a literal as float16 only if that is equal.

    In ``integers * 0.3``, without operands in floats, it would round 0.3.
    """
    before = _utils._is_float_in_float16_range
    _utils._is_float_in_float16_range = _is_float16
    try:
        yield
    finally:
        _utils._is_float_in_float16_range = before


@contextmanager
def _numbered_functions() -> Iterator[None]:
    """Number the functions inside a program, so that equal programs have equal bytes.

    The converter would end their names with random letters.
    """
    numbers = itertools.count()
    before = graph_builder._randomize_fn_name
    graph_builder._randomize_fn_name = lambda name: f"{name}_{next(numbers)}"
    try:
        yield
    finally:
        graph_builder._randomize_fn_name = before


def _is_float16(number: float) -> bool:
    """Return whether a number is one of float16."""
    same: bool = torch.tensor(number, dtype=torch.float16).item() == number
    return same


class _NoProgress:
    """Takes the place of the converter's progress bar."""

    @staticmethod
    def track(items: Iterable[Any], **_: Any) -> Iterable[Any]:
        """Return ``items``."""
        return items


def has_rule(node: Node) -> bool:
    """Return whether the converter has a rule for the operator of ``node``."""
    target: Any = node.target
    name = target.__name__
    namespace = getattr(target, "namespace", "aten")
    if namespace == "aten":
        return name in _aten_to_core_resolver or f"aten::{name}" in RULES
    return f"{namespace}::{name}" in RULES


def _flatten_index_put(program: ExportedProgram) -> None:
    """Give each ``index_put`` indices of one axis, and one value for each index.

    For example, indices of the shapes [2, 3] and [3] become two of the shape [6], and
    the values are repeated to match. Core AI ends the process for some indices of two axes, and does
    not repeat values correctly.
    """
    graph = program.graph
    for node in graph.find_nodes(op="call_function", target=INDEX_PUT):
        shape = indexed_shape(node)
        if not all(isinstance(size, int) for size in shape):
            # the support check accepts dynamic sizes only if all is flat already
            continue
        given: Any = node.args[1]
        indices = list(given)
        positions = [k for k, index in enumerate(indices) if index is not None]
        index_shape = np.broadcast_shapes(
            *(indices[k].meta["val"].shape for k in positions)
        )
        count = prod(index_shape)
        # the axes of the indices replace the first indexed axis of the tensor
        first = positions[0]
        if positions[-1] - first >= len(positions):
            # between indexed axes lies another one: torch moves theirs to the front
            first = 0
        flat = (*shape[:first], count, *shape[first + len(index_shape) :])
        with graph.inserting_before(node):
            for k in positions:
                expanded = _shaped(_EXPAND, indices[k], index_shape)
                indices[k] = _shaped(_VIEW, expanded, (count,))
            values: Any = node.args[2]
            values = _shaped(_VIEW, _shaped(_EXPAND, values, shape), flat)
        node.update_arg(1, indices)
        node.update_arg(2, values)


def _shaped(operator: Any, value: Node, shape: tuple[int, ...]) -> Node:
    """Return ``value`` with ``shape``; call ``operator`` if it has another shape."""
    val = value.meta["val"]
    if tuple(val.shape) == shape:
        return value
    call = value.graph.call_function(operator, (value, list(shape)))
    with TRACING:
        call.meta["val"] = val.new_empty(shape)
    return call


def indexed_shape(node: Node) -> torch.Size:
    """Return the shape of the elements that ``index_put`` writes."""
    target: Any = node.args[0]
    indices: Any = node.args[1]
    given = [index and index.meta["val"] for index in indices]
    with TRACING:
        found: torch.Tensor = torch.ops.aten.index.Tensor(target.meta["val"], given)
    return found.shape


def _separate_outputs(program: ExportedProgram) -> None:
    """Let the program return copies of inputs and of repeated values.

    The converter identifies an output by its node.
    """
    graph = program.graph
    output = output_node(graph)
    seen = set[Node]()
    results = []
    for spec, value in zip(
        program.graph_signature.output_specs, output_values(program), strict=True
    ):
        if value in seen or value.op == "placeholder":
            with graph.inserting_before(output):
                copy = graph.call_function(torch.ops.aten.clone.default, (value,))
            copy.meta["val"] = value.meta["val"]
            spec.arg = TensorArgument(copy.name)
            value = copy
        seen.add(value)
        results.append(value)
    output.args = (tuple(results),)


def _order_states(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Put the new values of states before all outputs, in the order of the states.

    The converter assigns them by position. Returns the first values, by name of the
    buffer.
    """
    signature = program.graph_signature
    output = output_node(program.graph)
    written = written_targets(program)
    states = {
        str(spec.target): constant_tensor(program, spec)
        for _, spec in placeholders(program)
        if spec.target in written
    }
    positions = {name: k for k, name in enumerate(states)}
    last = len(positions)
    pairs = zip(signature.output_specs, output_values(program), strict=True)
    ordered = sorted(pairs, key=lambda pair: positions.get(str(pair[0].target), last))
    signature.output_specs[:] = [spec for spec, _ in ordered]
    output.args = (tuple(value for _, value in ordered),)
    return states


def _sizes_as_tensors(program: ExportedProgram) -> None:
    """Replace the recorded values of inputs that are sizes by tensors of one int32.

    This is the converter's form of a size.
    """
    for node in user_inputs(program):
        if isinstance(node.meta["val"], torch.SymInt):
            node.meta["val"] = torch.empty(1, dtype=torch.int32, device="meta")


def _reason_of(error: BaseException) -> str:
    """Return the line of an error of the converter that has the cause."""
    text = str(error).strip().partition("\n")[0]
    kind = type(error).__name__
    reason = f"coreai-torch does not convert it: {kind}"
    return f"{reason}: {text:.200}" if text else reason

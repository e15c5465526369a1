"""Borders of programs: integers in the place of floats, channels last instead of first,
and how both are quantized.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError, Unsupported
from delegraph.formats import QuantizationParameters
from delegraph_programs import (
    argument_of,
    build_program,
    output_node,
    output_values,
    root_call,
    user_inputs,
)
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec
from torch.fx import Node

from .ir.graph import Graph
from .serialize.trailer import trailer

__all__ = ["channels_last_borders", "integer_borders", "quantization_of"]

aten = torch.ops.aten
DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor.default"
QUANTIZE = "quantized_decomposed.quantize_per_tensor.default"
"""By name, since torch has these operators only where somebody imported them."""


def integer_borders(program: ExportedProgram) -> ExportedProgram:
    """The program without the quantize of its inputs and the dequantize of its results:
    it takes and returns integers.

    A transform for ``delegraph.lower``, which changes the program that it is given.
    What nothing quantizes, or several calls in different ways, stays as it is.
    Unsupported if that is everything.
    """
    inputs = [node for node in user_inputs(program) if _take_integers(node)]
    values: Any = output_node(program.graph).args[0]
    pairs = list(zip(program.graph_signature.output_specs, values, strict=True))
    kept = [
        value.args[0] if _is_dequantized(spec, value) else value
        for spec, value in pairs
    ]
    if not inputs and kept == list(values):
        text = (
            "integer_borders: the program quantizes no input and dequantizes no result"
        )
        raise Unsupported(
            "unsupported",
            text,
            hint="quantize the model first: delegraph.quantize, or --quantize FILE",
        )
    return _returning(program, kept)


def _returning(program: ExportedProgram, values: Sequence[Any]) -> ExportedProgram:
    """The program of the same graph that returns other values, in the order of its
    signature.
    """
    output_node(program.graph).args = (tuple(values),)
    program.graph.eliminate_dead_code()
    signature = program.graph_signature
    pairs = zip(signature.output_specs, values, strict=True)
    specs = [
        OutputSpec(spec.kind, argument_of(value), spec.target) for spec, value in pairs
    ]
    return build_program(
        program.graph_module,
        program.graph,
        signature.input_specs,
        specs,
        program,
        root_call(program),
    )


def _take_integers(node: Node) -> bool:
    """Make a placeholder what its users quantize it to, if they all do so in one way."""
    users = list(node.users)
    if not users or any(
        str(u.target) != QUANTIZE or u.args[1:] != users[0].args[1:] for u in users
    ):
        return False
    node.meta["val"] = users[0].meta["val"]
    for user in users:
        user.replace_all_uses_with(node)
        user.graph.erase_node(user)
    return True


def _is_dequantized(spec: OutputSpec, value: Any) -> bool:
    return (
        spec.kind is OutputKind.USER_OUTPUT
        and isinstance(value, Node)
        and str(value.target) == DEQUANTIZE
    )


def channels_last_borders(
    program: ExportedProgram,
    *,
    inputs: Collection[str] | None = None,
    outputs: Collection[int] | None = None,
) -> ExportedProgram:
    """The program with the channels of its images last: it takes and returns [N, H, W,
    C] instead of [N, C, H, W].

    A transform for ``delegraph.lower``, which changes the program that it is given;
    before or after ``integer_borders``. ``inputs`` by name and ``outputs`` by position
    say which, of rank 3 or more (give them with ``functools.partial``); by default all
    of rank 4 and 5. What the program writes into such an input has its channels last
    too. InputError for a name or position that is none or of a lower rank; Unsupported
    if nothing is left to move.
    """
    signature = program.graph_signature
    given = {node.name: node for node in user_inputs(program)}
    specs = signature.output_specs
    returned = [
        k for k, spec in enumerate(specs) if spec.kind is OutputKind.USER_OUTPUT
    ]
    results = {
        position: output_values(program)[k] for position, k in enumerate(returned)
    }
    names = _chosen("input", given, inputs)
    moved = {returned[position] for position in _chosen("output", results, outputs)}
    if not names and not moved:
        text = (
            "channels_last_borders: the program takes and returns no tensor of rank 4"
            " or 5"
        )
        raise Unsupported("unsupported", text)
    moved |= {
        k
        for k, s in enumerate(specs)
        if s.kind is OutputKind.USER_INPUT_MUTATION and s.target in names
    }
    for name in names:
        _take_channels_last(given[name])
    # read again: an input that is returned is by now the value with its channels first
    kept = [
        _with_channels_last(v) if k in moved else v
        for k, v in enumerate(output_values(program))
    ]
    return _returning(program, kept)


def _chosen(
    side: str, values: Mapping[Any, Any], keys: Collection[Any] | None
) -> list[Any]:
    """The inputs or outputs to move: ``keys``, or all of rank 4 and 5, which torch has
    channels-last formats for.
    """
    vals = {
        key: value.meta.get("val") if isinstance(value, Node) else None
        for key, value in values.items()
    }
    ranks = {
        key: val.dim() if isinstance(val, torch.Tensor) else 0
        for key, val in vals.items()
    }
    if keys is None:
        return [key for key, rank in ranks.items() if rank in (4, 5)]
    if isinstance(keys, str) or not isinstance(keys, Collection):
        raise InputError(
            "input-invalid",
            f"channels_last_borders: {side}s is a list, such as [{keys!r}]",
        )
    for key in keys:
        if ranks.get(key, 0) < 3:
            why = (
                f"is of rank {ranks[key]}, and has no channels"
                if key in ranks
                else f"is none of {list(ranks)}"
            )
            raise InputError(
                "input-invalid", f"channels_last_borders: {side} {key!r} {why}"
            )
    return list(dict.fromkeys(keys))


def _take_channels_last(node: Node) -> None:
    """Make a value with its channels first one with them last, and give its users what
    they had.

    What only quantizes it stays next to it, where ``integer_borders`` and
    ``quantization_of`` look.
    """
    users = list(node.users)
    before = node.meta["val"]
    node.meta["val"] = before.new_empty(
        [before.shape[dim] for dim in _channels_last(before)]
    )
    if users and all(str(user.target) in (QUANTIZE, DEQUANTIZE) for user in users):
        for user in users:
            _take_channels_last(user)
        return
    rank = before.dim()
    calls = (n for n in node.graph.nodes if n.op != "placeholder")
    with node.graph.inserting_before(
        next(calls) if node.op == "placeholder" else node.next
    ):
        moved = _permuted(node, (0, rank - 1, *range(1, rank - 1)), before)
    for user in users:
        user.replace_input_with(node, moved)


def _with_channels_last(value: Node) -> Node:
    """A result with its channels first as one with them last; they are moved before it
    is quantized.
    """
    after = value.meta["val"]
    after = after.new_empty([after.shape[dim] for dim in _channels_last(after)])
    if str(value.target) in (QUANTIZE, DEQUANTIZE):
        inner: Any = value.args[0]
        moved = _with_channels_last(inner)
        with value.graph.inserting_before(output_node(value.graph)):
            copy = value.graph.node_copy(
                value, lambda argument: moved if argument is inner else argument
            )
        copy.meta["val"] = after
        return copy
    with value.graph.inserting_before(output_node(value.graph)):
        return _permuted(value, _channels_last(value.meta["val"]), after)


def _permuted(value: Node, order: Sequence[int], like: torch.Tensor) -> Node:
    """``value`` with its dimensions in another order; it lies in memory as ``like``
    does.
    """
    moved = value.graph.call_function(aten.permute.default, (value, list(order)))
    moved.meta["val"] = value.meta["val"].permute(order)
    # symbolic sizes are not compared
    if list(map(str, moved.meta["val"].stride())) != list(map(str, like.stride())):
        moved = value.graph.call_function(
            aten.clone.default, (moved,), {"memory_format": torch.contiguous_format}
        )
        moved.meta["val"] = like
    return moved


def _channels_last(val: torch.Tensor) -> list[int]:
    """The dimensions of a tensor with its channels first, in the order in which they
    are with its channels last.
    """
    return [0, *range(2, val.dim()), 1]


class BorderQuantization(NamedTuple):
    """How a program's inputs, by name, and its outputs, by position, stand for real
    numbers, where they are quantized.

    An input that is dequantized in several ways is left out.
    """

    inputs: dict[str, QuantizationParameters]
    outputs: dict[int, QuantizationParameters]

    def facts(self) -> dict[str, str]:
        """In words, for the report."""
        found = {f"input {name}": row for name, row in self.inputs.items()}
        found |= {f"output {position}": row for position, row in self.outputs.items()}
        return {what: str(parameters) for what, parameters in found.items()}

    def trailer(self, graph: Graph) -> bytes:
        """For the file of the program's graph, which may have its inputs in another
        order.
        """
        inputs = [self.inputs.get(value.name or "") for value in graph.inputs]
        return trailer(
            inputs,
            [self.outputs.get(position) for position in range(len(graph.outputs))],
        )


def quantization_of(program: ExportedProgram) -> BorderQuantization:
    """What arrives quantized and what leaves quantized."""
    arriving = {
        node.name: {
            _parameters(user) for user in node.users if str(user.target) == DEQUANTIZE
        }
        for node in user_inputs(program)
    }
    returned: Any = output_node(program.graph).args[0]
    leaving = {
        k: _parameters(v)
        for k, v in enumerate(returned)
        if isinstance(v, Node) and str(v.target) == QUANTIZE
    }
    return BorderQuantization(
        {
            name: next(iter(found))
            for name, found in arriving.items()
            if len(found) == 1
        },
        leaving,
    )


def _parameters(call: Node) -> QuantizationParameters:
    _, scale, zero_point, _, _, dtype, *_ = call.args
    return QuantizationParameters(
        str(dtype).removeprefix("torch."),
        float(scale),  # type: ignore[arg-type]
        int(zero_point),  # type: ignore[arg-type]
    )

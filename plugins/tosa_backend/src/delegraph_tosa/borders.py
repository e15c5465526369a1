"""Borders of quantized programs: which integers enter and leave, and programs that take and return integers."""

from __future__ import annotations

from typing import Any, NamedTuple

from delegraph.errors import Unsupported
from delegraph.exported_program import argument_of, build_program, output_node, root_call, user_inputs
from delegraph.formats import QuantizationParameters
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind, OutputSpec
from torch.fx import Node

from .ir.graph import Graph
from .lowering.aten.quantize import quantized_decomposed
from .serialize.trailer import trailer

__all__ = ["integer_borders", "quantization_of"]

DEQUANTIZE = quantized_decomposed.dequantize_per_tensor.default
QUANTIZE = quantized_decomposed.quantize_per_tensor.default


def integer_borders(program: ExportedProgram) -> ExportedProgram:
    """The program without the quantize of its inputs and the dequantize of its results: it takes and returns integers.

    A transform for ``delegraph.lower``, which changes the program that it is given. What nothing quantizes, or several
    calls in different ways, stays as it is. Unsupported if that is everything.
    """
    inputs = [node for node in user_inputs(program) if _take_integers(node)]
    values: Any = output_node(program.graph).args[0]
    pairs = list(zip(program.graph_signature.output_specs, values, strict=True))
    kept = [value.args[0] if _is_dequantized(spec, value) else value for spec, value in pairs]
    if not inputs and kept == list(values):
        raise Unsupported("unsupported", "integer_borders: the program quantizes no input and dequantizes no result")
    output_node(program.graph).args = (tuple(kept),)
    program.graph.eliminate_dead_code()
    specs = [OutputSpec(spec.kind, argument_of(v), spec.target) for (spec, _), v in zip(pairs, kept, strict=True)]
    given = program.graph_signature.input_specs
    return build_program(program.graph_module, program.graph, given, specs, program, root_call(program))


def _take_integers(node: Node) -> bool:
    """Make a placeholder what its users quantize it to, if they all do so in one way."""
    users = list(node.users)
    if not users or any(u.target != QUANTIZE or u.args[1:] != users[0].args[1:] for u in users):
        return False
    node.meta["val"] = users[0].meta["val"]
    for user in users:
        user.replace_all_uses_with(node)
        user.graph.erase_node(user)
    return True


def _is_dequantized(spec: OutputSpec, value: Any) -> bool:
    return spec.kind is OutputKind.USER_OUTPUT and isinstance(value, Node) and value.target == DEQUANTIZE


class BorderQuantization(NamedTuple):
    """How a program's inputs, by name, and its outputs, by position, stand for real numbers, where they are quantized.

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
        """For the file of the program's graph, which may have its inputs in another order."""
        inputs = [self.inputs.get(value.name or "") for value in graph.inputs]
        return trailer(inputs, [self.outputs.get(position) for position in range(len(graph.outputs))])


def quantization_of(program: ExportedProgram) -> BorderQuantization:
    """What arrives quantized and what leaves quantized."""
    arriving = {
        node.name: {_parameters(user) for user in node.users if user.target == DEQUANTIZE}
        for node in user_inputs(program)
    }
    returned: Any = output_node(program.graph).args[0]
    leaving = {k: _parameters(v) for k, v in enumerate(returned) if isinstance(v, Node) and v.target == QUANTIZE}
    return BorderQuantization({name: next(iter(found)) for name, found in arriving.items() if len(found) == 1}, leaving)


def _parameters(call: Node) -> QuantizationParameters:
    _, scale, zero_point, _, _, dtype, *_ = call.args
    return QuantizationParameters(str(dtype).removeprefix("torch."), float(scale), int(zero_point))  # type: ignore[arg-type]

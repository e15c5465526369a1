"""What the integers are that enter and leave a quantized program."""

from __future__ import annotations

from delegraph.exported_program import output_node, user_inputs
from torch.export import ExportedProgram
from torch.fx import Node

from .aten.quantize import quantized_decomposed

DEQUANTIZE = quantized_decomposed.dequantize_per_tensor.default
QUANTIZE = quantized_decomposed.quantize_per_tensor.default


def quantization_of(program: ExportedProgram) -> dict[str, str]:
    """Scale and zero point of what arrives quantized and of what leaves quantized, by name or position, in words.

    An input that is dequantized in several ways, and what is not quantized, is left out.
    """
    facts = {f"input {node.name}": _parameters(node) for node in user_inputs(program)}
    returned = output_node(program.graph).args[0]
    facts |= {f"output {k}": _written(node) for k, node in enumerate(returned)}  # type: ignore[arg-type]
    return {name: next(iter(found)) for name, found in facts.items() if len(found) == 1}


def _parameters(node: Node) -> set[str]:
    return {_words(user) for user in node.users if user.target == DEQUANTIZE}


def _written(node: object) -> set[str]:
    return {_words(node)} if isinstance(node, Node) and node.target == QUANTIZE else set()


def _words(call: Node) -> str:
    _, scale, zero_point, _, _, dtype, *_ = call.args
    return f"{str(dtype).removeprefix('torch.')}, scale {scale:.9g}, zero point {zero_point}"

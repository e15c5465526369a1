"""Compiles a part of a program to a blob. Replace it by your compiler."""

from __future__ import annotations

import torch
from delegraph.backend import BackendDetails, CompileSpec, DelegateMappingBuilder, NamedDataStore, PreprocessResult
from delegraph.errors import OptionError, Unsupported
from delegraph_programs import source_of
from torch.export import ExportedProgram
from torch.fx import Node

from .blob import Constant, Program, Step, pack, write
from .instructions import NAME_OF, why_not


class AcmeNpuBackend(BackendDetails):
    """Compiles the parts that the partitioner chose. delegraph makes no instance of this class."""

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Return the blob of a part, its weights as named data, and a map from steps to the user's operators.

        The placeholders of ``edge_program`` are the weights of the part, then its inputs. The program returns a tuple.
        Its graph is functional: no operator writes in place. If this function raises Unsupported, the
        part goes to the next backend or stays on the host, and the report shows the message.
        """
        if compile_specs:
            message = f"acme-npu knows no compile spec {compile_specs[0].key!r}"
            raise OptionError("option-invalid", message)
        weights = NamedDataStore()
        mapping = DelegateMappingBuilder(generated_identifiers=True)
        constants = {name: _stored(tensor, weights) for name, tensor in _constants(edge_program).items()}
        program = Program(constants, inputs=[], steps=[], outputs=[])
        for node in edge_program.graph.nodes:
            if node.op == "placeholder" and node.name not in constants:
                program.inputs.append(node.name)
            elif node.op == "call_function":
                program.steps.append(_step(node))
                mapping.insert_delegate_mapping_entry(nodes=node)  # number of the step -> the user's operator
            elif node.op == "output":
                program.outputs.extend(value.name for value in node.args[0])
        return PreprocessResult(write(program), mapping.get_delegate_mapping(), weights.get_named_data_store_output())


def _step(node: Node) -> Step:
    """Return the instruction for one call. Values keep their names in the graph."""
    reason = why_not(node)
    if reason is not None:
        message = f"acme-npu cannot compile {node.target}: {reason}"
        raise Unsupported("unsupported", message, node=node, source=source_of(node))
    operands = [operand.name if isinstance(operand, Node) else None for operand in node.args]
    return Step(NAME_OF[node.target], operands, result=node.name)


def _constants(program: ExportedProgram) -> dict[str, torch.Tensor]:
    """Return parameters, buffers and constants by the names of their placeholders. Do not write to these tensors."""
    signature = program.graph_signature
    targets = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    targets |= signature.inputs_to_lifted_tensor_constants
    tensors = {**program.state_dict, **program.constants}
    return {name: tensors[target] for name, target in targets.items()}


def _stored(tensor: torch.Tensor, weights: NamedDataStore) -> Constant:
    """Store a weight as named data, outside the blob. Equal weights of several parts are stored once."""
    if tensor.dtype is not torch.float32:
        message = f"acme-npu keeps constants in float32, not in {tensor.dtype}"
        raise Unsupported("unsupported", message)
    constant, data = pack(tensor)
    weights.add_named_data(constant.key, data)
    return constant

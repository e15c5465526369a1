"""A backend whose delegates keep the buffers that they write."""

import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from delegraph.runtime import BackendRuntime
from torch.export.graph_signature import InputKind

COMPILED = {}


class Keeper(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        name = f"program {len(COMPILED)}".encode()
        COMPILED[name] = edge_program
        return PreprocessResult(name)


class KeeperRuntime(BackendRuntime):
    """A stateful runtime. Each load has its own buffers; calls return no mutations."""

    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        program = COMPILED[processed_bytes]
        tensors = {**program.state_dict, **program.constants}
        signature = program.graph_signature
        state = {
            name: tensors[name].clone() for name in signature.buffers_to_mutate.values()
        }

        def call(*args):
            given = iter(args)
            inputs = [
                (
                    next(given)
                    if spec.kind is InputKind.USER_INPUT
                    else state.get(spec.target, tensors.get(spec.target))
                )
                for spec in signature.input_specs
            ]
            results = torch.fx.Interpreter(program.graph_module).run(*inputs)
            state.update(
                {
                    s.target: r
                    for s, r in zip(signature.output_specs, results, strict=True)
                    if s.target
                }
            )
            return results[len(state) :]

        return call


class Tagged(Partitioner):
    """Tags the calls for which ``take`` returns True, and the data by the given
    functions.
    """

    def __init__(self, take=lambda node: True, *tag_data):
        super().__init__()
        self.take = take
        self.tag_data = tag_data

    def partition(self, exported_program):
        for node in exported_program.graph.nodes:
            if node.op == "call_function" and self.take(node):
                node.meta["delegation_tag"] = "tag0"
        for tag in self.tag_data:
            tag(exported_program)
        return PartitionResult(exported_program, {"tag0": DelegationSpec("Keeper")})

"""Delegates that use one constant share its memory: no pass copies it.

A row names the test of ExecuTorch that a test here repeats.
"""

import pytest
import torch
from delegraph.partitioner import DelegationSpec, Partitioner, PartitionResult
from delegraph_engines import tag_constant_data
from delegraph_executorch.edge import get_lowered_backend_modules, to_backend
from torch.export.graph_signature import InputKind

from . import backends
from .backends import (
    CompilerBackend,
    assert_close,
    aten,
    export,
    partitioner_for,
    run_on_host,
)


@pytest.fixture(autouse=True)
def installed():
    with backends.installed():
        yield


class Each(Partitioner):
    """Make a partition of every call of one of these operators, with its constants."""

    def __init__(self, *operators):
        super().__init__()
        self.operators = operators

    def partition(self, exported_program):
        tags = {}
        for node in exported_program.graph.nodes:
            if node.target in self.operators:
                node.meta["delegation_tag"] = tag = f"tag{len(tags)}"
                tags[tag] = DelegationSpec(CompilerBackend.__name__)
        tag_constant_data(exported_program)
        return PartitionResult(exported_program, tags)


def buffers(program):
    """Return the name of the placeholder and the target of each buffer."""
    listed = program.graph_signature.input_specs
    return [(s.arg.name, s.target) for s in listed if s.kind is InputKind.BUFFER]


def test_two_delegates_share_the_memory_of_a_constant():
    """Row: passes.test_duplicate_constant_node_pass"""
    x = torch.ones(2, 2)
    const = torch.full((2, 2), 3.0)
    given = export(lambda s, x: (x + s.const, x - s.const), x, const=const)
    lowered = to_backend(given, Each(aten.add.Tensor, aten.sub.Tensor))
    inner = [
        m.original_module for m in get_lowered_backend_modules(lowered.graph_module)
    ]

    assert [buffers(p) for p in inner] == [[("b_const", "const")]] * 2
    assert buffers(lowered) == []
    assert {p.state_dict["const"].data_ptr() for p in inner} == {
        given.state_dict["const"].data_ptr()
    }
    assert_close(run_on_host(lowered, x), (x + const, x - const))


def test_a_constant_may_be_a_keyword_argument():
    """Row: passes.test_duplicate_constant_node_with_kwargs_users"""
    x = torch.randn(3)
    const = torch.tensor([1.0, 2.0, 3.0])
    given = export(lambda s, x: (x + s.const, x * s.const), x, const=const)
    [product] = [n for n in given.graph.nodes if n.target is aten.mul.Tensor]
    left, right = product.args
    product.args = (left,)
    product.kwargs = {"other": right}
    lowered = to_backend(given, Each(aten.add.Tensor, aten.mul.Tensor))
    modules = get_lowered_backend_modules(lowered.graph_module)

    assert [buffers(m.original_module) for m in modules] == [[("b_const", "const")]] * 2
    assert_close(run_on_host(lowered, x), (x + const, x * const))


def test_each_delegate_computes_a_shared_constant_itself():
    """This is ExecuTorch's ``DuplicateDequantNodePass``: both partitions contain
    ``mul``, which only reads a constant.
    """
    x = torch.randn(2, 3)
    weight = torch.randn(3)
    given = export(
        lambda s, x: torch.tanh(x * (s.weight * 0.5)) + (s.weight * 0.5),
        x,
        weight=weight,
    )
    calls = [node for node in given.graph.nodes if node.op == "call_function"]
    *_, addition = calls
    first_scaled, second_scaled = calls[0], calls[-2]
    addition.replace_input_with(second_scaled, first_scaled)
    lowered = to_backend(given, partitioner_for(aten.mul.Tensor, aten.add.Tensor))
    programs = [
        m.original_module for m in get_lowered_backend_modules(lowered.graph_module)
    ]
    computed = [
        [node.name for node in p.graph.nodes if node.op == "call_function"]
        for p in programs
    ]

    assert computed == [["mul", "mul_1"], ["mul", "add"]]
    assert_close(run_on_host(lowered, x), torch.tanh(x * (weight * 0.5)) + weight * 0.5)

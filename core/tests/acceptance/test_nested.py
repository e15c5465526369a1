"""The ``preprocess`` of a backend may give parts of its program to another backend.

A row names the test of ExecuTorch that a test here repeats.
"""

import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph_executorch.edge import to_backend, to_edge
from torch import nn

from . import backends
from .backends import (
    CALL,
    Tagging,
    assert_close,
    aten,
    call_targets,
    export,
    lowered_modules,
    partitioner_for,
    run_on_host,
)

COND = torch.ops.higher_order.cond


class SecondBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(
            f"second({' '.join(name(t) for t in call_targets(edge_program))})".encode()
        )


class FirstBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        inside = to_backend(
            edge_program,
            partitioner_for(aten.add.Tensor, aten.mm.default, backend="SecondBackend"),
        )
        return PreprocessResult(
            f"first({describe_calls(inside.graph_module)})".encode()
        )


def name(target):
    return target.__name__.split(".")[0]


def describe_calls(module):
    """Return the names of a graph's calls.

    A conditional has its branches in brackets, and a delegate is shown as its blob.
    """
    found = []
    for node in module.graph.nodes:
        if node.target is CALL:
            found.append(getattr(module, node.args[0].target).processed_bytes.decode())
        elif node.target is COND:
            _, true_branch, false_branch, *_ = node.args
            true_calls = describe_calls(getattr(module, true_branch.target))
            false_calls = describe_calls(getattr(module, false_branch.target))
            found.append(f"cond[{true_calls} | {false_calls}]")
        elif node.op == "call_function" and node.target.__name__ != "getitem":
            found.append(name(node.target))
    return " ".join(found)


class Conditions(nn.Module):
    def forward(self, x, outer, inner, y):
        def true_nested(z):
            z = z + z
            return torch.mm(z, z)

        def false_nested(z):
            return torch.mm(z, z)

        def true_branch(x, inner):
            return x + torch.cond(inner, true_nested, false_nested, [x])

        def false_branch(x, inner):
            return torch.mm(x, x)

        return torch.cond(outer, true_branch, false_branch, [x.cos() + y, inner]).sin()


@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("inner", [False, True])
def test_second_backend_compiles_parts_of_nested_branches(outer, inner):
    """Row: nested.test"""
    inputs = (
        torch.ones(2, 2),
        torch.tensor(outer),
        torch.tensor(inner),
        torch.ones(2, 2),
    )
    model = Conditions().eval()
    edge = to_edge(torch.export.export(model, inputs)).exported_program()
    taken = (aten.add.Tensor, aten.mm.default, COND)
    partitioner = Tagging(
        lambda n: n.target in taken or n.op == "get_attr", "FirstBackend"
    )
    with backends.installed(FirstBackend, SecondBackend):
        program = to_backend(edge, partitioner)
    [first] = lowered_modules(program)
    nested = "cond[second(add mm) | second(mm)]"

    assert (
        first.processed_bytes.decode()
        == f"first(second(add) cond[{nested} second(add) | second(mm)])"
    )
    assert call_targets(program) == [aten.cos.default, CALL, aten.sin.default]
    assert_close(program.module(check_guards=False)(*inputs), model(*inputs))


class ComposingBackend(BackendDetails):
    """Gives another compiler the operators that it supports, and stores its blobs in
    the own blob.
    """

    operators = None

    @classmethod
    def preprocess(cls, edge_program, compile_specs):
        inside = to_backend(
            edge_program, partitioner_for(aten.mm.default, aten.add.Tensor)
        )
        return backends.compiled(inside, cls)


def test_outer_runtime_loads_the_inner_blob():
    """The program of the outer delegate does not change while it is compiled."""
    a = torch.randn(2, 2)
    b = torch.randn(2, 2)
    source = export(
        lambda s, a, b: torch.tanh(torch.mm(a, b) + s.c) - a, a, b, c=torch.ones(2)
    )
    with backends.installed(ComposingBackend, backends.CompilerBackend):
        program = to_backend(source, backends.partitioner_for_all("ComposingBackend"))
        [outer] = lowered_modules(program)
        assert b'"backend": "CompilerBackend"' in outer.processed_bytes
        assert CALL not in call_targets(outer.original_module)
        assert_close(run_on_host(program, a, b), torch.tanh(torch.mm(a, b) + 1) - a)

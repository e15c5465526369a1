"""Graphs whose names tell the calls of a partition, for engines that read graphs of
torch.fx.
"""

import torch
from delegraph.errors import Unsupported
from delegraph_engines import calls_in
from delegraph_openvino.numbered_graph import NumberedGraph
from torch import nn

aten = torch.ops.aten


class Layer(nn.Module):
    """Of a bias that torch only marks as negated, a weight in another order, and a
    number.
    """

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.arange(6.0).reshape(3, 2).t())
        self.bias = nn.Buffer(torch._neg_view(torch.ones(2)))

    def forward(self, x, n):
        return torch.topk(x @ self.weight.t() + self.bias, 1)[0] + n, x


def export_layer():
    return torch.export.export(
        Layer(),
        (torch.ones(2, 3), 4),
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC}, None),
    )


def node_names(graph):
    return [node.name for node in graph.graph.nodes]


def test_calls_are_numbered_and_constants_are_contiguous_attributes():
    graph = NumberedGraph(export_layer())
    computed = [node.name for node in graph.graph.nodes if node.op == "call_function"]
    assert computed == [f"n{k}" for k in range(len(graph.calls))]
    assert len(computed) > 4
    assert (
        [node.target for node in graph.graph.nodes if node.op == "get_attr"]
        == [*graph.constants]
        == ["c0", "c1"]
    )
    assert [node.name for node in graph.graph.nodes if node.op == "placeholder"] == [
        "x0",
        "x1",
    ]
    weight, bias = graph.constants.values()
    assert torch.equal(weight, Layer().weight)
    assert weight.is_contiguous()
    assert not weight.requires_grad
    assert bias.tolist() == [-1, -1]
    assert not bias.is_neg()
    assert [node.name for node in graph.outputs] == [computed[-1], "x0"]
    vals = [
        node.meta["val"] for node in graph.graph.nodes if node.op == "call_function"
    ]
    assert all(
        val is call.meta["val"] for val, call in zip(vals, graph.calls, strict=True)
    )
    module = torch.fx.GraphModule(dict(graph.constants), graph.graph)
    graph.graph.output(tuple(graph.outputs))
    module.recompile()
    given = torch.randn(5, 3)
    for actual, expected in zip(module(given, 4), Layer()(given, 4), strict=True):
        torch.testing.assert_close(actual, expected)


class Written(NumberedGraph):
    """Sums as differences of what is negated."""

    def write(self, node):
        if node.target is not aten.add.Tensor:
            return super().write(node)
        left, right = self.operands(*node.args)
        return (
            aten.sub.Tensor,
            (left, self.part(aten.neg.default, self.part(aten.clone.default, right))),
            {},
        )


def test_names_of_converted_calls_keep_the_original_number():
    graph = Written(torch.export.export(Two().eval(), (torch.ones(2), torch.ones(2))))
    assert node_names(graph) == ["x0", "x1", "n0", "n1_in", "n1_in_1", "n1"]
    assert [node.target for node in graph.calls] == [aten.sin.default, aten.add.Tensor]
    assert calls_in("n1_in/aten.clone, n1_in_1/aten.neg and n0/aten.sin") == [1, 1, 0]
    assert calls_in("an0/x n/1 n12 x1/y n_in/") == []


class Two(nn.Module):
    def forward(self, x, y):
        return x.sin() + y


def test_engine_errors_are_mapped_to_call_and_line():
    graph = Written(torch.export.export(Two().eval(), (torch.ones(2), torch.ones(2))))
    said = graph.refused("no kernel for n1_in_1/Neg")
    assert said.node is graph.calls[1]
    assert said.message == "no kernel for n1_in_1/Neg"
    assert said.source.code == "return x.sin() + y"
    # the graph has no call 7
    for text in ("out of memory", "none for n7/Neg"):
        unnamed = graph.refused(text)
        assert not isinstance(unnamed, Unsupported)
        assert str(unnamed) == text


def test_debug_handles_are_those_of_the_calls_that_have_one():
    exported = torch.export.export(Two().eval(), (torch.ones(2), torch.ones(2)))
    sine, plus = (node for node in exported.graph.nodes if node.op == "call_function")
    sine.meta.pop("debug_handle", None)
    plus.meta["debug_handle"] = 7
    assert Written(exported).debug_handles == {1: (7,)}

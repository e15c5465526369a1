"""Reports name sizes as the user does, instead of torch's symbols."""

import io
from types import SimpleNamespace

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.partitioner import CapabilityPartitioner, Reason
from delegraph.report.user_names import Notation
from torch._higher_order_ops.while_loop import while_loop
from torch.export import Dim, export, load, save

aten = torch.ops.aten


class Quiet(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"blob")


def why_not(node):
    if node.target is aten.relu.default or not isinstance(
        node.meta["val"], torch.Tensor
    ):
        return None if node.target is aten.relu.default else "a size"
    return Reason(f"{node.name} is {list(node.meta['val'].shape)}")


class Half(torch.nn.Module):
    def forward(self, x, y):
        return torch.cat([x.relu(), x], 1).sin(), y.cos()


def lower(model, inputs=(), **options):
    registry = Registry(discover=False)
    registry.register(
        Quiet, partitioner=CapabilityPartitioner(why_not, "Quiet"), name="quiet"
    )
    return delegraph.lower(
        model, inputs, backends=["quiet"], registry=registry, **options
    )


@pytest.fixture(scope="module")
def exported():
    shapes = ({0: Dim("batch"), 1: Dim("length", min=3)}, {0: Dim("batch")})
    return export(
        Half().eval(), (torch.ones(3, 5), torch.ones(3, 2)), dynamic_shapes=shapes
    )


def test_sizes_have_the_names_of_their_dims(exported):
    lowered = lower(exported)
    assert [cause.reason for cause in lowered.report.causes] == [
        "cat is [batch, 2*length]",
        "sin is [batch, 2*length]",
        "cos is [batch, 2]",
    ]

    (row,) = lowered.report.delegates
    assert [str(a) for a in (*row.inputs, *row.outputs)] == [
        "x: float32[batch, length]",
        "relu: float32[batch, length]",
    ]


def test_sizes_of_a_loaded_program_are_named_by_its_inputs(exported):
    file = io.BytesIO()
    save(exported, file)
    file.seek(0)
    report = lower(load(file)).report
    assert report.causes[0].reason == "cat is [x.size(0), 2*x.size(1)]"


def test_data_dependent_sizes_are_named_by_their_call():
    class Model(torch.nn.Module):
        def forward(self, x):
            return x.nonzero().sin()

    report = lower(Model().eval(), (torch.ones(3),)).report
    assert [cause.reason for cause in report.causes] == [
        "nonzero is [nonzero.size(0), 1]",
        "sin is [nonzero.size(0), 1]",
    ]


def test_a_value_with_the_name_of_a_symbol_keeps_it(exported):
    nodes = list(exported.graph.nodes)
    symbol = str(nodes[0].meta["val"].shape[0])
    assert (
        Notation(nodes).text(f"it is [{symbol}], x.{symbol}")
        == f"it is [batch], x.{symbol}"
    )

    called_so = SimpleNamespace(name=symbol, op="placeholder", meta={})
    assert (
        Notation([*nodes, called_so]).text(f"it is [{symbol}]") == f"it is [{symbol}]"
    )


def test_loop_inputs_are_named_by_their_initial_values():
    class Loop(torch.nn.Module):
        def forward(self, x, factor):
            def inner(i, value):
                return i + 1, value * factor

            def body(i, value):
                return i + 1, while_loop(lambda i, _: i.sum() < 2, inner, (i, value))[1]

            return while_loop(lambda i, _: i.sum() < 3, body, (torch.zeros(1), x.sin()))

    class No(CapabilityPartitioner):
        def __init__(self):
            super().__init__(
                lambda n: " ".join(i.name for i in n.all_input_nodes), "Blob"
            )

    lowered = delegraph.lower(
        Loop().eval(), (torch.ones(2), torch.ones(2)), backends=[No()]
    )
    said = {
        row.operator: row.reason
        for row in lowered.report.refusals
        if row.operator == "aten.mul.Tensor"
    }

    assert said == {"aten.mul.Tensor": "sin factor"}

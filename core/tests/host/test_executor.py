"""Calls of delegates: strides of their inputs, and observers."""

import sys

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import PluginUnavailable
from delegraph.host.executor import LoadedDelegate
from delegraph.partitioner import CapabilityPartitioner
from delegraph.runtime import BackendRuntime


class DoublingBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"")


class DoublingRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        return lambda x: (x * 2,)


@pytest.fixture
def registry():
    registry = Registry(discover=False)
    partitioner = CapabilityPartitioner(lambda node: None, "DoublingBackend")
    registry.register(
        DoublingBackend,
        partitioner=partitioner,
        runtime=DoublingRuntime,
        name="doubling",
    )
    return registry


def test_observing_without_delegraph_analysis_names_it(registry, monkeypatch):
    lowered = delegraph.lower(
        Turned().eval(), (torch.eye(3),), backends=["doubling"], registry=registry
    )
    monkeypatch.setitem(sys.modules, "delegraph_analysis", None)

    with pytest.raises(
        PluginUnavailable, match="observing a program comes with delegraph-analysis"
    ) as raised:
        lowered.observe(object(), torch.eye(3))
    assert raised.value.hint == "pip install delegraph-analysis"
    assert lowered.verify(torch.eye(3)).agrees()


class Turned(torch.nn.Module):
    def forward(self, x):
        y = x.t()
        return y + y


@pytest.mark.parametrize("any_strides", [False, True])
def test_a_runtime_that_takes_any_strides_gets_values_as_they_are(
    any_strides, registry, monkeypatch
):
    """torch recorded the strides of a transposed tensor. The call passes C order."""
    given = []

    def load(processed_bytes, compile_specs, named_data):
        return lambda x: (given.append(x.stride()) or x * 2,)

    monkeypatch.setattr(DoublingRuntime, "load", staticmethod(load))
    monkeypatch.setattr(DoublingRuntime, "any_strides", any_strides)
    monkeypatch.setattr(LoadedDelegate, "_check", lambda self, results: results)
    taken = CapabilityPartitioner(
        lambda n: None if n.target is torch.ops.aten.add.Tensor else "no",
        "DoublingBackend",
    )
    lowered = delegraph.lower(
        Turned().eval(), (torch.eye(3, 3),), backends=[taken], registry=registry
    )
    [call] = [
        node
        for node in lowered.exported_program().graph.nodes
        if "call_delegate" in str(node.target)
    ]
    value = call.args[1].meta["val"]
    other = torch.ops.aten.t.default
    monkeypatch.setattr(
        call.args[1],
        "target",
        lambda x: other(x).contiguous(memory_format=torch.contiguous_format),
    )
    for _ in range(2):  # the first call loads the runtime, and does not know it yet
        result = lowered(2 * torch.eye(3, 3))
        assert torch.equal(result, 4 * torch.eye(3))
    recorded = value.stride()

    assert given == ([recorded, (3, 1)] if any_strides else [recorded] * 2)
    assert recorded != (3, 1)


class Chosen(torch.nn.Module):
    def forward(self, x, index):
        return x[index]  # the user's line


def test_a_failing_operator_notes_the_users_line():
    lowered = delegraph.lower(
        Chosen().eval(), (torch.eye(3), torch.tensor([0])), backends=[]
    )
    with pytest.raises(IndexError) as raised:
        lowered(torch.eye(3), torch.tensor([5]))

    [note] = raised.value.__notes__
    assert note.startswith("in aten.index.Tensor at ")
    assert "return x[index]" in note

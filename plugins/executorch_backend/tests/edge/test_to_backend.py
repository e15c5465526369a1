"""``to_backend`` in its three forms, through the process-wide registry."""

import pytest
import torch
from delegraph.backend import CompileSpec
from delegraph.errors import InputError
from delegraph.partitioner import CapabilityPartitioner
from delegraph_executorch.edge import (
    LoweredBackendModule,
    MethodProgramsPartitionerSpec,
    to_backend,
)
from torch import nn


class Sine(nn.Module):
    def forward(self, x):
        return torch.sin(x) * 2


def export_sine():
    return torch.export.export(Sine().eval(), (torch.randn(3),))


def test_whole_program_becomes_a_lowered_module(installed):
    specs = [CompileSpec("k", b"v"), CompileSpec("k", b"w")]
    given = export_sine()
    before = str(given.graph)
    lowered = to_backend("EchoBackend", given, specs)
    assert isinstance(lowered, LoweredBackendModule)
    assert lowered.compile_specs == specs
    x = torch.randn(3)
    torch.testing.assert_close(lowered(x), torch.sin(x) * 2)
    assert str(given.graph) == before


def test_partitioner_chooses_the_delegated_calls(installed):
    keep_sine = CapabilityPartitioner(
        lambda n: None if "sin" in n.name else "no", "EchoBackend"
    )
    lowered = to_backend(export_sine(), keep_sine)
    x = torch.randn(3)
    torch.testing.assert_close(lowered.module(check_guards=False)(x), torch.sin(x) * 2)
    assert [node.target for node in lowered.graph.nodes if node.op == "get_attr"] == [
        "lowered_module_0"
    ]


def test_only_methods_with_a_partitioner_are_delegated(installed):
    everything = CapabilityPartitioner(lambda n: None, "EchoBackend")
    spec = MethodProgramsPartitionerSpec(
        {"a": export_sine(), "b": export_sine()}, {"a": everything}
    )
    lowered = to_backend(spec)
    delegates = {
        m: sum(node.op == "get_attr" for node in p.graph.nodes)
        for m, p in lowered.items()
    }
    assert delegates == {"a": 1, "b": 0}


def test_unknown_backend_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="FakeBackend"):
        to_backend("FakeBackend", export_sine(), [])


@pytest.mark.parametrize("arguments", [(3,), ("EchoBackend", 3), (3, 4)])
def test_to_backend_refuses_other_arguments(arguments):
    with pytest.raises(InputError, match="to_backend takes"):
        to_backend(*arguments)


def test_partitioner_for_an_unknown_method(installed):
    everything = CapabilityPartitioner(lambda n: None, "EchoBackend")
    with pytest.raises(InputError, match="'b'"):
        to_backend(
            MethodProgramsPartitionerSpec({"a": export_sine()}, {"b": everything})
        )


def test_lowered_module_inside_another_module(installed):
    """A lowered module can be called from a module that is exported again, twice if
    wanted.
    """
    lowered = to_backend("EchoBackend", export_sine(), [])

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = lowered

        def forward(self, x):
            return self.inner(x) + self.inner(x)

    x = torch.randn(3)
    again = torch.export.export(Outer().eval(), (x,))
    calls = [
        node
        for node in again.graph.nodes
        if node.target is torch.ops.higher_order.executorch_call_delegate
    ]
    assert len(calls) == 2
    torch.testing.assert_close(again.module(check_guards=False)(x), 4 * torch.sin(x))

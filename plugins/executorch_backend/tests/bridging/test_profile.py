"""Times of XNNPACK's operators: whose node each is, and damaged dumps."""

import delegraph
import pytest
import torch
from delegraph.errors import FormatError
from delegraph.runtime import Border
from delegraph_executorch.bridging.profile import Event, last_run, nodes_of, spent


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3)
        self.point = torch.nn.Conv2d(8, 8, 1)

    def forward(self, x):
        y = torch.relu(self.conv(x))
        return self.point(y) + y


def lowered_for_xnnpack(module, given):
    pytest.importorskip("executorch")
    return delegraph.lower(module, given, backends=["xnnpack"])


def test_operators_are_on_the_lines_that_they_come_from():
    given = torch.randn(1, 3, 32, 32)
    lowered = lowered_for_xnnpack(Net().eval(), (given,))
    [delegate] = lowered.delegates
    assert {handle for _, handle in nodes_of(delegate.processed_bytes)} <= {
        *delegate.debug_handle_map
    }
    found = lowered.profile(given, repeats=2)
    told = [part for part in found.parts if part.where == delegate.name and part.lines]
    lines = {line.code for part in told for line in part.lines}
    assert lines == {"y = torch.relu(self.conv(x))", "return self.point(y) + y"}
    assert {module for part in told for module in part.modules} >= {"conv", "point"}
    assert found.attributed > 0
    measured = [
        part
        for part in told
        if part.intervals and not isinstance(part.identifier, Border)
    ]
    assert "aten.convolution.default" in {part.what for part in measured}


class Shared(torch.nn.Module):
    """Two convolutions read one image, and the second one's result is returned beside a
    sum.
    """

    def __init__(self):
        super().__init__()
        self.one = torch.nn.Conv2d(3, 8, 3)
        self.two = torch.nn.Conv2d(3, 8, 3)

    def forward(self, x):
        y = self.two(x)
        return self.one(x) + y, y


def test_layout_changes_count_for_the_node_they_serve():
    given = (torch.randn(1, 3, 32, 32),)
    lowered = lowered_for_xnnpack(Net().eval(), given)
    first, *calls, last = nodes_of(lowered.delegates[0].processed_bytes)
    assert first[0] == "transpose"
    assert last[0] == "transpose"
    assert "transpose" not in dict(calls)
    assert first[1] == calls[0][1]
    assert last[1] == calls[-1][1]
    lowered = lowered_for_xnnpack(Shared().eval(), given)
    [delegate] = lowered.delegates
    known = {node.meta["debug_handle"]: node.name for node in delegate.nodes}
    served = [
        known.get(handle)
        for kind, handle in nodes_of(delegate.processed_bytes)
        if kind == "transpose"
    ]
    assert served == [None, "convolution", "add"]  # the image of both; y; the sum


def test_events_without_a_matching_node_are_unassigned():
    nodes = [("product", 1), ("add", 2), ("product", 3), ("clamp", 4)]
    events = [
        Event("Convolution (NHWC, F32) IGEMM #1", 1.0),
        Event("Fully Connected (NC, F32) GEMM #1", 2.0),
    ]
    assert spent(events, nodes) == {1: {"seconds": 1.0}, 3: {"seconds": 2.0}}
    assert spent(events[:1], nodes) == {None: {"seconds": 1.0}}
    assert spent([Event("Add (ND) #1", 1.0), Event("New Thing #1", 4.0)], nodes) == {
        2: {"seconds": 1.0},
        None: {"seconds": 4.0},
    }
    started = [Event("Add (ND) #1", 1.0, -2.0)]
    intervals = {"seconds": 1.0, "intervals": [(8.0, 9.0)]}
    assert spent(started, nodes, middle=10.0) == {2: intervals}


@pytest.mark.parametrize(
    "dump",
    [
        b"",
        bytes(64),
        b"\x08\0\0\0ED00",
        b"\xff" * 64,
        bytes(4) + b"\x08\0\0\0ED00" + b"\xff" * 8,
    ],
)
def test_a_damaged_dump_is_one_error(dump):
    with pytest.raises(FormatError, match="ETDump"):
        last_run(dump)

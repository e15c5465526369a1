"""A partition is cut out of what was converted to edge dialect for the partitioner; it
is not converted again.
"""

from __future__ import annotations

from typing import Any

import delegraph
import pytest
import torch
from delegraph_executorch.bridging import backend
from torch import Tensor, nn


class Block(nn.Module):
    """Attention and a norm, which XNNPACK leaves to the host whole, between what it
    takes; a number that is lifted.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.attend(x)
        scaled = self.head(y.sin()) * 0.3 + 2
        return scaled, scaled.sin() + y.sum(-1, keepdim=True)


X = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(0))


def test_no_partition_is_converted_again_and_blobs_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    converted: list[Any] = []
    convert = backend.to_edge_dialect

    def counted(*args: Any) -> Any:
        converted.append(args)
        return convert(*args)

    monkeypatch.setattr(backend, "to_edge_dialect", counted)
    lowered = delegraph.lower(Block().eval(), (X,), backends=["xnnpack"])
    assert len(lowered.delegates) > 2
    assert converted == []
    assert lowered.verify(X).agrees()
    monkeypatch.setattr(backend, "cut_partition", lambda program: None)
    again = delegraph.lower(Block().eval(), (X,), backends=["xnnpack"])
    assert len(converted) == len(again.delegates)
    assert [bytes(delegate.processed_bytes) for delegate in lowered.delegates] == [
        bytes(delegate.processed_bytes) for delegate in again.delegates
    ]


def test_changed_calls_are_converted_again() -> None:
    """A value that a transform, or another backend, put in the place of a call of the
    same name.
    """
    from delegraph_executorch.bridging.cut_partition import (
        Converted,
        cut_partition,
        remember_conversion,
    )
    from delegraph_executorch.bridging.edge import to_edge_dialect

    program = delegraph.export(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval(), (torch.ones(2, 4),)
    )["forward"]
    program = program.run_decompositions({})
    edge = to_edge_dialect(program)
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert cut_partition(program) is None
    remember_conversion(program, edge, calls)
    part = cut_partition(program)
    assert part is not None
    assert len(part.graph.nodes) == len(edge.graph.nodes)
    calls[-1].meta["val"] = calls[-1].meta["val"].clone()
    assert Converted(program, edge).part(program) is not None
    remember_conversion(program, edge, calls)
    calls[-1].meta["val"] = calls[-1].meta["val"].clone()
    assert cut_partition(program) is None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("features", [4, 3])
def test_folded_transposed_weights_are_not_transposed_again(
    features: int, bias: bool
) -> None:
    """A linear layer that was decomposed is a product by its transposed weight, a call
    on a constant alone.
    """
    model = nn.Sequential(nn.Linear(4, features, bias=bias), nn.ReLU()).eval()
    x = torch.randn(2, 4)
    program = torch.export.export(model, (x,)).run_decompositions()
    lowered = delegraph.lower(program, backends=["xnnpack"])
    assert lowered.verify(x).agrees()

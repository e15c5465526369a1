"""XNNPACK's blobs from a cache: what a compile gives, found again, equal ones compiled
once and written once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph.io.blob_pieces import join
from delegraph_executorch.bridging.xnnpack import TheirBackend
from delegraph_workers import Compiler
from torch import Tensor, nn


class Heads(nn.Module):
    """Two equal layers and another, between calls that XNNPACK leaves to the host."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.equal, self.other = (nn.Linear(16, 16) for _ in range(3))
        self.equal.load_state_dict(self.one.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.one, self.equal, self.other):
            x = layer(x).relu().cumsum(-1)
        return x


X = torch.randn(2, 16, generator=torch.Generator().manual_seed(0))


def contents_of_delegates(program: Any) -> list[Any]:
    return [
        (
            join(delegate.blob),
            delegate.debug_handle_map,
            delegate.named_data and list(map(join, delegate.named_data.buffers)),
        )
        for delegate in program.delegates
    ]


def test_blobs_are_found_again_and_equal_ones_compile_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    theirs = TheirBackend.preprocess
    monkeypatch.setattr(
        TheirBackend,
        "preprocess",
        lambda *given: compiled.append(given) or theirs(*given),
    )
    expected = None
    for whence in ("compiled", "from the cache"):
        program = delegraph.lower(
            Heads().eval(),
            (X,),
            backends=["xnnpack"],
            compiler=Compiler(tmp_path / "cache"),
        )
        first = program.delegates[0].name
        assert [delegate.compiled for delegate in program.delegates] == [
            whence,
            f"equal to {first}",
            whence,
        ]
        assert len(compiled) == 2
        own = [
            {node.meta["debug_handle"] for node in delegate.nodes}
            for delegate in program.delegates
        ]
        told = [
            {h for listed in delegate.debug_handle_map.values() for h in listed}
            for delegate in program.delegates
        ]
        assert all(some and some <= all_ for some, all_ in zip(told, own, strict=True))
        assert program.verify(X).agrees()
        answers = [note for note in program.report.notes if "answer of" in note]
        assert answers == [
            "an answer of XnnpackBackendPartitioner is from the cache"
        ] * (whence != "compiled")
        assert expected in (None, contents_of_delegates(program))
        expected = contents_of_delegates(program)
    program.save(tmp_path / "heads.pte")
    blob = join(program.delegates[0].blob)
    assert (tmp_path / "heads.pte").read_bytes().count(blob) == 1
    loaded = delegraph.load(tmp_path / "heads.pte", runtime="executorch")
    torch.testing.assert_close(loaded(X), Heads().eval()(X))

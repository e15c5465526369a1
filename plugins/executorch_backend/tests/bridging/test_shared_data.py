"""Data that the host and a delegate share. ExecuTorch's own readers judge the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph_executorch.serialize.reader import read_program
from torch import nn

from ..support.judge import assert_equal, emit, stock_runtime

# whatever ExecuTorch warns of at import and at compile time
pytestmark = [pytest.mark.filterwarnings("ignore")]

ROWS = 128
COLUMNS = 32
INPUTS = (torch.tensor([[1, 5, 127]]),)


class Tied(nn.Module):
    """An embedding whose weight a head has, too, and between them a layer and operators
    of several kinds.
    """

    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(ROWS, COLUMNS)
        self.head = nn.Linear(COLUMNS, ROWS, bias=False)
        self.layer = nn.Linear(COLUMNS, COLUMNS)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        y = self.layer(x).clamp(-1.0, 0.3)
        return self.head(
            torch.softmax((x + y) * x.sigmoid(), -1)
            .transpose(1, 2)
            .reshape(1, 3, COLUMNS)
            - y
        )


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Tied(True).eval()


@pytest.fixture(scope="module")
def lowered(model: nn.Module) -> Any:
    stock_runtime()
    return delegraph.lower(model, INPUTS, backends=["xnnpack"])


def test_blobs_are_those_of_executorch(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock_runtime()
    from delegraph_executorch.bridging.xnnpack import TheirBackend

    results: list[Any] = []
    preprocess = TheirBackend.preprocess
    monkeypatch.setattr(
        TheirBackend,
        "preprocess",
        lambda *a: results.append(preprocess(*a)) or results[-1],
    )
    lowered = delegraph.lower(model, INPUTS, backends=["xnnpack"])
    assert [bytes(delegate.processed_bytes) for delegate in lowered.delegates] == [
        r.processed_bytes for r in results
    ]


def test_tied_weights_are_stored_once(
    lowered: Any, model: nn.Module, tmp_path: Path
) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary

    path = tmp_path / "m.pte"
    lowered.save(path)
    content, weight = path.read_bytes(), model.embed.weight  # type: ignore[union-attr]
    stored = weight.detach().numpy().tobytes()  # type: ignore[union-attr]
    assert content.count(stored) == 1
    read = deserialize_pte_binary(content)
    assert stored in [buffer.storage for buffer in read.program.constant_buffer]
    assert stored in [bytes(b) for b in read.named_data.buffers]
    assert_equal(delegraph.load(path, runtime="executorch")(*INPUTS), model(*INPUTS))
    assert_equal(delegraph.load(path)(*INPUTS), model(*INPUTS))
    # the file says of itself what its parts take, and the shared one once
    from delegraph_executorch.inspection.facts import collect_facts

    figures = collect_facts(read_program(content), len(content))
    assert figures.constant_bytes >= len(stored)
    assert 0 < figures.structure_bytes < 3000


def test_similar_but_different_weights_are_both_stored(tmp_path: Path) -> None:
    stock_runtime()
    model = Tied(False).eval()
    with torch.no_grad():
        model.head.weight.copy_(model.embed.weight)
        model.head.weight[-1, -1] += 1
    lowered = delegraph.lower(model, INPUTS, backends=["xnnpack"])
    lowered.save(tmp_path / "m.pte")
    assert_equal(
        delegraph.load(tmp_path / "m.pte", runtime="executorch")(*INPUTS),
        model(*INPUTS),
    )


def test_every_segment_has_the_alignment_that_it_needs(lowered: Any) -> None:
    file = emit(lowered).file
    program = read_program(file.join()).program
    named = {
        data.key: program.segments[data.segment_index] for data in program.named_data
    }
    assert len(named) >= 3
    assert all(segment.offset % 16 == 0 for segment in program.segments)
    assert program.segments[0].offset == 0
    assert int.from_bytes(file.join()[24:32], "little") % 128 == 0

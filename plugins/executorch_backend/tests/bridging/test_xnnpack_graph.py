"""XNNPACK's graphs in fewer bytes, and data that the host and a delegate share. ExecuTorch's own readers judge both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import delegraph
import pytest
import torch
from delegraph_executorch.serialize.reader import read_program
from torch import nn

from ..support.judge import emit, expect_equal, stock_runtime

pytestmark = [pytest.mark.filterwarnings("ignore")]  # whatever ExecuTorch warns of at import and at compile time

ROWS, COLUMNS = 128, 32
INPUTS = (torch.tensor([[1, 5, 127]]),)
DIGEST = "00ff" * 16


class Tied(nn.Module):
    """An embedding whose weight a head has, too, and between them a layer and operators of several kinds."""

    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(ROWS, COLUMNS), nn.Linear(COLUMNS, ROWS, bias=False)
        self.layer = nn.Linear(COLUMNS, COLUMNS)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        y = self.layer(x).clamp(-1.0, 0.3)
        return self.head(torch.softmax((x + y) * x.sigmoid(), -1).transpose(1, 2).reshape(1, 3, COLUMNS) - y)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Tied(True).eval()


@pytest.fixture(scope="module")
def made(model: nn.Module) -> tuple[Any, bytes]:
    """The lowered model, and the blob of its largest delegate as ExecuTorch's compiler writes it."""
    stock_runtime()
    from delegraph_executorch.bridging.xnnpack import TheirBackend

    results: list[Any] = []
    preprocess = TheirBackend.preprocess
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TheirBackend, "preprocess", lambda *a: results.append(preprocess(*a)) or results[-1])
        lowered = delegraph.lower(model, INPUTS, backends=["xnnpack"])
    return lowered, max((result.processed_bytes for result in results), key=len)


def decoded(blob: bytes, folder: Path) -> Any:
    """The graph of a blob as JSON, by ExecuTorch's flatc and schema."""
    from importlib.resources import files

    from executorch.exir._serialize._flatbuffer import _flatc_decompile

    start, size = (int.from_bytes(blob[k : k + 4], "little") for k in (10, 14))
    schema = folder / "schema.fbs"
    schema.write_bytes((files("executorch.backends.xnnpack.serialization") / "schema.fbs").read_bytes())
    (folder / "schema.bin").write_bytes(blob[start : start + size])
    _flatc_decompile(str(folder), str(schema), str(folder / "schema.bin"), ["--raw-binary"])
    return json.loads((folder / "schema.json").read_text())


def test_the_graph_is_the_same_in_fewer_bytes(made: tuple[Any, bytes], tmp_path: Path) -> None:
    from delegraph_executorch.bridging.xnnpack_graph import short_key

    lowered, theirs = made
    ours = max((bytes(delegate.processed_bytes) for delegate in lowered.delegates), key=len)
    before, after = decoded(theirs, tmp_path), decoded(ours, tmp_path)
    assert len(before["xnodes"]) > 6
    names = [constant.pop("named_key", "") for constant in before["constant_data"]]
    assert [constant.pop("named_key", "") for constant in after["constant_data"]] == list(map(short_key, names))
    assert any(len(name) == 64 for name in names)
    assert after == before
    assert len(ours) < 0.9 * len(theirs)


def test_names_of_constants() -> None:
    stock_runtime()
    from delegraph_executorch.bridging.xnnpack_graph import short_key

    assert short_key(DIGEST) == "AP8A_wD_AP8A_wD" and short_key("scale_" + DIGEST) == "scale_AP8A_wD_AP8A_wD"
    assert short_key("head.weight") == "head.weight" and short_key(DIGEST + ".0") == DIGEST + ".0"
    assert short_key(DIGEST[:-1] + "0") == short_key(DIGEST)  # they differ behind the bits that are kept
    assert short_key("1" + DIGEST[1:]) != short_key(DIGEST)


def test_what_is_no_blob_of_their_compiler_stays_as_it_is(made: tuple[Any, bytes]) -> None:
    from delegraph_executorch.bridging.xnnpack_graph import shrink

    theirs = made[1]
    assert shrink(shrink(theirs)) == shrink(theirs) != theirs
    with_constants = theirs[:22] + bytes([16]) + theirs[23:] + bytes(16)
    other_magic = theirs[:4] + b"XH01" + theirs[8:]
    for blob in (b"", theirs[:29], theirs[:-40], other_magic, with_constants, bytes(len(theirs))):
        assert shrink(blob) == blob
    for place in range(32, len(theirs), 7):  # a damaged graph is kept or refused by XNNPACK, and never an exception
        shrink(theirs[:place] + b"\xff" + theirs[place + 1 :])


def test_a_head_that_is_tied_to_the_embedding_is_in_the_file_once(
    made: tuple[Any, bytes], model: nn.Module, tmp_path: Path
) -> None:
    from executorch.exir._serialize._program import deserialize_pte_binary

    path = tmp_path / "m.pte"
    made[0].save(path)
    content, weight = path.read_bytes(), model.embed.weight  # type: ignore[union-attr]
    stored = weight.detach().numpy().tobytes()  # type: ignore[union-attr]
    assert content.count(stored) == 1
    read = deserialize_pte_binary(content)
    assert stored in [buffer.storage for buffer in read.program.constant_buffer]
    assert stored in [bytes(b) for b in read.named_data.buffers]
    expect_equal(delegraph.load(path, runtime="executorch")(*INPUTS), model(*INPUTS))
    expect_equal(delegraph.load(path)(*INPUTS), model(*INPUTS))
    # the file says of itself what its parts take, and the shared one once
    from delegraph_executorch.inspection.facts import collect_facts

    figures = collect_facts(read_program(content), len(content))
    assert figures.constant_bytes >= len(stored) and 0 < figures.structure_bytes < 3000


def test_weights_that_are_alike_and_not_equal_are_both_there(tmp_path: Path) -> None:
    stock_runtime()
    model = Tied(False).eval()
    with torch.no_grad():
        model.head.weight.copy_(model.embed.weight)
        model.head.weight[-1, -1] += 1
    lowered = delegraph.lower(model, INPUTS, backends=["xnnpack"])
    lowered.save(tmp_path / "m.pte")
    expect_equal(delegraph.load(tmp_path / "m.pte", runtime="executorch")(*INPUTS), model(*INPUTS))


def test_every_segment_has_the_alignment_that_it_needs(made: tuple[Any, bytes]) -> None:
    file = emit(made[0]).file
    program = read_program(file.join()).program
    named = {data.key: program.segments[data.segment_index] for data in program.named_data}
    assert len(named) >= 3 and all(segment.offset % 16 == 0 for segment in program.segments)
    assert program.segments[0].offset == 0 and int.from_bytes(file.join()[24:32], "little") % 128 == 0

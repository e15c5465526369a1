"""Large constants as named data: one copy for all methods, and the same file when they are put back."""

import delegraph
import pytest
import torch
from delegraph.errors import FormatError
from delegraph.formats import join
from delegraph_tosa.ir.graph import Graph, Value
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.lowering import Tosa
from delegraph_tosa.lowering.torch_values.types import constant_of
from delegraph_tosa.serialize import TosaFile, joined
from delegraph_tosa.serialize.cut import LEAST, MAGIC, cut
from delegraph_tosa.spec import TosaSpec
from torch import nn

OPTIONS = {"tosa": {"named_constants": True}}
SIZES = [torch.randn(n, 48) for n in (2, 8)]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 3, bias=False)).eval()


@pytest.fixture(scope="module")
def plain(model):
    return delegraph.lower_buckets(model, SIZES, backends=["tosa"]).program


@pytest.fixture(scope="module")
def shared(model):
    return delegraph.lower_buckets(model, SIZES, padding=0, backends=["tosa"], options=OPTIONS)


def named(program):
    """What the delegates named; the program itself names its sizes."""
    data = program.named_data
    contents = {key: join(data.buffers[entry.buffer_index]) for key, entry in data.pte_data.items()}
    return {key: content for key, content in contents.items() if key != "delegraph.buckets"}


def test_all_sizes_have_one_copy_of_a_weight(shared, plain, model):
    (key,) = named(shared.program)
    weight = model[0].weight
    assert len(named(shared.program)[key]) == weight.nbytes >= LEAST > model[2].weight.nbytes
    blobs = [d.processed_bytes for d in shared.program.delegates]
    assert all(
        blob.startswith(MAGIC) and len(blob) < len(d.processed_bytes)
        for blob, d in zip(blobs, plain.delegates, strict=True)
    )
    assert [joined(blob, named(shared.program)) for blob in blobs] == [d.processed_bytes for d in plain.delegates]
    x = torch.randn(5, 48)
    assert shared.verify(x).agrees(1e-5)


def test_a_program_file_has_it_once_and_runs(shared, plain, model, tmp_path):
    shared.save(tmp_path / "shared.pte")
    plain.save(tmp_path / "plain.pte")
    saved = (tmp_path / "plain.pte").stat().st_size - (tmp_path / "shared.pte").stat().st_size
    assert saved > 0.9 * model[0].weight.nbytes
    x = torch.randn(8, 48)
    torch.testing.assert_close(shared.using(delegraph.load(tmp_path / "shared.pte"))(x), model(x))


def test_a_tosa_file_is_whole(model, tmp_path):
    for name, options in (("shared", OPTIONS), ("plain", None)):
        delegraph.lower(model, SIZES[:1], backends=["tosa"], options=options).save(tmp_path / f"{name}.tosa")
    assert (tmp_path / "shared.tosa").read_bytes() == (tmp_path / "plain.tosa").read_bytes()


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        for name in "abc":
            self.register_buffer(name, torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))

    def forward(self, x):
        return torch.relu(torch.relu(x @ self.a) @ self.b) @ self.c


def test_of_equal_constants_two_are_left_out():
    """So that no table of places makes much more of a blob and its named data than there is of them."""
    lowered = delegraph.lower(Several().eval(), torch.randn(3, 64), backends=["tosa"], options=OPTIONS)
    (delegate,) = lowered.delegates
    assert len(named(lowered)) == 1 and 64 * 64 * 4 < len(delegate.processed_bytes) < 2 * 64 * 64 * 4
    assert lowered.verify(torch.randn(3, 64)).agrees(1e-5)


class Tied(nn.Module):
    """Scores with the embedding's weight, after a norm whose gain would be folded into another weight."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(64, 64), nn.RMSNorm(64)
        self.head = nn.Linear(64, 64, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.norm.weight)

    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens))) * 0.5


def test_a_weight_that_is_tied_to_an_embedding_is_there_once():
    tokens = torch.tensor([[3, 7, 63]])
    lowered = delegraph.lower(Tied().eval(), tokens, backends=["tosa"], options=OPTIONS)
    (delegate,) = lowered.delegates
    assert len(named(lowered)) == 1 and len(delegate.processed_bytes) < 64 * 64 * 4
    assert lowered.verify(tokens).agrees(1e-5)


def _ascending(blob, count):
    """A table in which one constant is left out so many times, one after the other."""
    place, size = (int.from_bytes(blob[len(MAGIC) + at : len(MAGIC) + at + 8], "little") for at in (4, 12))
    digest, rest = blob[len(MAGIC) + 20 : len(MAGIC) + 52], blob[len(MAGIC) + 52 :]
    rows = [(place + k * size).to_bytes(8, "little") + size.to_bytes(8, "little") + digest for k in range(count)]
    return b"".join([*rows, rest])


def test_damaged_blobs(shared):
    blob, data = shared.program.delegates[0].processed_bytes, named(shared.program)
    (key,) = data
    for broken, there in (
        (blob, {}),
        (blob, {key: data[key][:-1]}),
        (blob[:9], data),
        (blob[: len(MAGIC)] + (2**32 - 1).to_bytes(4, "little") + blob[len(MAGIC) + 4 :], data),
        (blob[: len(MAGIC) + 4] + (2**60).to_bytes(8, "little") + blob[len(MAGIC) + 12 :], data),
        (blob[:100], data),
        (blob[: len(MAGIC)] + (2).to_bytes(4, "little") + 2 * blob[len(MAGIC) + 4 : len(MAGIC) + 52], data),
        (blob[: len(MAGIC)] + (3).to_bytes(4, "little") + _ascending(blob, 3), data),
    ):
        with pytest.raises(FormatError, match="constants are named data is damaged"):
            joined(broken, there)


def test_a_constant_that_is_written_in_pieces_is_one():
    """As weights of three layers are that became one; and beside it the same numbers in one tensor."""
    spec, parts = TosaSpec.parse("TOSA-1.0+FP+INT"), [torch.randn(32, 64) for _ in range(3)]
    t = Tosa(spec)
    x = Value(Type((96, 64), DType.FP32), name="x")
    together = t.concat([constant_of(f"part{k}", part) for k, part in enumerate(parts)], 0)
    y = t.add(t.add(x, together), constant_of("whole", torch.cat(parts)))
    file = TosaFile(Graph([x], [y], t.operators), spec)
    content, output = cut(file)
    assert len(output.pte_data) == 1
    data = {key: join(output.buffers[entry.buffer_index]) for key, entry in output.pte_data.items()}
    assert list(map(len, data.values())) == [3 * 32 * 64 * 4]
    assert joined(content, data) == file.join()

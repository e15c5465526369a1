"""Large constants become named data, stored once for all methods, and joining them again
gives the same file.
"""

import struct
import sys
import zlib

import delegraph
import pytest
import torch
from delegraph.errors import FormatError
from delegraph.formats import join
from delegraph_tosa.ir.graph import Graph, Value
from delegraph_tosa.ir.types import DType, Type
from delegraph_tosa.lowering import Tosa
from delegraph_tosa.lowering.torch_values.tensor_types import constant_of
from delegraph_tosa.serialize import TosaFile, join_constants
from delegraph_tosa.serialize.named_constants import (
    LARGEST_RATIO,
    LEAST_BYTES,
    beginning,
    split_constants,
)
from delegraph_tosa.spec import TosaSpec
from torch import nn

OPTIONS = {"tosa": {"named_constants": True}}
SIZES = [torch.randn(n, 48) for n in (2, 8)]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 3, bias=False)
    ).eval()


@pytest.fixture(scope="module")
def plain(model):
    return delegraph.lower_buckets(model, SIZES, backends=["tosa"]).program


@pytest.fixture(scope="module")
def shared(model):
    return delegraph.lower_buckets(
        model, SIZES, padding=0, backends=["tosa"], options=OPTIONS
    )


def named_constants_of(program):
    """Return the named data of the delegates, without that of the program."""
    data = program.named_data
    contents = {
        key: join(data.buffers[entry.buffer_index])
        for key, entry in data.pte_data.items()
    }
    return {
        key: content for key, content in contents.items() if key != "delegraph.buckets"
    }


def test_only_large_weights_become_named_data(shared, model):
    large = model[0].weight.nbytes
    small = model[2].weight.nbytes
    assert large >= LEAST_BYTES > small

    (content,) = named_constants_of(shared.program).values()

    assert len(content) == large


def test_joining_named_constants_gives_the_whole_files(shared, plain):
    data = named_constants_of(shared.program)

    for delegate, whole in zip(shared.program.delegates, plain.delegates, strict=True):
        blob = delegate.processed_bytes
        assert blob.startswith(b"dlgrCUT2")
        assert len(blob) < len(whole.processed_bytes)
        assert join_constants(blob, data) == whole.processed_bytes


def test_program_with_named_constants_equals_eager(shared):
    assert shared.verify(torch.randn(5, 48)).agrees(1e-5)


def test_program_file_stores_a_shared_constant_once(shared, plain, model, tmp_path):
    shared.save(tmp_path / "shared.pte")
    plain.save(tmp_path / "plain.pte")

    plain_size = (tmp_path / "plain.pte").stat().st_size
    shared_size = (tmp_path / "shared.pte").stat().st_size
    assert plain_size - shared_size > 0.9 * model[0].weight.nbytes
    x = torch.randn(8, 48)
    torch.testing.assert_close(
        shared.using(delegraph.load(tmp_path / "shared.pte"))(x), model(x)
    )


def test_saved_tosa_files_contain_all_constants(model, tmp_path):
    for name, options in (("shared", OPTIONS), ("plain", None)):
        delegraph.lower(model, SIZES[:1], backends=["tosa"], options=options).save(
            tmp_path / f"{name}.tosa"
        )
    assert (tmp_path / "shared.tosa").read_bytes() == (
        tmp_path / "plain.tosa"
    ).read_bytes()


class EqualWeights(nn.Module):
    """Products with three equal weights."""

    def __init__(self):
        super().__init__()
        for name in "abc":
            self.register_buffer(
                name, torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
            )

    def forward(self, x):
        return torch.relu(torch.relu(x @ self.a) @ self.b) @ self.c


def test_two_of_three_equal_constants_become_named_data():
    """At most two places refer to the same data, so that a small hostile blob cannot
    expand to a large file.
    """
    lowered = delegraph.lower(
        EqualWeights().eval(), torch.randn(3, 64), backends=["tosa"], options=OPTIONS
    )

    (delegate,) = lowered.delegates
    assert len(named_constants_of(lowered)) == 1
    weight_bytes = 64 * 64 * 4
    assert 0.8 * weight_bytes < len(delegate.processed_bytes) < 2 * weight_bytes
    assert lowered.verify(torch.randn(3, 64)).agrees(1e-5)


class Tied(nn.Module):
    """The head has the embedding's weight. It follows a norm, whose gain must not fold
    into the shared weight.
    """

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 64)
        self.norm = nn.RMSNorm(64)
        self.head = nn.Linear(64, 64, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.norm.weight)

    def forward(self, tokens):
        return self.head(self.norm(self.embedding(tokens))) * 0.5


def test_tied_weights_are_stored_once():
    tokens = torch.tensor([[3, 7, 63]])
    lowered = delegraph.lower(Tied().eval(), tokens, backends=["tosa"], options=OPTIONS)
    (delegate,) = lowered.delegates
    assert len(named_constants_of(lowered)) == 1
    assert len(delegate.processed_bytes) < 64 * 64 * 4
    assert lowered.verify(tokens).agrees(1e-5)


MAGIC = 8
"""Bytes before the number of constants."""
ROWS = 16
"""Bytes before the first row of the table."""
ROW = 48
"""Bytes of a row."""


def _ascending(blob, count):
    """Return a blob's rest after the number of constants, with ``count`` rows that refer
    to the same constant at consecutive places.
    """
    place, size, digest = struct.unpack_from("<QQ32s", blob, ROWS)
    made = [struct.pack("<QQ32s", place + k * size, size, digest) for k in range(count)]
    return b"".join([blob[MAGIC + 4 : ROWS], *made, blob[ROWS + ROW :]])


def as_bytes(value, size=4):
    return value.to_bytes(size, "little")


def test_damaged_blobs_are_refused(shared):
    blob = shared.program.delegates[0].processed_bytes
    data = named_constants_of(shared.program)
    (key,) = data
    for broken, there in (
        (blob, {}),
        (blob, {key: data[key][:-1]}),
        (blob[:9], data),
        (blob[:MAGIC] + as_bytes(2**32 - 1) + blob[MAGIC + 4 :], data),
        (blob[:ROWS] + as_bytes(2**60, 8) + blob[ROWS + 8 :], data),
        (blob[:100], data),
        (
            blob[:MAGIC]
            + as_bytes(2)
            + blob[MAGIC + 4 : ROWS]
            + 2 * blob[ROWS : ROWS + ROW],
            data,
        ),
        (blob[:MAGIC] + as_bytes(3) + _ascending(blob, 3), data),
    ):
        with pytest.raises(FormatError, match="with named constants is damaged"):
            join_constants(broken, there)


def test_damaged_packed_graphs_are_refused(shared):
    blob = shared.program.delegates[0].processed_bytes
    data = named_constants_of(shared.program)
    end = ROWS + ROW
    (size,) = struct.unpack_from("<Q", blob, end)
    packed = blob[end + 8 :]
    bomb = zlib.compress(bytes(200 * LARGEST_RATIO * 1000))
    for stated, rest in (
        (size, packed[:-1]),
        (size, packed[:20]),
        (size, b""),
        (size, packed + b"x"),
        (size - 1, packed),
        (size + 1, packed),
        (0, packed),
        (2**63, packed),
        (200 * LARGEST_RATIO * 1000, bomb),
        (size, bytes(len(packed))),
        (size, packed[:30] + b"\xff" * 30 + packed[60:]),
    ):
        with pytest.raises(FormatError, match="with named constants is damaged"):
            join_constants(blob[:end] + as_bytes(stated, 8) + rest, data)


def test_beginning_of_a_blob_gives_the_beginning_of_its_file(shared, plain):
    blob = shared.program.delegates[0].processed_bytes
    whole = plain.delegates[0].processed_bytes
    assert join_constants(blob, named_constants_of(shared.program)) == whole
    for length in (400, 4096):
        begun = beginning(blob[:length])
        assert whole.startswith(begun[:100])
        assert len(begun) > 40


def test_graphs_that_would_compress_too_well_are_stored_uncompressed(
    monkeypatch, model
):
    monkeypatch.setattr(sys.modules[split_constants.__module__], "LARGEST_RATIO", 1)
    lowered = delegraph.lower(model, SIZES[:1], backends=["tosa"], options=OPTIONS)
    (blob,) = (delegate.processed_bytes for delegate in lowered.delegates)
    (count,) = struct.unpack_from("<I", blob, MAGIC)
    rest = zlib.decompress(blob[ROWS + count * ROW + 8 :])
    assert rest[-50:] == blob[-54:-4], "stored as it is"
    assert lowered.verify(*SIZES[:1]).agrees(1e-5)


class Repeating(nn.Module):
    """A product with a weight, plus a constant of ``size`` columns of one number."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
        )
        self.register_buffer("offset", torch.full((64, size), 0.1))

    def forward(self, x):
        return (
            torch.relu(x @ self.weight)[..., None].expand(-1, -1, self.offset.shape[1])
            + self.offset
        )


def test_repeated_elements_are_stored_once():
    x = torch.randn(2, 64)
    lowered = delegraph.lower(
        Repeating(16).eval(), (x,), backends=["tosa"], options=OPTIONS
    )
    (delegate,) = lowered.delegates
    blob = delegate.processed_bytes
    data = named_constants_of(lowered)
    count, repeated = struct.unpack_from("<II", blob, MAGIC)
    begin = ROWS + count * ROW
    place, size, unit = struct.unpack_from("<QQ4s", blob, begin)
    assert count == 1
    assert repeated == 1
    assert size == 64 * 16 * 4
    assert unit == struct.pack("<f", 0.1)
    assert len(blob) < 2000
    assert join_constants(blob, data)[place : place + size] == size // 4 * unit
    assert lowered.verify(x).agrees(1e-5)
    for row in (
        struct.pack("<QQ4s", place, size + 2, unit),
        struct.pack("<QQ4s", place, 2**40, unit),
        struct.pack("<QQ4s", 2**40, size, unit),
        struct.pack("<QQ4s", 0, 2**63, unit),
    ):
        with pytest.raises(FormatError, match="with named constants is damaged"):
            join_constants(blob[:begin] + row + blob[begin + 20 :], data)
    large = (
        blob[: ROWS + 8]
        + as_bytes(2**62, 8)
        + blob[ROWS + 16 : begin]
        + struct.pack("<QQ4s", place, 2**61, unit)
    )
    with pytest.raises(FormatError, match="with named constants is damaged"):
        join_constants(large + blob[begin + 20 :], data)


def test_repetition_is_limited_by_the_size_of_the_rest():
    """Otherwise, a small hostile blob could expand to a large file."""
    x = torch.randn(2, 64)
    lowered = delegraph.lower(
        Repeating(1024).eval(), (x,), backends=["tosa"], options=OPTIONS
    )
    (delegate,) = lowered.delegates
    assert struct.unpack_from("<II", delegate.processed_bytes, MAGIC) == (2, 0)
    assert lowered.verify(x).agrees(1e-5)


def test_joined_weights_are_shared_with_separate_ones():
    """One method of a model may join the layers of queries, keys and values, while another
    method does not.
    """
    spec = TosaSpec.parse("TOSA-1.0+FP+INT")
    parts = [torch.randn(32, 64) for _ in range(3)]
    builder = Tosa(spec)
    x = Value(Type((96, 64), DType.FP32), name="x")
    together = builder.concat(
        [constant_of(f"part{k}", part) for k, part in enumerate(parts)], 0
    )
    file = TosaFile(Graph([x], [builder.add(x, together)], builder.operators), spec)
    content, output = split_constants(file)
    data = {
        key: join(output.buffers[entry.buffer_index])
        for key, entry in output.pte_data.items()
    }
    assert list(data.values()) == [part.numpy().tobytes() for part in parts]
    assert join_constants(content, data) == file.join()
    builder = Tosa(spec)
    x = Value(Type((32, 64), DType.FP32), name="x")
    apart = TosaFile(
        Graph([x], [builder.add(x, constant_of("part", parts[1]))], builder.operators),
        spec,
    )
    assert split_constants(apart)[1].pte_data.keys() < data.keys()

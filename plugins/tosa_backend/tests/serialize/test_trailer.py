"""Scales of inputs and outputs are stored behind the flatbuffer, where other readers
ignore them.
"""

from __future__ import annotations

import json
import struct
import tracemalloc

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.errors import FormatError
from delegraph.formats import QuantizationParameters
from delegraph_tosa.borders import integer_borders
from delegraph_tosa.format import TosaFormat
from delegraph_tosa.serialize.trailer import (
    MAGIC,
    RANGES,
    SCHEMA,
    producer_of,
    producer_record,
)

from ..support.quantized_cases import dequantize, quantize

INT8 = torch.int8
THIRD = 1 / 30


class Mixed(torch.nn.Module):
    """Takes two quantized inputs and a mask; returns comparisons besides what is
    quantized.
    """

    def forward(self, x, mask, y):
        x, y = (
            dequantize(quantize(v, *p, INT8), *p)
            for v, p in ((x, (0.05, 3)), (y, (THIRD, 0)))
        )
        total = dequantize(quantize(x + y, 0.1, -7, INT8), 0.1, -7)
        return total, mask.logical_not()


GIVEN = torch.randn(2, 16), torch.ones(2, dtype=torch.bool), torch.randn(2, 16)


def lower_mixed(**options):
    chosen = {"tosa": {"spec": "TOSA-1.0+INT", **options}}
    return delegraph.lower(
        Mixed().eval(), GIVEN, options=chosen, transforms=[integer_borders]
    )


@pytest.fixture(scope="module")
def program():
    return lower_mixed()


@pytest.fixture
def path(program, tmp_path):
    program.save(tmp_path / "m.tosa")
    return tmp_path / "m.tosa"


def test_loaded_files_have_their_scales(program, path):
    loaded = delegraph.load(path)
    inputs, outputs = loaded.quantization
    scales = (
        QuantizationParameters("int8", 0.05, 3),
        QuantizationParameters("int8", THIRD, 0),
    )
    expected = {"x": scales[0], "mask": None, "y": scales[1]}
    assert inputs == expected
    assert list(inputs) == list(expected)
    assert list(outputs.values()) == [QuantizationParameters("int8", 0.1, -7), None]
    facts = program.report.delegates[0].facts
    assert facts["input y"] == str(inputs["y"])
    assert facts["output 0"] == str(next(iter(outputs.values())))
    # 20 steps of 0.05 and 30 of a thirtieth
    x, y = (torch.full((2, 16), v, dtype=INT8) for v in (23, 30))
    assert torch.equal(loaded(x, GIVEN[1], y)[0], torch.full((2, 16), 13, dtype=INT8))


def test_inputs_in_another_order_keep_their_scales(tmp_path):
    lower_mixed(input_order="2,1,0").save(tmp_path / "m.tosa")
    inputs = delegraph.load(tmp_path / "m.tosa").quantization.inputs
    assert [p and p.zero_point for p in inputs.values()] == [0, None, 3]


def test_quantized_bytes_keep_their_unsigned_type(tmp_path):
    """The file has them as int8, its operators know that they are not."""
    limits = (0.05, 128, 0, 255, torch.uint8)
    there, back = (
        getattr(torch.ops.quantized_decomposed, f"{name}_per_tensor")
        for name in ("quantize", "dequantize")
    )

    class Bytes(torch.nn.Module):
        def forward(self, x):
            return there(back(there(x, *limits), *limits).relu(), *limits)

    options = {"tosa": {"spec": "TOSA-1.0+INT"}}
    delegraph.lower(
        Bytes().eval(), GIVEN[0], options=options, transforms=[integer_borders]
    ).save(tmp_path / "m.tosa")
    loaded = delegraph.load(tmp_path / "m.tosa")
    assert set(loaded.quantization.inputs.values()) == {
        QuantizationParameters("uint8", 0.05, 128)
    }
    assert loaded(torch.tensor([[100, 200] * 8] * 2, dtype=torch.uint8))[
        0
    ].unique().tolist() == [128, 200]


def test_inspecting_shows_them(path, capsys):
    assert main(["inspect", str(path)]) == 0
    assert (
        "// quantized: %x: int8, scale 0.05, zero point 3\n" in capsys.readouterr().out
    )
    assert main(["inspect", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["quantization"]
    assert shown["inputs"]["y"] == {"dtype": "int8", "scale": THIRD, "zero_point": 0}
    assert shown["inputs"]["mask"] is None


def test_the_trailer_follows_an_unchanged_flatbuffer(path, tmp_path):
    lower_mixed(metadata=False).save(tmp_path / "bare.tosa")
    bare = (tmp_path / "bare.tosa").read_bytes()
    whole = path.read_bytes()
    assert whole.startswith(bare)
    assert whole.endswith(producer_record(lower_mixed().delegates[0].producer))
    assert MAGIC not in bare
    loaded = delegraph.load(tmp_path / "bare.tosa")
    assert set(loaded.quantization.inputs.values()) == {None}
    lower_mixed().save(tmp_path / "again.tosa")
    assert (tmp_path / "again.tosa").read_bytes() == whole


def test_official_tools_ignore_the_trailer(path):
    pytest.importorskip("tosa_reference_model")
    assert [(v.judge, v.accepted) for v in TosaFormat.verify(path)] == [
        ("tosa-opt", True),
        ("reference model", True),
    ]


def test_trailers_of_float_files_name_the_producer(
    tmp_path,
):
    lowered = delegraph.lower(
        torch.nn.ReLU().eval(), (torch.ones(3),), backends=["tosa"]
    )
    lowered.save(tmp_path / "m.tosa")
    blob = lowered.delegates[0].processed_bytes
    made = lowered.delegates[0].producer
    assert made.startswith("delegraph-tosa ")
    assert MAGIC not in blob
    assert (tmp_path / "m.tosa").read_bytes() == blob + producer_record(made)
    assert delegraph.load(tmp_path / "m.tosa").summary.producer == made
    loaded = delegraph.load(tmp_path / "m.tosa")
    assert list(loaded.quantization.inputs.values()) == [None]


def replace_trailer(path, text, length=None):
    """Put another text behind the flatbuffer, in the last record of all."""
    data = path.read_bytes()
    data = data.removesuffix(producer_record(producer_of(data)))
    (old,) = struct.unpack_from("<I", data, len(data) - 12)
    path.write_bytes(
        data[: -12 - old]
        + text
        + struct.pack("<I", len(text) if length is None else length)
        + MAGIC
    )


def changed_description(**changes):
    row = {"dtype": "int8", "scale": 0.5, "zero_point": 1}
    held = {
        "schema": SCHEMA,
        "inputs": [row | changes, None, row],
        "outputs": [row, None],
    }
    return json.dumps(held).encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"9" * 100_000, "it is not JSON"),
        (b"[1]", "it has no schema"),
        (b'{"schema": 1}', "it has no schema"),
        (
            b'{"schema": "%s", "inputs": [null]}' % SCHEMA.encode(),
            "it does not describe the program's 3 inputs",
        ),
        (
            changed_description(dtype="int16"),
            "x has type int8, which cannot be quantized as 'int16'",
        ),
        (changed_description(scale=0.0), "the scale of x must be positive and finite"),
        (
            changed_description(scale=float("nan")),
            "the scale of x must be positive and finite",
        ),
        (changed_description(scale="1"), "the scale of x must be positive and finite"),
        (changed_description(zero_point=128), "the zero point of x does not fit int8"),
        (changed_description(zero_point=True), "the zero point of x does not fit int8"),
        (
            changed_description(dtype="uint8", zero_point=-1),
            "the zero point of x does not fit uint8",
        ),
        (
            changed_description(dtype=["int8"]),
            "x has type int8, which cannot be quantized as",
        ),
    ],
)
def test_damaged_trailers_fail_only_where_read(path, text, message, capsys):
    replace_trailer(path, text)
    loaded = delegraph.load(path)
    integers = torch.zeros(2, 16, dtype=INT8)
    assert loaded(integers, GIVEN[1], integers)[0].dtype is INT8
    with pytest.raises(
        FormatError,
        match="damaged TOSA file: the record after the flatbuffer: " + message,
    ):
        _ = loaded.quantization
    assert main(["inspect", str(path)]) == 1
    assert capsys.readouterr().err.count("error [format-invalid]") == 1


@pytest.mark.parametrize(
    "rows",
    [
        "[null]",
        "[[1], null, null]",
        "[[1, 2.0], null, null]",
        "[[2, 1], null, null]",
        "{}",
    ],
)
def test_wrong_ranges_fail_when_the_file_runs(path, rows):
    replace_trailer(
        path, b'{"schema": "%s", "inputs": %s}' % (RANGES.encode(), rows.encode())
    )
    integers = torch.zeros(2, 16, dtype=INT8)
    with pytest.raises(FormatError, match="damaged TOSA file"):
        delegraph.load(path)(integers, GIVEN[1], integers)
    with pytest.raises(FormatError, match="damaged TOSA file"):
        TosaFormat.sample(path, 0)


def test_wrong_trailer_lengths_are_refused(path):
    replace_trailer(path, b"{}", 0xFFFFFFFF)
    tracemalloc.start()
    with pytest.raises(FormatError, match="its length is 4294967295 bytes"):
        TosaFormat.quantization(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()


def test_trailers_of_later_versions_are_ignored(path):
    replace_trailer(path, b'{"schema": "delegraph-tosa.metadata/2", "inputs": 5}')
    assert set(TosaFormat.quantization(path).inputs.values()) == {None}

"""Block-scaled tensors are typed, printed, written, read and validated."""

from __future__ import annotations

import numpy as np
import pytest
from delegraph.errors import FormatError, OptionError, Unsupported
from delegraph_tosa.evaluate import evaluate, numbers_of
from delegraph_tosa.format import TosaFormat
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.block_scaled_arrays import paired, parted
from delegraph_tosa.ir.graph import (
    Deferred,
    Folded,
    Graph,
    Illegal,
    Literal,
    Scaled,
    Value,
    literal,
)
from delegraph_tosa.ir.types import (
    BLOCK_SCALED,
    FLOATS,
    BlockSize,
    DType,
    ResizeMode,
    Type,
    stored_types,
    why_not_blocks,
)
from delegraph_tosa.runtime import LoadedGraph
from delegraph_tosa.serialize import TosaFile, read, writer
from delegraph_tosa.serialize.schema import MXFP_READER
from delegraph_tosa.spec import TosaSpec, required, required_version
from delegraph_tosa.text import parse, render
from delegraph_tosa.validate import violations

from ..support import reference_tools
from ..support.samples import make_operator, samples

VERSION = (1, 1)
FP32 = DType.FP32
FP4, FP6, FP8, INT8 = (
    DType[f"BS32_FP8UE8M0_{name}"]
    for name in ("FP4E2M1", "FP6E3M2", "FP8E4M3", "MXINT8")
)
SPEC = TosaSpec.parse("TOSA-1.1+FP+mx-common+" + "+".join(
    f"mx-{name}" for name in ("fp4e2m1", "fp6e2m3", "fp6e3m2", "fp8e4m3", "fp8e5m2", "int8")
))  # fmt: skip


def constant_of_all_patterns(dtype: DType, *shape: int, seed: int = 0) -> Value:
    """A constant of every bit pattern there is."""
    type = Type(shape, dtype)
    random = np.random.default_rng(seed)
    values, scales = stored_types(type)
    high = {DType.FP4E2M1: 16, DType.FP6E2M3: 64, DType.FP6E3M2: 64}.get(
        values.dtype, 256
    )
    bits = random.integers(0, high, values.shape).astype(np.uint8)
    held = bits.view(np.int8) if values.dtype is DType.MXINT8 else bits
    return Value(
        type, Scaled(held, random.integers(0, 256, scales.shape).astype(np.uint8), type)
    )


def graph_with_cast(constant: Value) -> Graph:
    cast = make_operator(ops.CAST, constant, dtype=FP32)
    return Graph([], cast.outputs, [cast])


def write(graph: Graph) -> bytes:
    return TosaFile(graph, SPEC).join()


def shape_constant(*entries: int) -> Value:
    return literal(entries, DType.SHAPE, np.int64)


# ---- types and constants


def test_types_are_those_of_the_table():
    names = {d.name.lower() for d in BLOCK_SCALED}
    labels = {
        label
        for s in samples(version=VERSION)
        for label in s.label.split("(")[1].strip(")").split(", ")
    }
    assert names == {label for label in labels if label.startswith("bs32")}
    assert all(
        str(d) == f"bs{b.size}_{b.scale}_{b.value}" for d, b in BLOCK_SCALED.items()
    )
    assert stored_types(Type((2, 3, 64), FP4)) == (
        Type((2, 3, 64), DType.FP4E2M1), Type((2, 3, 2), DType.FP8UE8M0)
    )  # fmt: skip
    assert why_not_blocks(Type((2, 64), FP4)) is None
    assert why_not_blocks(Type((2, 5), FP32)) is None
    assert why_not_blocks(Type((), FP4))
    assert "multiple of 32" in str(why_not_blocks(Type((64, 48), FP4)))


@pytest.mark.parametrize("dtype", BLOCK_SCALED)
def test_values_and_scales_survive_pairing(dtype):
    constant = constant_of_all_patterns(dtype, 2, 3, 64).constant
    pairs = paired(constant.values, constant.scales, constant.type)
    values, scales = parted(pairs, constant.type)
    np.testing.assert_array_equal(values, constant.values)
    np.testing.assert_array_equal(scales, constant.scales)
    assert pairs.shape == (2, 3, 64)
    assert pairs[1, 2, 40].tolist() == (values[1, 2, 40], scales[1, 2, 1])


# ---- text


GOLDEN = """\
graph @main(%x: [1x32]bs32_fp8ue8m0_fp4e2m1) {
  %w: [1x32]bs32_fp8ue8m0_fp4e2m1 = const splat 2 scales [127]
  %0: [2x32]bs32_fp8ue8m0_fp4e2m1 = CONCAT(%x, %w) {axis=0}
  %y: [2x32]fp32 = CAST(%0)
  return %y
}
"""


def test_golden_text_survives_parsing_and_files():
    graph = parse(GOLDEN)
    assert render(graph) == GOLDEN
    assert render(read(write(graph))) == GOLDEN.replace("%0", "%concat_0")
    pairs = np.full((1, 32), 0, [("value", "u1"), ("scale", "u1")])
    (out,) = evaluate(graph, [pairs])
    assert out.tolist() == [[0.0] * 32, [1.0] * 32]


@pytest.mark.parametrize("dtype", BLOCK_SCALED)
def test_text_is_exact(dtype):
    graph = graph_with_cast(constant_of_all_patterns(dtype, 2, 64))
    back = parse(render(graph))
    assert render(back) == render(graph)
    held = back.constants()[0].constant
    original = graph.constants()[0].constant
    assert held.values.tobytes() == original.values.tobytes()
    assert held.scales.tobytes() == original.scales.tobytes()
    assert "..." in render(graph, elide=16)
    assert "scales" not in render(graph, elide=16)


NO_TEXT = {
    "whole blocks": GOLDEN.replace("[1x32]bs32", "[1x33]bs32"),
    "expected scales": GOLDEN.replace(" scales [127]", ""),
    "an element is no fp4e2m1": GOLDEN.replace("splat 2", "splat 16"),
    "is no element type": GOLDEN.replace(
        "bs32_fp8ue8m0_fp4e2m1", "bs16_fp8ue8m0_fp4e2m1"
    ),
    "1 elements, 2 are given": GOLDEN.replace("[127]", "[127, 127]"),
}


@pytest.mark.parametrize("words", NO_TEXT)
def test_invalid_text_is_refused(words):
    with pytest.raises(FormatError, match=words):
        parse(NO_TEXT[words])


# ---- files


def tensor_of(dumped: dict, name: str) -> dict:
    return next(
        t for t in dumped["regions"][0]["blocks"][0]["tensors"] if t["name"] == name
    )


@pytest.mark.parametrize("dtype", BLOCK_SCALED)
def test_files_equal_those_of_the_official_serializer(dtype):
    reference_tools.tools()
    ts = pytest.importorskip("tosa_serializer")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    constant = constant_of_all_patterns(dtype, 2, 64)
    constant.name = "w"
    blocks = BLOCK_SCALED[dtype]
    names = {
        DType.FP8E4M3: "float8_e4m3fn", DType.FP8E5M2: "float8_e5m2", DType.FP6E2M3: "float6_e2m3fn",
        DType.FP6E3M2: "float6_e3m2fn", DType.FP4E2M1: "float4_e2m1fn",
    }  # fmt: skip
    values = constant.constant.values.view(np.uint8)
    if blocks.value in names:
        values = values.view(getattr(ml_dtypes, names[blocks.value]))
    serializer = ts.TosaSerializer("")
    attribute = ts.TosaSerializerAttribute()
    scales = constant.constant.scales.view(ml_dtypes.float8_e8m0fnu)
    serializer.addConst(
        [2, 64], getattr(ts.ScaledDType, dtype.name), values, scales, "w"
    )
    attribute.CastAttribute()
    serializer.addOperator(
        ts.Op.CAST,
        ["w"],
        [serializer.addOutput([2, 64], ts.DType.FP32).name],
        attribute,
    )
    official = bytes(serializer.serialize())
    ours = reference_tools.dump_by_flatc(write(graph_with_cast(constant)))
    theirs = reference_tools.dump_by_flatc(official)
    theirs_tensor = {k: v for k, v in tensor_of(theirs, "w").items() if v != ""}
    assert tensor_of(ours, "w") == theirs_tensor
    version = ours["compatibility"]["min_reader_version"]
    assert ours["compatibility"]["features"] == theirs["compatibility"]["features"] == 2
    assert tuple(version.values()) == MXFP_READER
    graph = read(official)
    (held,) = graph.constants()
    assert held.type == constant.type
    assert (
        held.constant.materialize().tobytes()
        == constant.constant.materialize().tobytes()
    )
    (result,) = reference_tools.run_reference_model_on_all([(write(graph), [])])[0]
    np.testing.assert_array_equal(result, evaluate(graph, [])[0])


def test_only_files_with_block_scaled_tensors_have_the_feature():
    plain = make_operator(ops.CAST, Value(Type((2, 32), DType.FP16)), dtype=FP32)
    assert "compatibility" not in reference_tools.dump_by_flatc(
        write(Graph(plain.inputs, plain.outputs, [plain]))
    )
    x = Value(Type((2, 32), FP8))
    body = make_operator(ops.IDENTITY, x)
    inner = Graph([x], body.outputs, [body])
    choice = make_operator(
        ops.COND_IF,
        Value(Type((1,), DType.BOOL)),
        Value(x.type),
        then_graph=inner,
        else_graph=inner,
    )
    assert (
        reference_tools.dump_by_flatc(
            write(Graph(choice.inputs, choice.outputs, [choice]))
        )["compatibility"]["features"]
        == 2
    )


@pytest.mark.parametrize("dtype", BLOCK_SCALED)
def test_constants_are_views_of_the_file(dtype):
    file = bytearray(write(graph_with_cast(constant_of_all_patterns(dtype, 2, 64))))
    held = read(file).constants()[0].constant
    whole = np.frombuffer(file, np.uint8)
    assert isinstance(held, Scaled)
    assert np.shares_memory(whole, held.scales)
    assert np.shares_memory(whole, held.values) == (
        dtype not in (FP4, FP6, DType.BS32_FP8UE8M0_FP6E2M3)
    )
    assert all(bytes(file).find(part.tobytes()) % 16 == 0 for part in (held.scales,))


def test_all_kinds_of_constants_are_written_equally():
    constant = constant_of_all_patterns(FP8, 2, 64)
    pairs = constant.constant.materialize()
    kinds = [
        constant.constant,
        Literal(pairs),
        Deferred(lambda: pairs),
        Folded(ops.IDENTITY((constant,))),
    ]
    files = {write(graph_with_cast(Value(constant.type, kind))) for kind in kinds}
    assert len(files) == 1
    assert (
        len({render(graph_with_cast(Value(constant.type, kind))) for kind in kinds})
        == 1
    )


def test_files_beyond_32_bit_offsets(monkeypatch):
    monkeypatch.setattr(writer, "OFFSET_LIMIT", 0)
    graph = graph_with_cast(constant_of_all_patterns(FP6, 2, 64))
    file = write(graph)
    held = tensor_of(reference_tools.dump_by_flatc(file), "const_0")
    assert {k: held[k] for k in ("size", "scale_size")} == {"size": 96, "scale_size": 4}
    assert "data" not in held
    assert "scale_data" not in held
    assert held["scale_offset"] % 16 == 0
    assert render(read(file)) == render(read(write(read(file))))
    assert read(file).constants()[0].constant.materialize().tobytes() == (
        graph.constants()[0].constant.materialize().tobytes()
    )


NO_FILE = {
    "block shape 0, scale type 16": lambda t: t.pop("block_shape"),
    "block shape 32, scale type 0": lambda t: t.pop("scale_type"),
    "block shape 32, scale type 11": lambda t: t.update(scale_type="FP8E4M3"),
    "scale type 16, values fp16": lambda t: t.update(type="FP16"),
    "block shape 16": lambda t: t.update(block_shape=16),
    "2x2. ?fp8ue8m0, which takes 4 bytes, but 3": lambda t: t["scale_data"].pop(),
    "takes 4 bytes, but 0": lambda t: t.pop("scale_data"),
    "takes 128 bytes, but 0": lambda t: t.pop("data"),
    "not made of whole blocks": lambda t: t.update(shape=[4, 16]),
    "beyond the end of the file": lambda t: (
        t.pop("scale_data"),
        t.update(scale_offset=1 << 40, scale_size=4),
    ),
    "2101259 is not a DType": lambda t: [
        t.pop("scale_type"),
        t.pop("block_shape"),
        t.update(type=int(FP8)),
    ],
}


@pytest.mark.parametrize("words", NO_FILE)
def test_invalid_files_are_refused(words):
    dumped = reference_tools.dump_by_flatc(
        write(graph_with_cast(constant_of_all_patterns(FP8, 2, 64)))
    )
    NO_FILE[words](tensor_of(dumped, "const_0"))
    with pytest.raises(FormatError, match=words):
        read(reference_tools.assemble_by_flatc(dumped))


@pytest.mark.parametrize("dtype", BLOCK_SCALED)
def test_changed_files_are_graphs_or_refused(dtype):
    """Up to three bytes changed, 200 times: a graph or a FormatError, and what is read
    can be written again.
    """
    file = write(graph_with_cast(constant_of_all_patterns(dtype, 2, 64)))
    random = np.random.default_rng(1)
    found = 0
    for _ in range(200):
        changed = bytearray(file)
        for place in random.integers(0, len(file), random.integers(1, 4)):
            changed[place] = random.integers(0, 256)
        try:
            graph = read(changed)
        except FormatError:
            continue
        found += 1
        assert read(write(graph)).constants()[0].type == graph.constants()[0].type
    assert 20 < found < 190


def test_unknown_features_are_refused():
    dumped = reference_tools.dump_by_flatc(
        write(graph_with_cast(constant_of_all_patterns(FP8, 2, 64)))
    )
    dumped["compatibility"]["features"] |= 1 << 5 | 1 << 63
    with pytest.raises(FormatError, match=r"features \[5, 63\], which delegraph-tosa"):
        read(reference_tools.assemble_by_flatc(dumped))
    dumped["compatibility"]["features"] = 0  # tensors say enough
    dumped["compatibility"]["min_reader_version"]["_major"] = 3000  # not ours
    read(reference_tools.assemble_by_flatc(dumped))


# ---- legality


def test_block_scaled_graphs_need_their_extensions():
    graph = graph_with_cast(constant_of_all_patterns(FP4, 2, 64))
    needed = required(graph, VERSION)
    assert str(needed) == "FP+mx-common+mx-fp4e2m1"
    assert required_version(graph) == VERSION
    assert violations(graph, TosaSpec(VERSION, *needed)) == []
    without = violations(
        graph, TosaSpec(VERSION, frozenset({"FP"}), frozenset({"mx-common"}))
    )
    assert len(without) == 2
    assert all("EXT-MX-FP4E2M1" in str(v) for v in without)
    assert "not in TOSA 1.0" in str(violations(graph, TosaSpec())[0])
    plain = make_operator(ops.DIM, Value(Type((2,), DType.FP6E2M3)), axis=0)
    assert "mx-common" in required(Graph(plain.inputs, [], [plain]), VERSION).extensions
    with pytest.raises(OptionError, match="needs extension mx-common"):
        TosaSpec.parse("TOSA-1.1+FP+mx-fp4e2m1")


def test_tosa_opt_accepts_the_operators_that_it_knows():
    """Its table of 2026.8 lacks IDENTITY, REVERSE, SLICE, TILE, TRANSPOSE, DIM, CONV3D
    and TRANSPOSE_CONV2D.
    """
    known = {"CAST", "CONCAT", "CONV2D", "MATMUL_T", "RESHAPE", "RESIZE", "ROW_GATHER"}
    found: dict[tuple[str, DType], Graph] = {}
    for sample in samples(version=VERSION):
        name = sample.label.partition("(")[0]
        values = (
            *sample.graph.inputs,
            *sample.graph.outputs,
            *sample.graph.constants(),
        )
        dtypes = {v.dtype for v in values} & BLOCK_SCALED.keys()
        if name in known and dtypes and not any(op.attribute_values().get("acc_type") is DType.BF16
                                                for op in sample.graph.operators):  # fmt: skip
            found.setdefault((name, min(dtypes)), sample.graph)
    assert {name for name, _ in found} == known
    everything = TosaSpec(
        VERSION,
        frozenset({"FP"}),
        SPEC.extensions | {"bf16", "fp8e4m3", "fp8e5m2", "int64"},
    )
    for (name, dtype), graph in found.items():
        if dtype in (FP4, INT8) or name == "CAST":
            reference_tools.check_strictly_for_spec(
                TosaFile(graph, everything).join(), everything
            )


def value(dtype: DType, *sizes: int) -> Value:
    return Value(Type(sizes, dtype))


ZERO = literal([0.0], FP32, np.float32)
ILLEGAL = {
    "48.bs32.* is not made of whole blocks": lambda: make_operator(
        ops.CAST, value(FP32, 2, 48), dtype=FP4
    ),
    r"\[\]bs32.* is not made of whole blocks": lambda: make_operator(
        ops.CAST, value(FP32), dtype=FP4
    ),
    "8x16.bs32.* is not made of whole blocks": lambda: make_operator(
        ops.RESHAPE, value(FP4, 2, 64), shape_constant(8, 16)
    ),
    "48.bs32.* is not made": lambda: make_operator(
        ops.SLICE, value(FP4, 2, 96), shape_constant(0, 0), shape_constant(2, 48)
    ),
    r"start \[0, 16\] is inside a block": lambda: make_operator(
        ops.SLICE, value(FP4, 2, 96), shape_constant(0, 16), shape_constant(2, 64)
    ),
    "must leave the last axis": lambda: make_operator(
        ops.TRANSPOSE, value(FP4, 32, 64), perms=(1, 0)
    ),
    "NEAREST element only": lambda: make_operator(
        ops.RESIZE,
        value(FP4, 1, 4, 4, 32),
        shape_constant(2, 1, 2, 1),
        shape_constant(0, 0),
        shape_constant(1, 1),
        mode=ResizeMode.BILINEAR,
    ),
    "A_zp must be 0 for bs32": lambda: make_operator(
        ops.MATMUL_T,
        value(FP4, 1, 2, 32),
        value(FP4, 1, 3, 32),
        literal([1.0], FP32, np.float32),
        ZERO,
        dtype=FP32,
    ),
    "more than one element": lambda: make_operator(
        ops.CAST_TO_BLOCK_SCALED,
        value(FP32, 2, 32),
        block_size=BlockSize.BLOCK_SIZE_1,
        dtype=DType.FP4E2M1,
    ),
}


@pytest.mark.parametrize("words", ILLEGAL)
def test_illegal_blocks_are_refused(words):
    with pytest.raises(Illegal, match=words):
        ILLEGAL[words]()


def test_values_that_are_not_made_of_whole_blocks_are_violations():
    x = Value(Type((2, 48), FP4))
    cast = ops.CAST((x,), dtype=FP32)
    cast.outputs = (Value(Type((2, 48), FP32), producer=cast),)
    assert any(
        "not made of whole blocks" in str(v)
        for v in violations(Graph([x], cast.outputs, [cast]), SPEC)
    )


# ---- inspection and the boundary to torch


def test_inspection_counts_bytes_of_block_scaled_tensors(tmp_path):
    x = Value(Type((4, 64), INT8), name="x")
    joined = make_operator(ops.CONCAT, x, constant_of_all_patterns(INT8, 2, 64), axis=0)
    cast = make_operator(ops.CAST, *joined.outputs, dtype=FP32)
    path = tmp_path / "m.tosa"
    path.write_bytes(
        write(Graph([x], [*joined.outputs, *cast.outputs], [joined, cast]))
    )
    found = TosaFormat.inspect(path)
    assert found.constant_bytes_by_type == {"bs32_fp8ue8m0_mxint8": 2 * 64 + 4}
    assert found.computed_bytes_by_type["bs32_fp8ue8m0_mxint8"] == 10 * 64 + 20
    assert "bs32_fp8ue8m0_mxint8" in TosaFormat.page(path)
    (given,) = TosaFormat.sample(path, 0)
    (_, blocks), (_, numbers) = TosaFormat.run(path, [given])
    np.testing.assert_array_equal(blocks, numbers)
    np.testing.assert_array_equal(numbers[:4], numbers_of(given, INT8))
    verdicts = {v.judge: v for v in TosaFormat.verify(path)}
    assert verdicts["tosa-opt"].accepted is not False
    assert verdicts["reference model"].accepted is None


def test_torch_has_no_block_scaled_tensors():
    graph = graph_with_cast(constant_of_all_patterns(FP4, 2, 64))
    assert LoadedGraph(graph)()[0].shape == (2, 64)
    x = Value(Type((2, 64), FP4))
    cast = make_operator(ops.CAST, x, dtype=FP32)
    with pytest.raises(Unsupported, match="torch has no block-scaled tensors"):
        LoadedGraph(Graph([x], cast.outputs, [cast]))


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_casts_both_ways_are_idempotent(dtype):
    """What blocks can hold comes back as it was, from every float."""
    first = make_operator(
        ops.CAST, literal(np.linspace(-3, 3, 64), FP32, np.float32), dtype=FP8
    )
    back = make_operator(ops.CAST, *first.outputs, dtype=dtype)
    again = make_operator(ops.CAST, *back.outputs, dtype=FP8)
    once, twice = evaluate(
        Graph([], [first.outputs[0], again.outputs[0]], [first, back, again]), []
    )
    np.testing.assert_array_equal(numbers_of(once, FP8), numbers_of(twice, FP8))

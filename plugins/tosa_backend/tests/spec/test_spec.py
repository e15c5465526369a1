"""Targets are parsed, and accept and refuse the same operators as tosa-opt."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from delegraph.errors import OptionError
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Value, literal
from delegraph_tosa.ir.types import DType, RoundingMode, Type
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import DEFAULT, TosaSpec, required

from ..support import reference_tools
from ..support.samples import RECIPES, make_operator, merged, samples

FP = TosaSpec.parse("TOSA-1.0+FP")
INT = TosaSpec.parse("TOSA-1.0+INT")
SAMPLES = {sample.label: sample for sample in samples()}
NOT_JUDGED = ("CUSTOM",)
"""An implementation's own operator, which the validator takes from nobody."""


def spec_of(names: frozenset[str]) -> TosaSpec:
    """The smallest target with these profiles and extensions."""
    extensions = frozenset(n[4:].lower() for n in names if n.startswith("EXT-"))
    profiles = {n[4:] for n in names if n.startswith("PRO-")}
    for extension in extensions:
        if not profiles:
            profiles |= {"INT"} if extension.startswith("int") else {"FP"}
    return TosaSpec(profiles=frozenset(profiles), extensions=extensions)


def value(*shape: int, dtype: DType = DType.FP32) -> Value:
    return Value(Type(shape, dtype))


# -- parsing ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("TOSA-1.0+FP", "TOSA-1.0+FP"),
        ("TOSA-1.0+INT+FP", "TOSA-1.0+FP+INT"),
        ("tosa-1.0.1+fp+8K", "TOSA-1.0+FP"),
        ("TOSA-1.0+FP+INT+int16+bf16", "TOSA-1.0+FP+INT+bf16+int16"),
        ("TOSA-1.0+INT+cf+var", "TOSA-1.0+INT+controlflow+variable"),
        ("TOSA-1.0+FP+nolevel", "TOSA-1.0+FP+nolevel"),
        ("tosa-1.1.draft+INT64+fp+BF16", "TOSA-1.1+FP+bf16+int64"),
        (
            "TOSA-1.1+FP+mx_fp4e2m1+mx_common+shape",
            "TOSA-1.1+FP+mx-common+mx-fp4e2m1+shape",
        ),
    ],
)
def test_parses_to_a_canonical_text(text, canonical):
    spec = TosaSpec.parse(text)
    assert str(spec) == canonical
    assert TosaSpec.parse(str(spec)) == spec
    assert hash(TosaSpec.parse(str(spec))) == hash(spec)


def test_the_default_is_both_profiles_at_level_8k():
    assert str(DEFAULT) == "TOSA-1.0+FP+INT"
    assert DEFAULT.version == (1, 0)
    assert DEFAULT.level == "8K"
    assert DEFAULT.profiles == {"FP", "INT"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "TOSA-0.70+MI",
            "files of version 0.70 cannot be written; supported are TOSA 1.0, 0.80 and",
        ),
        ("TOSA-1.2+FP", "files of version 1.2 cannot be written"),
        ("TOSA-1.0+FP+int64", "extension int64 is of the 1.1 draft: write TOSA-1.1"),
        ("TOSA-1.1+FP+mx-int8", "extension mx-int8 needs extension mx-common"),
        ("TOSA-1.1+INT+mx-common", "extension mx-common needs profile FP"),
        ("TOSA-1.0", "names no profile"),
        ("TOSA-1.0+bf16", "names no profile"),
        ("TOSA-1.0+FP+FP", "fp is there twice"),
        ("TOSA-1.0+FP+8k+nolevel", "several levels: 8K, NONE"),
        ("TOSA-1.0+FP+u99", "unknown extension u99; known: bf16,"),
        ("TOSA-1.0+FP+none", "unknown extension none; .* levels are 8k and nolevel"),
        ("TOSA-1.0.draft+FP", "version 1.0 is not a draft"),
        ("TOSA-\u0661.0+FP", "not of the form"),
        ("TOSA-1.0+FP+", "not of the form"),
        ("TOSA-1.0+INT+bf16", "extension bf16 needs profile FP"),
        ("1.0+FP", "not of the form"),
        ("", "not of the form"),
    ],
)
def test_wrong_texts_of_targets_are_refused(text, words):
    with pytest.raises(OptionError, match=words):
        TosaSpec.parse(text)


# -- element types ---------------------------------------------------------------------


@pytest.mark.parametrize("label", SAMPLES)
def test_operators_are_accepted_only_by_specs_that_allow_them(label):
    sample = SAMPLES[label]
    operator = sample.graph.operators[0]
    for names in sample.allowed_by:
        assert spec_of(names).why_not(operator) is None
    for target in (FP, INT):
        allowed = any(names <= target.names for names in sample.allowed_by)
        assert (target.why_not(operator) is None) == allowed
        assert bool(target.violations(operator)) != allowed


REASONS = {
    "TOSA CLAMP on bf16 needs EXT-BF16; the target is TOSA-1.0+FP": make_operator(
        ops.CLAMP, value(2, dtype=DType.BF16), min_val=0, max_val=1
    ),
    "TOSA RESHAPE on int32 needs PRO-INT; the target is TOSA-1.0+FP": make_operator(
        ops.RESHAPE,
        value(2, dtype=DType.INT32),
        literal([2, 1], DType.SHAPE, np.int64),
    ),
    "TOSA CAST from bool to fp32 is not in TOSA 1.0": make_operator(
        ops.CAST, value(2, dtype=DType.BOOL), dtype=DType.FP32
    ),
    "TOSA ADD takes fp32 where it is given fp16": make_operator(
        ops.ADD, value(2), value(2, dtype=DType.FP16)
    ),
    "TOSA SELECT takes bool where it is given fp32": make_operator(
        ops.SELECT, value(2), value(2), value(2)
    ),
    "TOSA EXP on int64 is not in TOSA 1.0": make_operator(
        ops.EXP, value(2, dtype=DType.INT64)
    ),
}


@pytest.mark.parametrize("text", REASONS)
def test_refusals_have_the_expected_reason(text):
    assert FP.why_not(REASONS[text]) == text


def test_rounding_modes_are_extensions():
    operator = next(
        s for s in samples(DType.INT8, DType.INT32) if s.label.startswith("RESCALE")
    ).graph.operators[0]
    operator.rounding_mode = RoundingMode.DOUBLE_ROUND
    assert "EXT-DOUBLEROUND" in (INT.why_not(operator) or "")
    assert TosaSpec.parse("TOSA-1.0+INT+doubleround").why_not(operator) is None


def test_operands_that_must_be_constant():
    operator = make_operator(
        ops.NEGATE, value(2), literal([0], DType.FP32, np.float32), value(1)
    )
    assert (
        FP.why_not(operator) == "TOSA NEGATE: output_zp must be a compile-time constant"
    )


# -- level -----------------------------------------------------------------------------


def conv(
    pad: tuple[int, ...] = (0, 0, 0, 0),
    stride: tuple[int, ...] = (1, 1),
    dilation: tuple[int, ...] = (1, 1),
):
    zero = literal([0], DType.FP32, np.float32)
    image = value(1, 2 * dilation[0] + 1, 2 * dilation[1] + 1, 1)
    attributes = {
        "pad": pad,
        "stride": stride,
        "dilation": dilation,
        "acc_type": DType.FP32,
    }
    return make_operator(
        ops.CONV2D, image, value(1, 3, 3, 1), zero, zero, zero, **attributes
    )


def pool(kernel: int, stride: int = 1):
    return make_operator(
        ops.MAX_POOL2D,
        value(1, kernel, 1, 1),
        kernel=(kernel, 1),
        stride=(stride, 1),
        pad=(0, 0, 0, 0),
    )


def resize(scale: tuple[int, ...]):
    shapes = [
        literal(entries, DType.SHAPE, np.int64) for entries in (scale, (0, 0), (0, 0))
    ]
    return make_operator(ops.RESIZE, value(1, 1, 1, 1), *shapes, mode=1)


AT_THE_LIMIT = {
    "rank": (
        make_operator(ops.ABS, value(*[1] * 6)),
        make_operator(ops.ABS, value(*[1] * 7)),
        "MAX_RANK is 6",
    ),
    "bytes": (
        make_operator(ops.ABS, value((1 << 29) - 1)),
        make_operator(ops.ABS, value(1 << 29)),
        "MAX_LOG2_SIZE",
    ),
    "kernel": (
        conv(dilation=(2730, 1)),
        conv(dilation=(2731, 1)),
        "dilation_y * KH is 8193",
    ),
    "pad": (conv(pad=(0, 0, 0, 8192)), conv(pad=(0, 0, 0, 8193)), "pad_right is 8193"),
    "stride": (
        conv(stride=(1, 8192)),
        conv(stride=(1, 8193)),
        "stride_x is 8193, MAX_STRIDE is 8192",
    ),
    "pool": (pool(8192), pool(8193), "kernel_y is 8193"),
    "pool stride": (pool(1, 8192), pool(1, 8193), "stride_y is 8193"),
    "whole scale": (
        resize((256, 1, 1, 1)),
        resize((257, 1, 1, 1)),
        "scale_y_n/scale_y_d is 257/1, MAX_SCALE is 256",
    ),
    "scale": (
        resize((1, 1, 513, 2)),
        resize((1, 1, 514, 2)),
        "scale_x_n/scale_x_d is 514/2, MAX_SCALE is 256",
    ),
    "list": (
        make_operator(ops.CONCAT, *[value(1)] * 64, axis=0),
        make_operator(ops.CONCAT, *[value(1)] * 65, axis=0),
        "MAX_TENSOR_LIST",
    ),
}


@pytest.mark.parametrize("limit", ["scale", "whole scale", "kernel", "stride", "pool"])
def test_the_validator_has_the_same_limits(limit):
    within, beyond, _ = AT_THE_LIMIT[limit]
    graphs = [
        Graph(
            [value for value in op.inputs if value.constant is None], op.outputs, [op]
        )
        for op in (within, beyond)
    ]
    files = [TosaFile(graph, DEFAULT).join() for graph in graphs]
    reference_tools.check_strictly_for_spec(files[0], DEFAULT)
    with pytest.raises(reference_tools.Refused, match="failed level check"):
        reference_tools.check_strictly_for_spec(files[1], DEFAULT)


@pytest.mark.parametrize("limit", AT_THE_LIMIT)
def test_operators_beyond_a_level_are_refused(limit):
    within, beyond, words = AT_THE_LIMIT[limit]
    assert DEFAULT.why_not(within) is None
    assert words in (DEFAULT.why_not(beyond) or "")
    assert TosaSpec.parse("TOSA-1.0+FP+INT+nolevel").why_not(beyond) is None


def test_empty_tensors_are_refused():
    assert "no empty tensors" in (
        DEFAULT.why_not(make_operator(ops.ABS, value(2, 0))) or ""
    )


# -- what a graph needs ----------------------------------------------------------------


@pytest.mark.parametrize("label", SAMPLES)
def test_required_is_sufficient_and_smallest(label):
    sample = SAMPLES[label]
    needed = required(sample.graph)
    assert (
        TosaSpec(profiles=needed.profiles, extensions=needed.extensions).why_not(
            sample.graph.operators[0]
        )
        is None
    )
    smallest = min(
        len(spec_of(n).profiles) + len(spec_of(n).extensions) for n in sample.allowed_by
    )
    assert len(needed.profiles) + len(needed.extensions) >= smallest
    assert len(needed.profiles) <= max(1, smallest)


# FFT2D and RFFT2D are left out: they require the extension EXT-FFT.
FLOAT_GRAPHS = [
    sample.graph
    for sample in samples(DType.FP32, DType.BOOL)
    if sample.label not in ("FFT2D(fp32)", "RFFT2D(fp32)")
]


@pytest.mark.parametrize(
    ("added", "profiles", "extensions"),
    [
        ([], {"FP"}, set()),
        (["ADD(bf16)"], {"FP"}, {"bf16"}),
        (["FFT2D(fp32)"], {"FP"}, {"fft"}),
        (["RESHAPE(int32)"], {"FP", "INT"}, set()),
    ],
    ids=["floats only", "bfloat16", "FFT", "integers"],
)
def test_float_graphs_require_fp_and_what_is_added(added, profiles, extensions):
    """A float graph requires only FP. Each operator that is added requires one more
    profile or extension.
    """
    graph = merged([*FLOAT_GRAPHS, *(SAMPLES[label].graph for label in added)])
    assert required(graph) == (profiles, extensions)


def test_a_graph_without_operators_requires_fp():
    assert required(Graph([], [], [])) == ({"FP"}, frozenset())


# -- tosa-opt agrees -------------------------------------------------------------------


def by_requirement() -> dict[frozenset[str], list[str]]:
    groups: dict[frozenset[str], list[str]] = defaultdict(list)
    for label, sample in SAMPLES.items():
        if not label.startswith(NOT_JUDGED):
            groups[sample.allowed_by[0]].append(label)
    return groups


@pytest.mark.parametrize(
    "names", by_requirement(), ids=lambda names: "+".join(sorted(names))
)
def test_the_official_validator_accepts_legal_operators(names):
    graph = merged(SAMPLES[label].graph for label in by_requirement()[names])
    spec = spec_of(names)
    reference_tools.check_strictly_for_spec(TosaFile(graph, spec).join(), spec)


def refused_targets(targets: dict[str, TosaSpec]) -> list[tuple[str, str]]:
    return [
        (label, name)
        for label, sample in SAMPLES.items()
        for name, target in targets.items()
        if target.why_not(sample.graph.operators[0])
        and not label.startswith(NOT_JUDGED)
    ]


@pytest.mark.parametrize(
    ("label", "target"), refused_targets({"FP": FP, "INT": INT})[::12]
)
def test_the_official_validator_refuses_illegal_operators(label, target):
    _judge_refusal(label, target)


@pytest.mark.slow
@pytest.mark.parametrize(("label", "target"), refused_targets({"FP": FP, "INT": INT}))
def test_the_validator_refuses_all_that_we_refuse(label, target):
    _judge_refusal(label, target)


def _judge_refusal(label: str, target: str) -> None:
    spec = {"FP": FP, "INT": INT}[target]
    with pytest.raises(reference_tools.Refused, match="illegal"):
        reference_tools.check_strictly_for_spec(
            TosaFile(SAMPLES[label].graph, spec).join(), spec
        )


def test_every_operator_has_a_sample():
    of_1_1 = {sample.label for sample in samples(version=(1, 1))}
    assert {label.partition("(")[0] for label in of_1_1} >= RECIPES.keys()

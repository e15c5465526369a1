"""A table of small graphs, mostly of one operator, that together ask every kernel
everything it can do.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Graph, Value, literal
from delegraph_tosa.ir.types import (
    ARRAY_DTYPES,
    DType,
    NanMode,
    ResizeMode,
    RoundingMode,
    Type,
)

_HELD_AS_ANOTHER = (DType.INT4, DType.INT48, DType.SHAPE, DType.MXINT8)
DTYPES = {
    array: dtype
    for dtype, array in ARRAY_DTYPES.items()
    if dtype not in _HELD_AS_ANOTHER
}

R = np.random.default_rng(20)


def floats(*shape, dtype="f4", scale=1.0):
    return np.asarray(R.standard_normal(shape) * scale, dtype)


def integers(dtype, *shape, low=None, high=None):
    limits = np.iinfo(dtype)
    return R.integers(
        limits.min if low is None else low,
        limits.max if high is None else high,
        shape,
        dtype,
        True,
    )


def bools(*shape):
    return R.random(shape) < 0.5


def const(elements, dtype, as_type=None):
    array = np.asarray(elements, dtype)
    return literal(array, as_type or DTYPES[array.dtype], array.dtype)


def shape(*sizes):
    return literal(sizes, DType.SHAPE, np.int64)


def zero(dtype, value=0):
    return const([value], dtype)


def node(cls, *operands, **attributes):
    operator = cls(operands, **attributes)
    operator.outputs = tuple(Value(t, producer=operator) for t in operator.infer())
    return operator


def single(cls, *operands, **attributes):
    """A graph of one operator and its inputs: arrays are inputs, values are constants."""
    arrays = [a for a in operands if isinstance(a, np.ndarray)]
    values = [
        Value(Type(a.shape, DTYPES[a.dtype])) if isinstance(a, np.ndarray) else a
        for a in operands
    ]
    operator = node(cls, *values, **attributes)
    inputs = [v for v in values if v.constant is None]
    if operator.outputs[0].dtype is not DType.INT48:
        return Graph(inputs, operator.outputs, [operator]), arrays
    # the reference model cannot hand out int48
    narrowed = _narrowed(operator.outputs[0])
    return Graph(inputs, narrowed.outputs, [operator, narrowed]), arrays


def _narrowed(value):
    operands = (
        const([16384], "i2"),
        const([20], "i1"),
        const([0], "i8", DType.INT48),
        zero("i4"),
    )
    single_round = dict(
        scale32=False, rounding_mode=RoundingMode.SINGLE_ROUND, per_channel=False
    )
    return node(
        ops.RESCALE,
        value,
        *operands,
        **single_round,
        input_unsigned=False,
        output_unsigned=False,
        dtype=DType.INT32,
    )


# ---- the table: name, graph, inputs


def unary():
    for cls, dtype in itertools.product(
        (ops.CEIL, ops.FLOOR, ops.EXP, ops.COS, ops.SIN, ops.ABS), ("f4", "f2")
    ):
        yield (
            f"{cls.__name__} {dtype}",
            single(cls, floats(3, 17, dtype=dtype, scale=3)),
        )
    for cls, dtype in itertools.product((ops.ERF, ops.TANH, ops.SIGMOID), ("f4", "f2")):
        yield f"{cls.__name__} {dtype}", single(cls, floats(300, dtype=dtype, scale=3))
    for cls, dtype in itertools.product(
        (ops.LOG, ops.RSQRT, ops.RECIPROCAL), ("f4", "f2")
    ):
        yield (
            f"{cls.__name__} {dtype}",
            single(cls, (R.random((5, 9)) + 0.05).astype(dtype)),
        )
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-6, -4.0, 4.5, 1.0], "f4")
    for cls in (
        ops.ERF,
        ops.TANH,
        ops.SIGMOID,
        ops.LOG,
        ops.RSQRT,
        ops.RECIPROCAL,
        ops.EXP,
        ops.ABS,
        ops.FLOOR,
    ):
        yield f"{cls.__name__} special values", single(cls, special)
    yield "ABS i4", single(ops.ABS, integers("i4", 50, low=-(2**31) + 1))
    yield (
        "CLZ",
        single(
            ops.CLZ,
            np.array([0, 1, 2, 3, 4, 255, 2**30, 2**31 - 1, -1, -(2**31)], "i4"),
        ),
    )
    yield "LOGICAL_NOT", single(ops.LOGICAL_NOT, bools(4, 5))
    for dtype in ("i1", "i2", "i4"):
        yield f"BITWISE_NOT {dtype}", single(ops.BITWISE_NOT, integers(dtype, 40))
    for dtype in ("f4", "f2"):
        yield (
            f"NEGATE {dtype}",
            single(ops.NEGATE, floats(4, 3, dtype=dtype), zero(dtype), zero(dtype)),
        )
    yield (
        "NEGATE i1",
        single(ops.NEGATE, integers("i1", 200), zero("i1", 3), zero("i1", -100)),
    )
    for dtype in ("i2", "i4"):
        yield (
            f"NEGATE {dtype}",
            single(ops.NEGATE, integers(dtype, 90), zero(dtype), zero(dtype)),
        )
    yield "ADD rank 0", single(ops.ADD, floats(), floats())


BROADCASTS = [((3, 4), (3, 4)), ((2, 1, 4), (1, 3, 4)), ((1,), (7,))]


def binary():
    floating = (
        ops.ADD,
        ops.SUB,
        ops.MAXIMUM,
        ops.MINIMUM,
        ops.EQUAL,
        ops.GREATER,
        ops.GREATER_EQUAL,
    )
    for cls, dtype, (a, b) in itertools.product(floating, ("f4", "f2"), BROADCASTS):
        yield (
            f"{cls.__name__} {dtype} {a}",
            single(cls, floats(*a, dtype=dtype), floats(*b, dtype=dtype)),
        )
    for cls in floating:
        yield (
            f"{cls.__name__} i4",
            single(
                cls,
                integers("i4", 40, low=-99, high=99),
                integers("i4", 40, low=-99, high=99),
            ),
        )
    with_nan = (
        np.array([np.nan, 1, np.nan, np.inf], "f4"),
        np.array([1, np.nan, np.nan, -np.inf], "f4"),
    )
    for cls, mode in itertools.product((ops.MAXIMUM, ops.MINIMUM), NanMode):
        yield f"{cls.__name__} NaN {mode}", single(cls, *with_nan, nan_mode=mode)
    for cls in (ops.EQUAL, ops.GREATER, ops.GREATER_EQUAL):
        yield f"{cls.__name__} NaN", single(cls, *with_nan)
    for dtype in ("f4", "f2"):
        yield (
            f"POW {dtype}",
            single(
                ops.POW, R.random((4, 5)).astype(dtype) + 1, floats(4, 5, dtype=dtype)
            ),
        )
        yield (
            f"MUL {dtype}",
            single(
                ops.MUL,
                floats(4, 5, dtype=dtype),
                floats(4, 1, dtype=dtype),
                zero("i1"),
            ),
        )
    for cls in (ops.LOGICAL_AND, ops.LOGICAL_OR, ops.LOGICAL_XOR):
        yield cls.__name__, single(cls, bools(3, 4), bools(1, 4))


def integer_binary():
    for dtype in ("i1", "i2"):
        yield (
            f"MUL {dtype}",
            single(ops.MUL, integers(dtype, 60), integers(dtype, 60), zero("i1")),
        )
    for shift in (0, 1, 7, 31, 40):
        limit = 2**31 - 1 if shift > 30 else 30000
        x, y = (integers("i4", 80, low=-limit, high=limit) for _ in range(2))
        yield f"MUL i4 shift {shift}", single(ops.MUL, x, y, zero("i1", shift))
    yield (
        "MUL i4 low bits",
        single(ops.MUL, integers("i4", 80), integers("i4", 80), zero("i1")),
    )
    divisor = np.array([3, -3, 7, -1, 1, 2**31 - 1, -(2**31), 5], "i4")
    dividend = np.array(
        [10, 10, -10, 2**31 - 1, -(2**31), -7, -(2**31), -(2**31)], "i4"
    )
    yield "INTDIV", single(ops.INTDIV, dividend, divisor)
    for dtype in ("i1", "i2", "i4"):
        bits = np.dtype(dtype).itemsize * 8 - 1
        shifts = integers(dtype, 90, low=0, high=bits)
        for rounded in (False, True):
            shifted = single(
                ops.ARITHMETIC_RIGHT_SHIFT, integers(dtype, 90), shifts, round=rounded
            )
            yield f"ARITHMETIC_RIGHT_SHIFT {dtype} round {rounded}", shifted
        yield (
            f"LOGICAL_LEFT_SHIFT {dtype}",
            single(ops.LOGICAL_LEFT_SHIFT, integers(dtype, 90), shifts),
        )
        yield (
            f"LOGICAL_RIGHT_SHIFT {dtype}",
            single(ops.LOGICAL_RIGHT_SHIFT, integers(dtype, 90), shifts),
        )
        for cls in (ops.BITWISE_AND, ops.BITWISE_OR, ops.BITWISE_XOR):
            yield (
                f"{cls.__name__} {dtype}",
                single(cls, integers(dtype, 2, 30), integers(dtype, 1, 30)),
            )


def selecting():
    for array in (
        floats(3, 4),
        floats(3, 4, dtype="f2"),
        integers("i1", 3, 4),
        integers("i4", 3, 4),
        bools(3, 4),
    ):
        yield (
            f"SELECT {array.dtype}",
            single(ops.SELECT, bools(3, 1), array, array[:1].copy()),
        )
    values = np.array([-5, -1, -0.0, 0.5, 3, np.inf, -np.inf, np.nan], "f4")
    for mode, (low, high) in itertools.product(
        NanMode, ((0, math.inf), (-1, 1), (-math.inf, 2.5))
    ):
        yield (
            f"CLAMP {mode} {low}",
            single(ops.CLAMP, values, min_val=low, max_val=high, nan_mode=mode),
        )
    yield (
        "CLAMP f2",
        single(ops.CLAMP, floats(50, dtype="f2", scale=4), min_val=0.0, max_val=6.0),
    )
    yield "CLAMP i1", single(ops.CLAMP, integers("i1", 80), min_val=-100, max_val=20)
    yield "CLAMP i2", single(ops.CLAMP, integers("i2", 80), min_val=-1000, max_val=2000)
    yield (
        "TABLE i1",
        single(ops.TABLE, integers("i1", 4, 50), const(integers("i1", 256), "i1")),
    )
    smooth = (np.sin(np.arange(513) / 40) * 32000).astype("i2")
    everything = np.arange(-32768, 32768, 13).astype("i2")
    yield "TABLE i2", single(ops.TABLE, everything, const(smooth, "i2"))


def reducing():
    for axis, dtype in itertools.product(range(3), ("f4", "f2")):
        for cls in (
            ops.REDUCE_MAX,
            ops.REDUCE_MIN,
            ops.REDUCE_SUM,
            ops.REDUCE_PRODUCT,
            ops.ARGMAX,
        ):
            yield (
                f"{cls.__name__} {dtype} {axis}",
                single(cls, floats(3, 5, 4, dtype=dtype), axis=axis),
            )
    yield (
        "REDUCE_SUM long",
        single(ops.REDUCE_SUM, R.random((2000, 3)).astype("f4"), axis=0),
    )
    for dtype, cls in itertools.product(
        ("i1", "i2", "i4"), (ops.REDUCE_MAX, ops.REDUCE_MIN)
    ):
        yield f"{cls.__name__} {dtype}", single(cls, integers(dtype, 3, 7), axis=1)
    yield (
        "REDUCE_SUM i4",
        single(ops.REDUCE_SUM, integers("i4", 9, 7, low=-(10**8), high=10**8), axis=0),
    )
    for dtype in ("i1", "i2"):
        yield (
            f"ARGMAX {dtype}",
            single(ops.ARGMAX, integers(dtype, 6, 20, low=-5, high=5), axis=1),
        )
    holes = np.array(
        [
            [np.nan, -np.inf, np.nan],
            [1, np.nan, 2],
            [np.nan, np.nan, np.nan],
            [-1, -2, -1],
        ],
        "f4",
    )
    for mode, cls in itertools.product(
        NanMode, (ops.REDUCE_MAX, ops.REDUCE_MIN, ops.ARGMAX)
    ):
        yield f"{cls.__name__} NaN {mode}", single(cls, holes, axis=1, nan_mode=mode)
    for cls in (ops.REDUCE_ALL, ops.REDUCE_ANY):
        yield cls.__name__, single(cls, bools(6, 3), axis=1)


def layout():
    for x in (
        floats(2, 3, 4),
        floats(2, 3, 4, dtype="f2"),
        integers("i1", 2, 3, 4),
        integers("i4", 2, 3, 4),
        bools(2, 3, 4),
    ):
        kind = x.dtype
        yield f"CONCAT {kind}", single(ops.CONCAT, x, x[:, :1].copy(), x, axis=1)
        yield (
            f"PAD {kind}",
            single(ops.PAD, x, shape(0, 0, 2, 1, 0, 3), const([1], kind)),
        )
        yield f"RESHAPE {kind}", single(ops.RESHAPE, x, shape(4, 6))
        yield f"REVERSE {kind}", single(ops.REVERSE, x, axis=2)
        yield f"SLICE {kind}", single(ops.SLICE, x, shape(1, 0, 1), shape(1, 2, 3))
        yield f"TILE {kind}", single(ops.TILE, x, shape(1, 2, 3))
        yield f"TRANSPOSE {kind}", single(ops.TRANSPOSE, x, perms=(2, 0, 1))
        yield f"IDENTITY {kind}", single(ops.IDENTITY, x)
    yield "RESHAPE to rank 0", single(ops.RESHAPE, floats(1, 1), shape())
    yield "IDENTITY rank 0", single(ops.IDENTITY, floats())


def indexing():
    for values in (
        floats(2, 5, 3),
        floats(2, 5, 3, dtype="f2"),
        integers("i1", 2, 5, 3),
        integers("i4", 2, 5, 3),
    ):
        indices = np.array([[4, 0, 0, 2], [1, 1, 3, 4]], "i4")
        yield f"GATHER {values.dtype}", single(ops.GATHER, values, indices)
        targets = np.array([[4, 0], [1, 3]], "i4")
        written = values[:, :2].copy()
        yield f"SCATTER {values.dtype}", single(ops.SCATTER, values, targets, written)


def casting():
    dtypes = ["f4", "f2", "i1", "i2", "i4"]
    for source, target in itertools.permutations(dtypes, 2):
        x = (
            floats(60, dtype=source, scale=90)
            if source[0] == "f"
            else integers(source, 60)
        )
        if source == "i4" and target == "f2":
            x = integers(source, 60, low=-70000, high=70000)
        yield (
            f"CAST {source} {target}",
            single(ops.CAST, x, dtype=DTYPES[np.dtype(target)]),
        )
    for target in ("i1", "i2", "i4"):
        yield (
            f"CAST bool {target}",
            single(ops.CAST, bools(9), dtype=DTYPES[np.dtype(target)]),
        )
        yield (
            f"CAST {target} bool",
            single(ops.CAST, integers(target, 60, low=-2, high=2), dtype=DType.BOOL),
        )
        edges = np.array(
            [
                0.5,
                1.5,
                2.5,
                -0.5,
                -1.5,
                1e30,
                -1e30,
                np.inf,
                -np.inf,
                127.5,
                -128.5,
                2**31,
                -(2**31),
            ],
            "f4",
        )
        yield (
            f"CAST edges {target}",
            single(ops.CAST, edges, dtype=DTYPES[np.dtype(target)]),
        )
    halves = np.array(
        [1 + 2**-11, 1 + 3 * 2**-11, 65519, 65520, 70000, -1e9, 2**-25, 2**-26, 6e-8],
        "f4",
    )
    yield "CAST f4 f2 rounding", single(ops.CAST, halves, dtype=DType.FP16)
    yield (
        "CAST i4 f4 rounding",
        single(
            ops.CAST,
            np.array([2**24 + 1, 2**24 + 3, -(2**31), 2**31 - 1], "i4"),
            dtype=DType.FP32,
        ),
    )


def _rescale(
    x,
    to,
    multiplier,
    shift,
    mode=RoundingMode.SINGLE_ROUND,
    scale32=True,
    zp=(0, 0),
    unsigned=(False, False),
):
    target = np.dtype(to)
    return single(
        ops.RESCALE, x, const(multiplier, "i4" if scale32 else "i2"), const(shift, "i1"), const([zp[0]], x.dtype),
        const([zp[1]], target), scale32=scale32, rounding_mode=mode, per_channel=len(multiplier) > 1,
        input_unsigned=unsigned[0], output_unsigned=unsigned[1], dtype=DTYPES[target],
    )  # fmt: skip


def rescaling():
    small = {"i1": 127, "i2": 32767, "i4": 2**20}
    for source, target in itertools.product(small, small):
        x = integers(source, 5, 30, low=-small[source], high=small[source])
        zp = (5 if source == "i1" else 0, -7 if target == "i1" else 0)
        yield (
            f"RESCALE {source} {target}",
            _rescale(x, target, [1518500250], [32], zp=zp),
        )
        yield (
            f"RESCALE16 {source} {target}",
            _rescale(x, target, [20001], [17], scale32=False, zp=zp),
        )
    x = integers("i4", 40, 3, low=-(2**20), high=2**20)
    for mode in (RoundingMode.SINGLE_ROUND, RoundingMode.DOUBLE_ROUND):
        channels = _rescale(
            x, "i1", [1 << 30, 2**31 - 1, 1234567890], [44, 33, 29], mode=mode
        )
        yield f"RESCALE channels {mode}", channels
    x = integers("i4", 200, low=-(2**29), high=2**29)
    yield (
        "RESCALE double",
        _rescale(x, "i4", [1 << 30], [35], mode=RoundingMode.DOUBLE_ROUND),
    )
    yield (
        "RESCALE u8 i8",
        _rescale(
            integers("i1", 256),
            "i1",
            [1 << 30],
            [30],
            zp=(-128, 0),
            unsigned=(True, False),
        ),
    )
    yield (
        "RESCALE i8 u8",
        _rescale(
            integers("i1", 256),
            "i1",
            [1 << 30],
            [30],
            zp=(0, -128),
            unsigned=(False, True),
        ),
    )
    yield (
        "RESCALE i8 u8 below 0",
        _rescale(integers("i1", 256), "i1", [1 << 30], [30], unsigned=(False, True)),
    )
    yield (
        "RESCALE u16 i16",
        _rescale(
            integers("i2", 90),
            "i2",
            [1 << 30],
            [30],
            zp=(-32768, 0),
            unsigned=(True, False),
        ),
    )


ACCUMULATORS = {"b": DType.INT32, "h": DType.INT48}


def _conv(
    cls,
    x,
    w,
    pad,
    stride=None,
    dilation=None,
    acc=None,
    zp=(0, 0),
    bias=True,
    weight_type=None,
):
    axes = x.ndim - 2
    channels = w.shape[2] * w.shape[3] if cls is ops.DEPTHWISE_CONV2D else w.shape[0]
    wide = {"b": "i4", "h": "i8"}.get(x.dtype.char, x.dtype)
    b = R.standard_normal(channels if bias else 1) * 9
    return single(
        cls, x, const(w, w.dtype, weight_type), const(b, wide, DType.INT48 if wide == "i8" else None),
        const([zp[0]], x.dtype), const([zp[1]], w.dtype, weight_type), pad=pad, stride=stride or (1,) * axes,
        dilation=dilation or (1,) * axes, acc_type=acc or ACCUMULATORS.get(x.dtype.char, DType.FP32),
    )  # fmt: skip


def convolutions():
    plain = dict(x=floats(2, 9, 8, 3), w=floats(5, 3, 2, 3))
    yield "CONV2D", _conv(ops.CONV2D, **plain, pad=(0, 0, 0, 0))
    yield "CONV2D pad", _conv(ops.CONV2D, **plain, pad=(1, 2, 0, 3))
    yield "CONV2D stride", _conv(ops.CONV2D, **plain, pad=(0, 0, 0, 0), stride=(2, 3))
    yield (
        "CONV2D dilation",
        _conv(ops.CONV2D, **plain, pad=(2, 2, 1, 1), dilation=(3, 2)),
    )
    yield (
        "CONV2D all",
        _conv(
            ops.CONV2D,
            **plain,
            pad=(1, 1, 0, 1),
            stride=(3, 3),
            dilation=(2, 2),
            bias=False,
        ),
    )
    yield (
        "CONV2D 1x1",
        _conv(ops.CONV2D, floats(3, 4, 5, 7), floats(6, 1, 1, 7), pad=(0, 0, 0, 0)),
    )
    yield (
        "CONV2D 1x1 stride",
        _conv(
            ops.CONV2D,
            floats(3, 5, 5, 7),
            floats(6, 1, 1, 7),
            pad=(0, 0, 0, 0),
            stride=(2, 2),
        ),
    )
    for acc in (DType.FP16, DType.FP32):
        half = dict(x=floats(1, 6, 6, 4, dtype="f2"), w=floats(3, 3, 3, 4, dtype="f2"))
        yield f"CONV2D f2 {acc}", _conv(ops.CONV2D, **half, pad=(1, 1, 1, 1), acc=acc)
    eight = dict(x=integers("i1", 2, 7, 6, 5), w=integers("i1", 4, 3, 3, 5))
    yield "CONV2D i1", _conv(ops.CONV2D, **eight, pad=(1, 1, 1, 1), zp=(-128, 17))
    yield (
        "CONV2D i1 deep",
        _conv(
            ops.CONV2D,
            integers("i1", 1, 3, 3, 200),
            integers("i1", 4, 3, 3, 200),
            pad=(1,) * 4,
            zp=(127, -128),
        ),
    )
    yield (
        "CONV2D i2",
        _conv(
            ops.CONV2D,
            integers("i2", 1, 6, 6, 4),
            integers("i1", 3, 3, 3, 4),
            pad=(1, 1, 0, 0),
        ),
    )
    four = integers("i1", 4, 3, 3, 5, low=-7, high=7)
    yield (
        "CONV2D i4",
        _conv(ops.CONV2D, eight["x"], four, pad=(0,) * 4, weight_type=DType.INT4),
    )
    volume = dict(x=floats(1, 5, 6, 4, 3), w=floats(2, 3, 2, 3, 3))
    yield (
        "CONV3D",
        _conv(ops.CONV3D, **volume, pad=(1, 0, 1, 1, 1, 1), stride=(1, 2, 1)),
    )
    yield (
        "CONV3D dilation",
        _conv(ops.CONV3D, **volume, pad=(0, 0, 1, 1, 2, 2), dilation=(2, 1, 2)),
    )
    yield (
        "CONV3D i1",
        _conv(
            ops.CONV3D,
            integers("i1", 1, 3, 4, 4, 3),
            integers("i1", 2, 2, 2, 2, 3),
            pad=(0,) * 6,
            zp=(3, 0),
        ),
    )


def channelwise():
    for m in (1, 3):
        plain = dict(x=floats(2, 8, 9, 4), w=floats(3, 3, 4, m))
        yield f"DEPTHWISE {m}", _conv(ops.DEPTHWISE_CONV2D, **plain, pad=(1, 1, 1, 1))
        yield (
            f"DEPTHWISE {m} stride",
            _conv(ops.DEPTHWISE_CONV2D, **plain, pad=(0, 1, 1, 1), stride=(2, 2)),
        )
        yield (
            f"DEPTHWISE {m} dilation",
            _conv(
                ops.DEPTHWISE_CONV2D,
                **plain,
                pad=(2, 2, 2, 2),
                dilation=(2, 2),
                bias=False,
            ),
        )
        eight = dict(x=integers("i1", 2, 5, 5, 4), w=integers("i1", 3, 3, 4, m))
        yield (
            f"DEPTHWISE {m} i1",
            _conv(ops.DEPTHWISE_CONV2D, **eight, pad=(1, 1, 1, 1), zp=(9, -3)),
        )
    yield (
        "DEPTHWISE i2",
        _conv(
            ops.DEPTHWISE_CONV2D,
            integers("i2", 1, 5, 5, 4),
            integers("i1", 3, 3, 4, 2),
            pad=(1,) * 4,
        ),
    )
    yield (
        "DEPTHWISE f2",
        _conv(
            ops.DEPTHWISE_CONV2D,
            floats(1, 5, 5, 4, dtype="f2"),
            floats(3, 3, 4, 1, dtype="f2"),
            pad=(1,) * 4,
        ),
    )


def transposed():
    for out_pad, stride in itertools.product(
        ((0, 0, 0, 0), (-1, -2, 1, 2), (2, 0, -1, -1)), ((1, 1), (2, 3), (4, 1))
    ):
        for x, w in (
            (floats(2, 4, 5, 3), floats(4, 3, 2, 3)),
            (integers("i1", 1, 4, 5, 3), integers("i1", 2, 3, 2, 3)),
        ):
            acc = DType.FP32 if x.dtype.kind == "f" else DType.INT32
            operands = (
                x,
                const(w, w.dtype),
                const([1] * len(w), "f4" if acc is DType.FP32 else "i4"),
            )
            zps = (
                const([0 if acc is DType.FP32 else 4], x.dtype),
                const([0 if acc is DType.FP32 else -5], w.dtype),
            )
            graph = single(
                ops.TRANSPOSE_CONV2D,
                *operands,
                *zps,
                out_pad=out_pad,
                stride=stride,
                acc_type=acc,
            )
            yield f"TRANSPOSE_CONV2D {x.dtype} {out_pad} {stride}", graph


def products():
    for a, b, dtype in (
        (floats(2, 3, 40), floats(2, 40, 5), DType.FP32),
        (floats(1, 1, 1), floats(1, 1, 1), DType.FP32),
    ):
        yield (
            f"MATMUL f4 {a.shape}",
            single(ops.MATMUL, a, b, zero("f4"), zero("f4"), dtype=dtype),
        )
    for dtype in (DType.FP16, DType.FP32):
        half = floats(2, 3, 9, dtype="f2"), floats(2, 9, 4, dtype="f2")
        yield (
            f"MATMUL f2 {dtype}",
            single(ops.MATMUL, *half, zero("f2"), zero("f2"), dtype=dtype),
        )
    for depth in (9, 700):
        a = integers("i1", 2, 3, depth)
        b = integers("i1", 2, depth, 4)
        yield (
            f"MATMUL i1 {depth}",
            single(
                ops.MATMUL, a, b, zero("i1", -128), zero("i1", 127), dtype=DType.INT32
            ),
        )
    a = integers("i2", 1, 3, 20)
    b = integers("i2", 1, 20, 4)
    yield (
        "MATMUL i2",
        single(ops.MATMUL, a, b, zero("i2"), zero("i2"), dtype=DType.INT48),
    )


def pooling():
    windows = [
        ((2, 2), (2, 2), (0, 0, 0, 0)),
        ((3, 2), (1, 3), (1, 2, 0, 0)),
        ((8, 8), (1, 1), (0, 0, 0, 0)),
        ((9, 3), (5, 1), (3, 3, 2, 2)),
    ]
    for kernel, stride, pad in windows:
        window = dict(kernel=kernel, stride=stride, pad=pad)
        for x in (
            floats(2, 8, 8, 3),
            floats(2, 8, 8, 3, dtype="f2"),
            integers("i1", 2, 8, 8, 3),
            integers("i2", 2, 8, 8, 3),
        ):
            yield f"MAX_POOL2D {x.dtype} {kernel}", single(ops.MAX_POOL2D, x, **window)
            acc = DType.FP32 if x.dtype.kind == "f" else DType.INT32
            zps = (
                (zero("i1", -9), zero("i1", 21))
                if x.dtype == "i1"
                else (zero(x.dtype), zero(x.dtype))
            )
            yield (
                f"AVG_POOL2D {x.dtype} {kernel}",
                single(ops.AVG_POOL2D, x, *zps, **window, acc_type=acc),
            )
    holes = np.where(bools(1, 6, 6, 2), np.float32(np.nan), floats(1, 6, 6, 2))
    for mode in NanMode:
        pool = single(
            ops.MAX_POOL2D,
            holes,
            kernel=(3, 3),
            stride=(1, 1),
            pad=(1, 1, 1, 1),
            nan_mode=mode,
        )
        yield f"MAX_POOL2D NaN {mode}", pool


def _resize(x, mode, size_y, size_x):
    """align_corners=False geometry: numerator 2*out, denominator 2*in, offset in - out."""
    scale = []
    offset = []
    border = []
    for size, out in zip(x.shape[1:3], (size_y, size_x), strict=True):
        scale += [2 * out, 2 * size]
        offset.append(size - out)
        border.append((out - 1) * 2 * size + offset[-1] - (size - 1) * 2 * out)
    return single(
        ops.RESIZE, x, shape(*scale), shape(*offset), shape(*border), mode=mode
    )


def resizing():
    for mode, sizes in itertools.product(
        ResizeMode, ((8, 12), (3, 5), (4, 6), (11, 7))
    ):
        for x in (
            floats(2, 4, 6, 3),
            floats(2, 4, 6, 3, dtype="f2"),
            integers("i1", 2, 4, 6, 3),
            integers("i2", 2, 4, 6, 3),
        ):
            yield f"RESIZE {mode} {x.dtype} {sizes}", _resize(x, mode, *sizes)
    corners = floats(1, 5, 1, 2), shape(8, 4, 1, 1), shape(0, 0), shape(0, 0)
    for mode in ResizeMode:
        yield f"RESIZE {mode} corners", single(ops.RESIZE, *corners, mode=mode)


def fourier():
    for inverse in (False, True):
        yield (
            f"FFT2D {inverse}",
            single(ops.FFT2D, floats(2, 4, 8), floats(2, 4, 8), inverse=inverse),
        )
    yield "RFFT2D", single(ops.RFFT2D, floats(2, 8, 4))


def _region(name, arrays, build):
    inputs = [Value(Type(a.shape, DTYPES[a.dtype])) for a in arrays]
    operators = build(*inputs)
    return Graph(inputs, operators[-1].outputs, operators, name)


def control():
    x = floats(3, 4)
    y = floats(3, 4)
    then = _region("then", [x, y], lambda a, b: [node(ops.ADD, a, b)])
    other = _region("other", [x, y], lambda a, b: [node(ops.SUB, a, b)])
    for taken in (True, False):
        yield (
            f"COND_IF {taken}",
            single(
                ops.COND_IF, np.array([taken]), x, y, then_graph=then, else_graph=other
            ),
        )
    state = np.array([3], "i4")
    cond = _region(
        "cond", [state], lambda n: [node(ops.GREATER, const([1000], "i4"), n)]
    )
    body = _region("body", [state], lambda n: [node(ops.ADD, n, n)])
    yield "WHILE_LOOP", single(ops.WHILE_LOOP, state, cond_graph=cond, body_graph=body)


FAMILIES = (
    unary, binary, integer_binary, selecting, reducing, layout, indexing, casting, rescaling, convolutions, channelwise,
    transposed, products, pooling, resizing, fourier, control,
)  # fmt: skip
CASES = {name: case for family in FAMILIES for name, case in family()}

"""Random graphs: any operators in a row, and among them a pattern that a pass looks
for, also just outside of it.
"""

from __future__ import annotations

import math

import numpy as np
from delegraph_tosa.ir import operators as tosa
from delegraph_tosa.ir.graph import Folded, Value, literal, shape_value
from delegraph_tosa.ir.types import DType, RoundingMode, Type
from hypothesis import strategies as st

from .drafts import Draft, sizes

FP = "TOSA-1.0+FP"
BOTH = "TOSA-1.0+FP+INT"
INT = "TOSA-1.0+INT"


@st.composite
def drafts(draw, pattern=None) -> tuple[Draft, list[Value]]:
    """A random graph of small tensors, with ``pattern`` in it, and its outputs.

    Elements are multiples of 1/4 and few products are taken: sums are exact.
    """
    draft = Draft(draw(st.integers(0, 1000)))
    rank = draw(st.integers(2, 4))
    shape = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    values = [draft.input(*shape), draft.relu(draft.input(*shape))]
    made = []
    if pattern is not None:
        _walk(draw, draft, values, draw(st.integers(0, 2)))
        made = pattern(draw, draft)
        values += made
    _walk(
        draw, draft, values, draw(st.integers(0, 3) if pattern else st.integers(2, 10))
    )
    others = [v for v in made if draw(st.booleans())] + draw(
        st.lists(st.sampled_from(values), max_size=2)
    )
    return draft, [values[-1], *others]


def _walk(draw, d, values, steps):
    for _ in range(steps):
        x = draw(st.sampled_from(values[-3:] if draw(st.booleans()) else values))
        values.append(STEPS[draw(st.sampled_from(sorted(STEPS)))](draw, d, x, values))


# --- any operators --------------------------------------------------------------------

UNARY = (tosa.ABS, tosa.NEGATE, tosa.FLOOR, tosa.CLAMP)
BINARY = (tosa.ADD, tosa.SUB, tosa.MUL, tosa.MAXIMUM)
REDUCTIONS = (tosa.REDUCE_SUM, tosa.REDUCE_MAX, tosa.REVERSE)


def _bounded(d: Draft, x: Value) -> Value:
    """Few enough bits for exact sums and products later on."""
    return d.op(tosa.CLAMP, x, min_val=-2.0, max_val=2.0)


def _unary(draw, d, x, values):
    cls = draw(st.sampled_from(UNARY))
    zeros = [literal([0], DType.FP32, np.float32)] * 2 if cls is tosa.NEGATE else []
    return d.op(
        cls,
        x,
        *zeros,
        **({"min_val": -1.0, "max_val": 1.5} if cls is tosa.CLAMP else {}),
    )


def _binary(draw, d, x, values):
    cls = draw(st.sampled_from(BINARY))
    shape = [n if draw(st.booleans()) else 1 for n in x.shape]
    fits = [
        v
        for v in values
        if v.rank == x.rank
        and all(a == b or 1 in (a, b) for a, b in zip(v.shape, x.shape, strict=True))
    ]
    other = (
        d.constant(*shape)
        if draw(st.integers(0, 3)) == 0
        else draw(st.sampled_from(fits))
    )
    operands = (other, x) if draw(st.booleans()) else (x, other)
    return _bounded(d, d.mul(*operands)) if cls is tosa.MUL else d.op(cls, *operands)


def _select(draw, d, x, values):
    same = draw(st.sampled_from([v for v in values if v.shape == x.shape]))
    return d.op(tosa.SELECT, d.op(tosa.GREATER, x, same), same, x)


def _transposed(draw, d, x, values):
    return d.transpose(x, *draw(st.permutations(range(x.rank))))


def _reshaped(draw, d, x, values):
    """Axes joined, split, added and dropped."""
    shape = list(x.shape)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(shape) - 1))
        kind = draw(st.sampled_from(["join", "split", "add", "drop"]))
        if kind == "join" and at + 1 < len(shape):
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        elif kind == "split" and len(shape) < 5:
            factor = draw(
                st.sampled_from(
                    [f for f in range(1, shape[at] + 1) if shape[at] % f == 0]
                )
            )
            shape[at : at + 1] = [factor, shape[at] // factor]
        elif kind == "add" and len(shape) < 5:
            shape.insert(at, 1)
        elif kind == "drop" and shape[at] == 1 and len(shape) > 1:
            del shape[at]
    return d.reshape(x, *shape)


def _reduced(draw, d, x, values):
    return d.op(
        draw(st.sampled_from(REDUCTIONS)), x, axis=draw(st.integers(0, x.rank - 1))
    )


def _concat(draw, d, x, values):
    return d.op(
        tosa.CONCAT,
        x,
        *[v for v in values if v.shape == x.shape][:2],
        axis=draw(st.integers(0, x.rank - 1)),
    )


def _slice(draw, d, x, values):
    start = [draw(st.integers(0, n - 1)) for n in x.shape]
    return d.slice(
        x,
        tuple(start),
        tuple(draw(st.integers(1, n - s)) for n, s in zip(x.shape, start, strict=True)),
    )


def _pad(draw, d, x, values):
    return d.pad(
        x,
        *[draw(st.integers(0, 1)) for _ in range(2 * x.rank)],
        number=draw(st.sampled_from([0.0, 1.5])),
    )


def _tile(draw, d, x, values):
    if math.prod(x.shape) > 200:
        return x
    return d.op(tosa.TILE, x, sizes(tuple(draw(st.integers(1, 2)) for _ in x.shape)))


def _argmax(draw, d, x, values):
    if x.rank < 2:
        return x
    return d.op(
        tosa.CAST,
        d.op(tosa.ARGMAX, x, axis=draw(st.integers(0, x.rank - 1))),
        dtype=DType.FP32,
    )


def _conv(draw, d, x, values):
    if x.rank != 4 or math.prod(x.shape) > 500:
        return x
    y = d.conv(_bounded(d, x), draw(st.integers(1, 3)), draw(st.sampled_from([1, 3])))
    return _bounded(d, d.norm(y))


def _linear(draw, d, x, values):
    if x.rank not in (2, 3) or math.prod(x.shape) > 500:
        return x
    return _bounded(d, d.linear(_bounded(d, x), draw(st.integers(1, 4))))


def _heads(draw, d, x, values):
    """Layers that are split into heads. The heads of the last one are joined again, or
    multiply those of another.
    """
    if x.rank != 3 or math.prod(x.shape) > 200:
        return x
    x = _bounded(d, x)
    numbers = draw(st.lists(st.integers(1, 2), min_size=2, max_size=3))
    perms = draw(
        st.sampled_from([(0, 2, 1, 3), (0, 2, 1, 3), (2, 0, 1, 3), (0, 2, 3, 1)])
    )
    batch, rows, _ = x.shape
    parts = [
        d.transpose(d.reshape(d.linear(x, n * 2), batch, rows, n, 2), *perms)
        for n in numbers
    ]
    values += parts[:-1]
    if perms != (0, 2, 1, 3):
        return _bounded(d, parts[-1])
    if numbers[0] == 2 * numbers[1]:
        keys = d.op(
            tosa.TILE,
            d.reshape(parts[1], batch, numbers[1], 1, rows, 2),
            sizes((1, 1, 2, 1, 1)),
        )
        keys = d.transpose(d.reshape(keys, batch * 2, rows, 2), 0, 2, 1)
        return _bounded(d, d.matmul(d.reshape(parts[0], batch * 2, rows, 2), keys))
    return _bounded(
        d, d.reshape(d.transpose(parts[-1], 0, 2, 1, 3), batch, rows, numbers[-1] * 2)
    )


STEPS = {
    "argmax": _argmax, "binary": _binary, "concat": _concat, "conv": _conv, "heads": _heads, "linear": _linear,
    "pad": _pad, "reduced": _reduced, "reshaped": _reshaped, "select": _select, "slice": _slice, "tile": _tile,
    "transposed": _transposed, "transposed again": _transposed, "reshaped again": _reshaped, "unary": _unary,
}  # fmt: skip


# --- what passes look for: in each pattern something may be drawn that the pass must leave alone ---


def _image(draw, d, axes=2):
    """An input [N,H,W,C], or with one axis more"""
    shape = draw(
        st.tuples(st.integers(1, 2), *[st.integers(1, 3)] * axes, st.integers(1, 3))
    )
    return d.relu(d.input(*shape)) if draw(st.booleans()) else d.input(*shape)


def _convolution(draw, d, x, pads=None, zero=None):
    """A convolution of any class of ``x`` [N,...,C], of rows and columns or of depths
    too.
    """
    parameter = d.input if draw(st.integers(0, 5)) == 0 else d.constant
    *space, channels = x.shape[1:]
    made = draw(st.integers(1, 2))
    kernel = draw(st.sampled_from([1, 1, 2]))
    classes = (
        [tosa.CONV3D]
        if len(space) == 3
        else [tosa.CONV2D, tosa.DEPTHWISE_CONV2D, tosa.DEPTHWISE_CONV2D]
    )
    cls = draw(
        st.sampled_from(
            classes
            if pads is not None or len(space) == 3
            else [*classes, tosa.TRANSPOSE_CONV2D]
        )
    )
    if cls is tosa.DEPTHWISE_CONV2D:
        weight = parameter(kernel, kernel, channels, made)
        bias = d.constant(channels * made)
    else:
        weight = parameter(made, *[kernel] * len(space), channels)
        bias = d.constant(draw(st.sampled_from([1, made])))
    if cls is tosa.TRANSPOSE_CONV2D:
        attributes = {"out_pad": (0,) * 4, "stride": (1, 2)}
    else:
        pads = pads or [draw(st.integers(0, 1)) for _ in range(2 * len(space))]
        pads = [
            max(p, kernel - size)
            for p, size in zip(pads, np.repeat(space, 2).tolist(), strict=True)
        ]
        attributes = {
            "pad": tuple(pads),
            "stride": (1,) * len(space),
            "dilation": (1,) * len(space),
        }
    zero = zero or d.zero()
    return d.op(cls, x, weight, bias, zero, d.zero(), acc_type=DType.FP32, **attributes)


LARGEST_PAD = LARGEST_KERNEL = 8192
"""Of a convolution: MAX_KERNEL of level 8K. A PAD may be larger, and so may an axis
that is summed.
"""


def _number_at_hand(number):
    return literal([number], DType.FP32, np.float32)


def _number_of_operators(number):
    """A constant that operators compute, as a rule leaves it: its number is not known
    yet
    """
    reshape = tosa.RESHAPE((literal([[number]], DType.FP32, np.float32), sizes((1,))))
    reshape.outputs = (Value(Type((1,), DType.FP32), Folded(reshape)),)
    return reshape.outputs[0]


def padded_convolution(draw, d):
    """PAD - convolution. PAD may pad batch or channels, with another number, or so much
    that ``pad`` cannot hold it.
    """
    x = _image(draw, d, draw(st.sampled_from([2, 2, 3])))
    padding = [0, 0, *[draw(st.integers(0, 2)) for _ in range(2 * (x.rank - 2))], 0, 0]
    where = draw(
        st.sampled_from(
            ["batch or channels", "far", "far", "inside", "inside", "number", "number"]
        )
    )
    if where == "batch or channels":
        padding[draw(st.sampled_from([0, 1, -1, -2]))] = 1
    elif where == "far":
        padding[draw(st.sampled_from([2, 3, -3, -4]))] = LARGEST_PAD + draw(
            st.integers(-1, 1)
        )
    constant = _number_at_hand if draw(st.integers(0, 3)) else _number_of_operators
    y = d.op(
        tosa.PAD, x, sizes(tuple(padding)), constant(1.5 if where == "number" else 0.0)
    )
    pads = [draw(st.integers(0, 1)) for _ in range(2 * (x.rank - 2))]
    result = _convolution(draw, d, y, pads=pads, zero=constant(0.0))
    return [_bounded(d, y), result, _bounded(d, result)]


def transposed_product(draw, d):
    """TRANSPOSE - MATMUL, perhaps with a RESHAPE between them, which may join the axes
    that were exchanged.
    """
    batch, rows, depth, width = (draw(st.integers(1, 3)) for _ in range(4))
    left = d.input(batch, rows, depth)
    perms = draw(
        st.sampled_from(
            [
                (0, 2, 1),
                (0, 2, 1),
                (0, 1, 3, 2),
                (1, 2, 0),
                (2, 1, 0),
                (1, 0, 3, 2),
                (0, 3, 2, 1),
            ]
        )
    )
    shape = [1] * (len(perms) - 3) + [batch, depth, width]
    if draw(st.integers(0, 2)) == 0:
        shape[-2:] = draw(
            st.sampled_from([[depth * width, 1], [1, depth * width], [width, depth]])
        )
    before = [0] * len(perms)
    for place, axis in enumerate(perms):
        before[axis] = shape[place]
    right = d.transpose(d.input(*before), *perms)
    if right.shape != (batch, depth, width):
        right = d.reshape(right, batch, depth, width)
    result = d.matmul(left, right)
    return [_bounded(d, right), result, _bounded(d, result)]


def _factor(draw, d, x):
    """What may be one number, one for each channel of ``x``, more, or no constant."""
    channels = x.shape[-1]
    ones = (1,) * (x.rank - 1)
    if channels == 1 and draw(st.integers(0, 2)) == 0:
        channels = 2  # it makes channels
    others = [(*ones, 1), (*ones[1:], x.shape[-2], 1), x.shape]
    shape = draw(st.sampled_from([*[(*ones, channels)] * 3, *others]))
    return d.input(*shape) if draw(st.integers(0, 4)) == 0 else d.constant(*shape)


def _affine(draw, d, x):
    cls = draw(st.sampled_from([tosa.MUL, tosa.MUL, tosa.ADD, tosa.SUB]))
    factor = _factor(draw, d, x)
    operands = (factor, x) if draw(st.booleans()) else (x, factor)
    return d.op(cls, *operands, *([d.no_shift] if cls is tosa.MUL else []))


def scaled_convolution(draw, d):
    """MUL - convolution - MUL - ADD, of any of which there may be none; something else
    may use what lies between.
    """
    values = [_image(draw, d, draw(st.sampled_from([2, 2, 2, 3])))]
    if draw(st.booleans()):
        values.append(d.mul(values[0], _factor(draw, d, values[0])))
    values.append(_convolution(draw, d, values[-1]))
    for _ in range(draw(st.integers(0, 2))):
        values.append(_affine(draw, d, values[-1]))
    others = [_bounded(d, draw(st.sampled_from(values)))] if draw(st.booleans()) else []
    return [*others, values[-1], _bounded(d, values[-1])]


def integer_convolution(draw, d):
    """A convolution of int8, to whose int32 a constant is added, or by which it is
    multiplied.
    """
    x = _whole(d, 1, 2, 2, 2)
    attributes = {"pad": (0,) * 4, "stride": (1, 1), "dilation": (1, 1)}
    weight = literal(d.random.integers(-3, 4, (3, 1, 1, 2)), DType.INT8, np.int8)
    bias = literal([1, 2, 3], DType.INT32, np.int32)
    zero = literal([0], DType.INT8, np.int8)
    y = d.op(
        tosa.CONV2D, x, weight, bias, zero, zero, acc_type=DType.INT32, **attributes
    )
    constant = literal(d.random.integers(-3, 4, (1, 1, 1, 3)), DType.INT32, np.int32)
    cls = draw(st.sampled_from([tosa.MUL, tosa.ADD, tosa.SUB]))
    return [
        d.op(
            tosa.CAST,
            d.op(cls, y, constant, *([d.no_shift] if cls is tosa.MUL else [])),
            dtype=DType.FP32,
        )
    ]


CLAMPS = [
    (0.0, 1.0),
    (-0.0, 1.0),
    (0.0, 0.5),
    (-1.0, 1.0),
    (0.0, math.inf),
    (-math.inf, 0.5),
    (-1.0, -0.0),
]


def twins(draw, d):
    """The same operator twice, or two that differ in an attribute or a constant only;
    signs of zeros are seen.
    """
    x = d.input(2, 2)
    makers = {
        "clamp": lambda: d.op(
            tosa.CLAMP,
            x,
            **dict(zip(("min_val", "max_val"), draw(limits), strict=True)),
        ),
        "slice": lambda: d.slice(x, (draw(st.integers(0, 1)), 0), (1, 2)),
        "sum": lambda: d.op(tosa.REDUCE_SUM, x, axis=draw(st.integers(0, 1))),
        "product": lambda: d.mul(
            x,
            literal(
                [[draw(st.sampled_from([0.0, -0.0, 0.5]))]], DType.FP32, np.float32
            ),
        ),
        "shape": lambda: d.add(
            x,
            literal(
                np.array([1.0, 2.0]).reshape(draw(rows_or_columns)),
                DType.FP32,
                np.float32,
            ),
        ),
    }
    limits = st.sampled_from(CLAMPS)
    rows_or_columns = st.sampled_from([(1, 2), (2, 1)])
    make = makers[draw(st.sampled_from(sorted(makers)))]
    return [
        d.op(tosa.MAXIMUM, _seen(d, one), d.constant(1, 1)) for one in (make(), make())
    ]


def _seen(d, x):
    """Different for 0.0 and -0.0: infinities, which are cut off."""
    return _bounded(d, d.op(tosa.RECIPROCAL, x))


def clamps(draw, d):
    """Limits below each other, of which each may be the narrower one."""
    x = d.input(3, 2)
    for _ in range(2):
        low, high = draw(st.sampled_from(CLAMPS))
        limit = literal([[draw(st.sampled_from([-1.0, 0.5]))]], DType.FP32, np.float32)
        one = draw(
            st.sampled_from([tosa.CLAMP, tosa.CLAMP, tosa.MAXIMUM, tosa.MINIMUM])
        )
        x = (
            d.op(one, x, min_val=low, max_val=high)
            if one is tosa.CLAMP
            else d.op(one, x, limit)
        )
    return [x]


def variables(draw, d):
    """Reads between writes, some of what nobody uses afterwards."""
    types = (Type((2, 2), DType.FP32),)
    d.op_without_result(tosa.VARIABLE, d.constant(2, 2), variable="state")
    read = []
    for _ in range(draw(st.integers(2, 4))):
        if draw(st.booleans()):
            d.op_without_result(
                tosa.VARIABLE_WRITE, d.relu(d.input(2, 2)), variable="state"
            )
        read.append(d.op(tosa.VARIABLE_READ, variable="state", types=types))
    return read


def _rescaled(draw, d, x, per_channel=False, dtype=DType.INT32):
    """``x`` of int8 minus -3, times 2 to 8 for each step; folded if it is a constant,
    as lowering does.
    """
    count = x.shape[-1] if per_channel else 1
    multipliers = d.random.integers(1 << 28, 1 << 30, count)
    numbers = (
        literal(multipliers, DType.INT32, np.int32),
        literal([26] * count, DType.INT8, np.int8),
    )
    zeros = literal([-3], x.dtype, np.int8), literal([0], dtype, np.int32)
    flags = {
        "scale32": True,
        "per_channel": per_channel,
        "input_unsigned": False,
        "output_unsigned": False,
    }
    flags |= {"dtype": dtype, "rounding_mode": RoundingMode.SINGLE_ROUND}
    result = d.op(tosa.RESCALE, x, *numbers, *zeros, **flags)
    return (
        result if x.constant is None else Value(result.type, Folded(d.operators.pop()))
    )


def _whole(d, *shape):
    """Small integers as a value of int8, made at run time"""
    return d.op(tosa.CAST, d.input(*shape), dtype=DType.INT8)


def scaled_integers(draw, d):
    """RESCALE of a tensor meets that of a constant: large or small, of channels or not,
    from 8 bits or not.
    """
    rows, width = draw(
        st.sampled_from([(64, 64), (64, 64), (63, 65), (64, 63), (2, 3)])
    )
    x = _rescaled(draw, d, _whole(d, 1, rows, width), draw(st.integers(0, 3)) == 0)
    if draw(st.integers(0, 3)) == 0:
        x = d.op(tosa.ABS, x)
    elements = literal(d.random.integers(-128, 128, (1, width)), DType.INT8, np.int8)
    constant = _rescaled(draw, d, elements, draw(st.integers(0, 3)) == 0)
    reshape = tosa.RESHAPE((constant, sizes((1, 1, width))))
    seen = Value(Type((1, 1, width), DType.INT32), Folded(reshape))
    reshape.outputs = (seen,)
    cls = draw(st.sampled_from([tosa.MUL, tosa.ADD, tosa.SUB]))
    operands = [x, seen]
    if draw(st.booleans()):
        operands.reverse()
    result = d.op(cls, *operands, *([d.no_shift] if cls is tosa.MUL else []))
    return [d.op(tosa.CAST, v, dtype=DType.FP32) for v in (x, result)]


def scaled_channels(draw, d):
    """TRANSPOSE - RESCALE of the channels, or of all alike - TRANSPOSE"""
    x = _whole(d, 2, 3, 2)
    x = d.transpose(x, *draw(st.permutations(range(3))))
    y = _rescaled(draw, d, x, draw(st.booleans()))
    return [
        d.op(
            tosa.CAST,
            d.transpose(y, *draw(st.permutations(range(3)))),
            dtype=DType.FP32,
        )
    ]


def _kept(draw, d, x):
    """``x``, perhaps used by something else as well, whose result comes along"""
    return [d.op(tosa.EXP, x)] if draw(st.integers(0, 3)) == 0 else []


def layer_behind_a_transposition(draw, d):
    """TRANSPOSE - RESHAPE - CONV2D, with the heads of an attention or a feature map
    joined, or the rows as well.
    """
    shape = draw(st.lists(st.integers(1, 3), min_size=4, max_size=4))
    perms = draw(
        st.sampled_from([(0, 2, 1, 3), (0, 3, 1, 2), (0, 2, 3, 1), (1, 0, 2, 3)])
    )
    is_far = draw(st.integers(0, 5)) == 0
    if is_far:
        shape = [1, LARGEST_KERNEL + draw(st.integers(0, 1)), 2, 2]
        perms = (0, 2, 1, 3)
    x = d.transpose(d.input(*shape), *perms)
    n, a, b, c = x.shape
    forms = [(n, 1, a, b * c), (1, 1, n, a * b * c), (n, 1, a * b, c), (n, a, b, c)]
    y = d.reshape(x, *(forms[0] if is_far else draw(st.sampled_from(forms))))
    kernel = (1, 2) if y.shape[2] > 1 and draw(st.integers(0, 3)) == 0 else (1, 1)
    stride = 1
    weight = d.constant(2, *kernel, y.shape[-1])
    made = []
    pads = (0, 0, *[draw(st.sampled_from([0, 0, 0, 1]))] * 2)
    attributes = {
        "pad": pads,
        "stride": (stride,) * 2,
        "dilation": (1, 1),
        "acc_type": DType.FP32,
    }
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):  # layers that share a weight
        made.append(
            d.op(
                tosa.CONV2D, y, weight, d.constant(2), d.zero(), d.zero(), **attributes
            )
        )
    return [*_kept(draw, d, y), *made, _bounded(d, made[-1])]


def repeated_matrices(draw, d):
    """TILE - RESHAPE - TRANSPOSE - MATMUL. Equal matrices may be apart, or rows be
    repeated in place of matrices.
    """
    shape = [draw(st.integers(1, 2)) for _ in range(5)]
    times = [1] * 5
    for axis in draw(
        st.lists(st.sampled_from([2, 2, 2, 1, 3, 0, 4]), min_size=1, max_size=2)
    ):
        times[axis] = draw(st.sampled_from([2, 2, 4]))
    if draw(st.integers(0, 3)):
        shape = [1 if n > 1 else size for size, n in zip(shape, times, strict=True)]
    tiled = d.op(tosa.TILE, d.input(*shape), sizes(tuple(times)))
    a, b, c, rows, depth = tiled.shape
    keys = d.reshape(tiled, a * b * c, rows, depth)
    # which parts equal ones, where all are equal
    if keys.shape[0] % 2 == 0 and draw(st.integers(0, 3)) == 0:
        keys = d.transpose(d.reshape(keys, 2, a * b * c // 2, rows, depth), 1, 0, 2, 3)
        keys = d.reshape(keys, a * b * c, rows, depth)
    keys = d.transpose(
        keys,
        *draw(st.sampled_from([(0, 2, 1), (0, 2, 1), (0, 1, 2), (1, 0, 2), (2, 1, 0)])),
    )
    product = d.matmul(d.input(keys.shape[0], 2, keys.shape[1]), keys)
    return [
        *_kept(draw, d, draw(st.sampled_from([tiled, keys]))),
        product,
        _bounded(d, product),
    ]


def many_axes(draw, d):
    """Views of up to six axes, the most that the level has, which are split and joined
    while they are transposed.
    """
    rank = draw(st.integers(4, 6))
    x = d.input(
        *draw(st.lists(st.sampled_from([1, 1, 2, 4]), min_size=rank, max_size=rank))
    )
    for _ in range(draw(st.integers(2, 4))):
        x = d.transpose(x, *draw(st.permutations(range(x.rank))))
        shape = list(x.shape)
        for _ in range(draw(st.integers(1, 3))):
            at = draw(st.integers(0, len(shape) - 1))
            if draw(st.booleans()) and at + 1 < len(shape):
                shape[at : at + 2] = [shape[at] * shape[at + 1]]
            elif len(shape) < 6:
                factor = draw(
                    st.sampled_from(
                        [f for f in range(1, shape[at] + 1) if shape[at] % f == 0]
                    )
                )
                shape[at : at + 1] = [factor, shape[at] // factor]
        x = (
            d.op(tosa.ABS, d.reshape(x, *shape))
            if draw(st.booleans())
            else d.reshape(x, *shape)
        )
    return [x]


def indices(draw, d):
    """Integers that a target with floats alone cannot transpose."""
    x = d.transpose(d.input(2, 3, 2), *draw(st.permutations(range(3))))
    found = d.op(tosa.ARGMAX, x, axis=draw(st.integers(0, 2)))
    if draw(st.booleans()):
        found = d.op(tosa.CAST, x, dtype=DType.INT32)
    if draw(st.booleans()):
        found = d.add(found, found)
    y = d.op(tosa.CAST, found, dtype=DType.FP32)
    return [d.transpose(y, *draw(st.permutations(range(y.rank))))]


def parallel_layers(draw, d):
    """Layers of one operand whose channels are split into heads; a weight, a bias or a
    layer's result may be shared.
    """
    batch, rows, depth = (draw(st.integers(1, 3)) for _ in range(3))
    x = d.input(batch, rows, depth)
    weights = []
    biases = []
    made = []
    form = draw(st.sampled_from([None, None, None, 0, 1, 2]))
    numbers = draw(st.lists(st.integers(1, 2), min_size=2, max_size=3))
    for heads in numbers:
        channels = heads * 2
        weight = d.constant(channels, 1, 1, depth)
        if (
            weights
            and weights[-1].shape == weight.shape
            and draw(st.integers(0, 2)) == 0
        ):
            weight = weights[-1]
        if draw(st.integers(0, 7)) == 0:
            weight = d.input(channels, 1, 1, depth)
        weights.append(weight)
        biases.append(d.constant(draw(st.sampled_from([channels, channels, 1]))))
        y = d.bare(d.reshape(x, batch, 1, rows, depth), tosa.CONV2D, weight, biases[-1])
        made += _kept(draw, d, y)
        # the third is no split of channels alone
        others = (
            [batch, rows, 2, heads],
            [batch * rows, 1, heads, 2],
            [batch, heads, rows, 2],
        )
        split = [batch, rows, heads, 2] if form is None else others[form]
        perms = (
            (0, 2, 1, 3)
            if draw(st.integers(0, 4))
            else draw(st.sampled_from([(0, 2, 3, 1), (0, 1, 3, 2)]))
        )
        made.append(d.transpose(d.reshape(y, *split), *perms))
    return [*made, _bounded(d, made[-1])]


def parallel_integer_layers(draw, d):
    """Such layers of int8, each of which may have another zero point."""
    x = d.reshape(_whole(d, 1, 3, 2), 1, 1, 3, 2)
    made = []
    attributes = {
        "pad": (0,) * 4,
        "stride": (1, 1),
        "dilation": (1, 1),
        "acc_type": DType.INT32,
    }
    for _ in range(draw(st.integers(2, 3))):
        weight = literal(d.random.integers(-3, 4, (4, 1, 1, 2)), DType.INT8, np.int8)
        bias = literal(d.random.integers(-3, 4, 4), DType.INT32, np.int32)
        zeros = [
            literal([number], DType.INT8, np.int8)
            for number in (draw(st.integers(0, 2)), 0)
        ]
        y = d.op(tosa.CONV2D, x, weight, bias, *zeros, **attributes)
        heads = d.transpose(d.reshape(y, 1, 3, 2, 2), 0, 2, 1, 3)
        made.append(d.op(tosa.CAST, heads, dtype=DType.FP32))
    return made


@st.composite
def shapes_of_any_size(draw):
    """A function of a size, a number or a symbol, that makes a draft with it in its
    shapes: (draft, outputs).
    """
    kinds = ["rows", "pairs", "flat", "turned", "twice", "cut", "back"]
    steps = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5))
    integers = draw(st.booleans())

    def draft_of(n):
        draft = Draft()
        size = (n, 4)
        value = x = (
            draft.op(tosa.CAST, draft.input(*size, dtype=DType.INT8), dtype=DType.FP32)
            if integers
            else draft.input(*size)
        )
        outputs = []
        for step in steps:
            if step in ("rows", "pairs", "flat", "back"):
                shape = {
                    "rows": (2, n, 2),
                    "pairs": (n * 2, 2),
                    "flat": (1, n * 4, 1),
                    "back": size,
                }[step]
                operand = value if math.prod(value.shape) == math.prod(x.shape) else x
                value = draft.op(tosa.RESHAPE, operand, shape_value(shape))
            elif step == "turned":
                value = draft.transpose(value, *reversed(range(value.rank)))
            elif step == "twice":
                value = draft.op(tosa.CONCAT, value, value, axis=0)
            else:
                flat = draft.op(tosa.RESHAPE, x, shape_value((n * 4,)))
                outputs.append(
                    draft.op(tosa.SLICE, flat, sizes((3,)), shape_value((n * 4 - 3,)))
                )
        return draft, [value, *outputs]

    return draft_of


PATTERNS = {
    "sink_transposes": {
        "many axes": (many_axes, (FP,)),
        "indices": (indices, (FP, BOTH)),
        "scales of channels": (scaled_channels, (BOTH,)),
        "layer behind a transposition": (layer_behind_a_transposition, (FP,)),
        "repeated matrices": (repeated_matrices, (FP,)),
        "parallel layers": (parallel_layers, (FP,)),
        "parallel integer layers": (parallel_integer_layers, (BOTH,)),
    },
    "fold_pads": {"padded convolution": (padded_convolution, (FP,))},
    "transpose_products": {
        "transposed product": (transposed_product, ("TOSA-1.1+FP", "TOSA-1.1+FP", FP))
    },
    "drop_dead": {"variables": (variables, ("TOSA-1.0+FP+variable",))},
    "fold_affine": {
        "scaled convolution": (scaled_convolution, (FP,)),
        "integer convolution": (integer_convolution, (BOTH,)),
    },
    "merge_equal": {"twins": (twins, (FP,)), "clamps": (clamps, (FP,))},
    "narrow_constants": {"scaled integers": (scaled_integers, (BOTH,))},
}
"""Pass -> what it is about -> a function that draws it, (draw, draft) -> values, and
targets.
"""

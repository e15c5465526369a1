"""Rule -> the change that breaks it."""

from __future__ import annotations

from delegraph_tosa.ir import operators as ops
from delegraph_tosa.ir.graph import Value
from delegraph_tosa.ir.types import Type

from . import blocks, general, single, windows
from .changing import I32, Change, again, both, of_shape, of_shapes, only
from .single import I8

LARGE = (1 << 62, 1 << 62)
BREAKS: dict[str, Change] = {
    "operand-count": general.an_operand_less,
    "attribute-type": general.no_attribute,
    "result-type": general.a_larger_result,
    "data-types": general.another_type,
    "constant-operand": both(
        general.at_runtime, blocks.gathered(count=Value(Type((1,), I32)))
    ),
    "size-positive": both(
        general.of_size_0, single.resized(offset=(3, 0)), blocks.reshaped(0, 64)
    ),
    "size-known": general.of_unknown_size,
    "level-rank": both(general.seven_axes, blocks.seven_axes),
    "level-tensor-size": general.of_two_gibibytes,
    "level-shape-length": general.seventeen_entries,
    "level-list-length": general.sixty_five,
    "level-kernel": windows.too_large("kernel", "pad", "out_pad", "dilation"),
    "level-stride": windows.too_large("stride"),
    "level-scale": single.large_scale,
    "rank": both(general.another_rank, blocks.gathered((1, 2, 4))),
    "entry-count": general.an_entry_less,
    "single-element": both(
        general.two_elements, blocks.gathered(count=blocks.TWO_COUNTS)
    ),
    "list-not-empty": general.none_at_all,
    "constant-shape": general.not_at_hand,
    "axis": general.beside_the_axes,
    "same-rank": general.another_rank_than_the_first,
    "same-shape": only(
        ops.FFT2D, lambda op: iter([again(op, {1: of_shape(op.input_imag, (1, 4, 4))})])
    ),
    "broadcast": general.no_broadcast,
    "zero-point": both(
        general.a_zero_point, only(ops.RESCALE, single.zero_of_unsigned)
    ),
    "exact-division": windows.inexact,
    "batch": both(general.another_batch, blocks.gathered((3, 4))),
    "channels": both(windows.other_channels, blocks.other_channels),
    "bias": windows.other_bias,
    "pad": windows.negative_pad,
    "pad-below-kernel": windows.pad_of_the_kernel,
    "out-pad": windows.out_pad_of_the_kernel,
    "stride": windows.below_1("stride"),
    "dilation": windows.below_1("dilation"),
    "kernel": windows.below_1("kernel"),
    "clamp-order": only(ops.CLAMP, lambda op: iter([again(op, min_val=7)])),
    "shift-range": only(ops.MUL, single.shift_of_64),
    "shift-type": only(ops.MUL, single.shift_of_other_types),
    "table-size": only(
        ops.TABLE, lambda op: iter([again(op, {1: of_shape(op.table, (100,))})])
    ),
    "power-of-two": single.not_powers,
    "matmul-shapes": both(single.other_columns, blocks.other_batches),
    "concat-shapes": only(ops.CONCAT, single.concat_of_others),
    "element-count": both(of_shapes(ops.RESHAPE, shape=(3, 3)), blocks.reshaped(4, 64)),
    "slice-inside": single.beyond_the_input,
    "perms": only(
        ops.TRANSPOSE,
        lambda op: (
            again(op, perms=p) for p in ((0, 1), (0, 1, 1), (0, 1, 3), (-1, 0, 1))
        ),
    ),
    "scatter-input": only(ops.SCATTER, single.other_input),
    "row-count": both(
        only(ops.ROW_GATHER, single.no_rows), blocks.gathered(count=blocks.NO_ROWS)
    ),
    "scale": windows.below_1("scale"),
    "scale-numerator": single.resized(scale=(2049, 9, 2049, 9)),
    "downscale": both(
        single.resized(scale=(1, 16, 1, 1)), single.resized(scale=(1, 1, 1, 16))
    ),
    "offset": both(
        single.resized(offset=(-6, 0), border=(0, 0)), single.resized(offset=(0, -6))
    ),
    "border": both(single.resized(border=(4, 0)), single.resized(border=(0, 4))),
    "image-size": single.wide_image,
    "per-channel": only(ops.RESCALE, single.rank_0_per_channel),
    "channel-count": only(ops.RESCALE, single.other_channel_counts),
    "scale-type": only(ops.RESCALE, single.wrong_scale_type),
    "scale32": only(ops.RESCALE, single.wide_scale),
    "double-round": only(ops.RESCALE, single.narrow_double_round),
    "unsigned-once": single.rescaled(
        (I8, I8), input_unsigned=True, output_unsigned=True
    ),
    "unsigned-input": both(
        single.rescaled((I32, I8), input_unsigned=True),
        single.rescaled((I8, I32), input_unsigned=True),
    ),
    "unsigned-output": both(
        single.rescaled((I32, I8), output_unsigned=True),
        single.rescaled((I8, I32), output_unsigned=True),
    ),
    "blocks": blocks.no_whole_blocks,
    "block-size": blocks.blocks_of_one,
    "scale-shape": blocks.other_scales,
    "list-length": blocks.other_blocks,
    "shape-range": both(
        of_shapes(
            ops.MOD_SHAPE, ops.DIV_CEIL_SHAPE, ops.DIV_FLOOR_SHAPE, input2=(0, 1)
        ),
        of_shapes(
            ops.MOD_SHAPE, ops.DIV_CEIL_SHAPE, ops.DIV_FLOOR_SHAPE, input1=(-1, 1)
        ),
        of_shapes(ops.EXP2_SHAPE, input=(63,)),
        of_shapes(ops.LOG2_CEIL_SHAPE, ops.LOG2_FLOOR_SHAPE, input=(0,)),
    ),
    "shape-overflow": both(
        of_shapes(ops.ADD_SHAPE, ops.MUL_SHAPE, input1=LARGE, input2=LARGE),
        of_shapes(ops.SUB_SHAPE, input1=LARGE, input2=tuple(-n for n in LARGE)),
    ),
    "shapes-equal": of_shapes(ops.ASSERT_EQUAL_SHAPE, input1=(2, 3), input2=(2, 4)),
}
"""Rule -> how an operator is changed to break it."""
UNWRITABLE = {
    # whose results have the types that are declared
    *{("result-type", "CUSTOM"), ("result-type", "VARIABLE_READ")},
    # operands say what is written
    *{("operand-count", name) for name in ("VARIABLE", "VARIABLE_READ", "CLAMP")},
}
"""Rules and operators that no file can break."""
NEVER_WRITTEN = {
    # files have the schema's types and operators
    *{"attribute-type", "constant-shape", "operator-known"},
    # the writer names what it knows, each value differently
    *{"operand-defined", "distinct-names"},
    "variable-declared",  # by a tensor, which stands before everything
}
"""Rules that only graphs in memory can break."""

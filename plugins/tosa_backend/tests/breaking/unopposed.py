"""What our validator refuses and neither tosa-opt nor the reference model does, with the specification's words."""

from __future__ import annotations

UNOPPOSED: dict[str, tuple[frozenset[str], str]] = {
    "shape-range": (
        frozenset({"MOD_SHAPE", "DIV_CEIL_SHAPE", "DIV_FLOOR_SHAPE"}),
        "Operation Function: REQUIRE(input1[index] >= 0), REQUIRE(input2[index] >= 1), without which the graph is "
        "unpredictable",
    ),
    "shape-overflow": (
        frozenset({"ADD_SHAPE", "SUB_SHAPE", "MUL_SHAPE"}),
        "Operation Function: apply_add_s, apply_sub_s and apply_mul_s, which REQUIRE a result within the bounds of its "
        "type, and entries of shapes have 64 bits",
    ),
    "shapes-equal": (
        frozenset({"ASSERT_EQUAL_SHAPE"}),
        "Operation Function: ERROR_IF(input1[index] != input2[index]), with a 1 excepted if allow_broadcast",
    ),
    "result-type": (
        frozenset({"AVG_POOL2D_ADAPTIVE", "MAX_POOL2D_ADAPTIVE"}),
        "Operation Function: ERROR_IF(OH != idiv_check(IH + pad_top + pad_bottom - kernel_y, stride_y) + 1) and the "
        "same of OW",
    ),
    "profile": (
        frozenset({"RESHAPE_BLOCK_SCALED"}),
        "Supported Data Types: int8 with PRO-INT",
    ),
    "data-types": (
        frozenset({"RESHAPE_BLOCK_SCALED"}),
        "Supported Data Types: no row has value and scale of these types",
    ),
    "operator-version": (
        frozenset({"RESHAPE_BLOCK_SCALED"}),
        "Supported Data Types of the 1.1 draft: the operator was added in 1.1",
    ),
}
"""Rule -> operators and words."""

"""The rules that a graph can break, with sections of the specification.

Sections are given by name, because their numbers change from draft to draft. A rule of
an operator is under one of the headings of the operator's own section.
"""

from __future__ import annotations

from typing import NamedTuple

ARGUMENTS = "Arguments"
FUNCTION = "Operation Function"
CONSTANTS = "Compile Time Constant Status"
DATA_TYPES = "Supported Data Types"
OF_OPERATORS = frozenset({ARGUMENTS, FUNCTION, CONSTANTS, DATA_TYPES})
"""Headings in the section of an operator.

All other sections are sections of their own.
"""


class Rule(NamedTuple):
    """A rule: its ``meaning``, and its ``section`` of the specification."""

    section: str
    meaning: str


RULES: dict[str, Rule] = {
    # of graphs
    "input-once": Rule("Operator Graphs", "no value is in the list of inputs twice"),
    "input-from-outside": Rule(
        "Operator Graphs", "an input is neither a constant nor a result"
    ),
    "shape-inside": Rule(
        "Operator Arguments", "a shape does not cross the boundary of a graph"
    ),
    "operand-defined": Rule(
        "Operator Graphs", "operands and outputs are defined before they are used"
    ),
    "result-once": Rule(
        "Operator Graphs", "a value is the result of one operator, once"
    ),
    "distinct-names": Rule(
        "Operator Graphs", "inputs and outputs have names of their own"
    ),
    "operator-known": Rule("Operators", "the operator is one of TOSA"),
    # of every operator
    "operand-count": Rule(ARGUMENTS, "there are as many operands as arguments"),
    "attribute-type": Rule(ARGUMENTS, "attributes have their type and range"),
    "result-count": Rule(ARGUMENTS, "there are as many results as arguments"),
    "result-type": Rule(
        ARGUMENTS, "results have the shapes and types that follow from the operands"
    ),
    "operator-version": Rule("Operators", "the version of the target has the operator"),
    "data-types": Rule(
        DATA_TYPES, "the version of the target has this combination of element types"
    ),
    "profile": Rule(
        DATA_TYPES,
        "the target has a profile or extension that allows these element types",
    ),
    "constant-operand": Rule(CONSTANTS, "the operand is a compile-time constant"),
    "size-positive": Rule("Tensors", "sizes are at least 1"),
    "size-known": Rule(
        "Tensors",
        "sizes are known at compile time where the version or the operator requires"
        " them",
    ),
    "level-rank": Rule("Levels", "ranks do not exceed MAX_RANK"),
    "level-tensor-size": Rule(
        "Levels", "tensors take less than 2**MAX_LOG2_SIZE bytes"
    ),
    "level-shape-length": Rule("Levels", "shapes have at most MAX_SHAPE_LEN entries"),
    "level-list-length": Rule(
        "Levels", "lists have at most MAX_TENSOR_LIST_SIZE tensors"
    ),
    "level-kernel": Rule(
        "Levels", "kernels, padding and the like do not exceed MAX_KERNEL"
    ),
    "level-stride": Rule("Levels", "strides do not exceed MAX_STRIDE"),
    "level-scale": Rule("Levels", "factors of RESIZE do not exceed MAX_SCALE"),
    "level-nesting": Rule(
        "Levels", "graphs are nested less than MAX_NESTING deep, the program counted"
    ),
    # shared by several operators
    "rank": Rule(ARGUMENTS, "the operand has the rank that the operator wants"),
    "entry-count": Rule(
        ARGUMENTS,
        "an attribute or shape has the number of entries that the operator wants",
    ),
    "single-element": Rule(ARGUMENTS, "the operand has shape [1]"),
    "list-not-empty": Rule(ARGUMENTS, "a list has at least one element"),
    "constant-shape": Rule(ARGUMENTS, "a shape operand is known"),
    "axis": Rule(FUNCTION, "the axis is inside the rank"),
    "same-rank": Rule(FUNCTION, "operands have one rank"),
    "same-shape": Rule(FUNCTION, "operands have one shape"),
    "broadcast": Rule(FUNCTION, "sizes are equal or 1"),
    "zero-point": Rule(
        FUNCTION, "zero points are 0 where the element type requires it"
    ),
    "exact-division": Rule(FUNCTION, "windows end exactly at the edge (idiv_check)"),
    "batch": Rule(FUNCTION, "operands have one batch size"),
    # of windows: convolution and pooling
    "channels": Rule(ARGUMENTS, "weight and input have the same channels"),
    "bias": Rule(FUNCTION, "the bias has one element, or one for each output channel"),
    "pad": Rule(FUNCTION, "padding is not negative"),
    "pad-below-kernel": Rule(FUNCTION, "padding is smaller than the kernel"),
    "out-pad": Rule(
        FUNCTION, "negative output padding removes less than the size of the kernel"
    ),
    "stride": Rule(FUNCTION, "strides are at least 1"),
    "dilation": Rule(FUNCTION, "dilations are at least 1"),
    "kernel": Rule(FUNCTION, "kernels are at least 1"),
    # of single operators
    "clamp-order": Rule(FUNCTION, "min_val does not exceed max_val"),
    "shift-range": Rule(FUNCTION, "the shift is 0 to 63"),
    "shift-type": Rule(FUNCTION, "the shift is 0 unless the element type is int32"),
    "table-size": Rule(ARGUMENTS, "the table has 256 or 513 elements"),
    "power-of-two": Rule(FUNCTION, "sizes are powers of two"),
    "matmul-shapes": Rule(
        ARGUMENTS, "batches are equal, and a row of A is as long as a column of B"
    ),
    "concat-shapes": Rule(FUNCTION, "tensors differ along the axis only"),
    "element-count": Rule(FUNCTION, "a new shape has as many elements"),
    "slice-inside": Rule(FUNCTION, "a slice lies inside its operand"),
    "perms": Rule(FUNCTION, "perms is a permutation of the axes"),
    "scatter-input": Rule(
        ARGUMENTS, "input has the shape that indices and values_in require"
    ),
    "row-count": Rule(FUNCTION, "row_count is at least 1"),
    "scale": Rule(FUNCTION, "factors of RESIZE are positive"),
    "scale-numerator": Rule(FUNCTION, "numerators of RESIZE are at most 2048"),
    "downscale": Rule(FUNCTION, "RESIZE shrinks less than 16 times"),
    "offset": Rule(FUNCTION, "offsets of RESIZE are within their bounds"),
    "border": Rule(FUNCTION, "borders of RESIZE are within their bounds"),
    "image-size": Rule(FUNCTION, "images have less than 16384 rows and columns"),
    "per-channel": Rule(FUNCTION, "scales for each channel need a channel axis"),
    "channel-count": Rule(ARGUMENTS, "there is one scale, or one for each channel"),
    "scale-type": Rule(
        ARGUMENTS, "multipliers have the element type that scale32 requires"
    ),
    "scale32": Rule(FUNCTION, "int48 goes with 16-bit scales"),
    "double-round": Rule(FUNCTION, "double rounding goes with 32-bit scales"),
    "unsigned-once": Rule(FUNCTION, "input or output is unsigned, not both"),
    "unsigned-input": Rule(FUNCTION, "the element types allow an unsigned input"),
    "unsigned-output": Rule(FUNCTION, "the element types allow an unsigned output"),
    # of block-scaled operators
    "blocks": Rule(FUNCTION, "the last axis is made of whole blocks"),
    "block-size": Rule(FUNCTION, "a block has more than one element"),
    "scale-shape": Rule(
        ARGUMENTS, "a scale has the shape of its data, with blocks in place of elements"
    ),
    "list-length": Rule(
        ARGUMENTS,
        "blocks of one element are one tensor, larger ones come with their scale",
    ),
    # of other operators on block-scaled tensors
    "block-start": Rule(FUNCTION, "a slice starts where a block does"),
    "block-axis": Rule(FUNCTION, "the axis of blocks remains the last one"),
    "block-mode": Rule(
        FUNCTION, "block-scaled images are resized to the nearest element"
    ),
    # of shape operators
    "shape-range": Rule(
        FUNCTION, "entries are in the range that the operator is defined for"
    ),
    "shape-overflow": Rule(FUNCTION, "entries fit 64 bits"),
    "shapes-equal": Rule(FUNCTION, "shapes that are asserted to be equal are equal"),
    # of control flow and variables
    "condition": Rule(FUNCTION, "a condition is one BOOL element"),
    "body-inputs": Rule(FUNCTION, "graphs take the tensors that they are given"),
    "body-outputs": Rule(
        FUNCTION, "graphs return the tensors that are expected of them"
    ),
    "variable-declared": Rule(
        FUNCTION, "a variable is declared before it is read or written"
    ),
    "variable-once": Rule(FUNCTION, "a variable is declared once"),
    "variable-type": Rule(
        FUNCTION, "a variable is read and written in its own shape and type"
    ),
}
"""Name of a rule -> its section and meaning. Every violation has such a name."""


def section(rule: str, operator: str | None) -> str:
    """Return the section of a rule for an operator: ``CONV2D, Operation Function``.

    If ``operator`` is None, the rule is about a constant: ``CONST, ...``.
    """
    heading = RULES[rule].section if rule in RULES else FUNCTION
    if heading not in OF_OPERATORS:
        return heading
    return f"{operator or 'CONST'}, {heading}"

"""Which TOSA operators the device has. The rules of TOSA ask before they make one, so what is accepted can be compiled.

An operator of PyTorch is taken if all the TOSA operators that it becomes are. The limits of your device go here.
"""

from __future__ import annotations

from delegraph_tosa import DType, Operator, narrow

OPERATORS = ("ADD", "CLAMP", "CONV2D", "MATMUL", "MAXIMUM", "MINIMUM", "MUL", "RESHAPE", "SUB", "TRANSPOSE")
"""Linear layers are a CONV2D, and relu is a CLAMP."""
MOVES = ("CONST", "CONST_SHAPE")
"""What every device needs: constants."""
TYPES = (DType.FP32, DType.SHAPE, DType.INT8)
"""INT8 is the shift of a MUL, SHAPE that of a RESHAPE."""


def why_not(operator: Operator) -> str | None:
    """Why the device does not take this operator; None if it does. Users read the reason in their report."""
    if operator.name == "IDENTITY":
        return None  # of any type: a value that leaves a part as it came or a second time, which no rule asks about
    if operator.name not in (*OPERATORS, *MOVES):
        return f"acme-npu has no {operator.name}"
    for value in (*operator.inputs, *operator.outputs):
        if value.dtype not in TYPES:
            return f"acme-npu computes in fp32, not in {value.dtype.name.lower()}"
        if any(size < 0 for size in value.type.declared):
            return "acme-npu has fixed sizes"
    return None


WORD = "acme-npu".replace("-", "")
"""The word of TOSA's targets that stands for the device: TOSA-1.0+FP+WORD."""
narrow(WORD, why_not)

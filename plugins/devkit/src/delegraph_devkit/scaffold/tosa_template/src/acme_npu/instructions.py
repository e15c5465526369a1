"""Which TOSA operators the device has. The rules of TOSA ask before they make one, so what is accepted can be compiled.

An operator of PyTorch is taken if all the TOSA operators that it becomes are. The limits of your device go here.
"""

from __future__ import annotations

from delegraph_tosa import DType, Operator, narrow

OPERATORS = ("ADD", "CLAMP", "CONV2D", "IDENTITY", "MATMUL", "MAXIMUM", "MINIMUM", "MUL", "RESHAPE", "SUB", "TRANSPOSE")
"""Linear layers are a CONV2D, relu is a CLAMP, and a value that leaves a part as it came is an IDENTITY."""


def why_not(operator: Operator) -> str | None:
    """Why the device does not take this operator; None if it does. Users read the reason in their report."""
    if operator.name in ("CONST", "CONST_SHAPE"):
        return None
    if operator.name not in OPERATORS:
        return f"acme-npu has no {operator.name}"
    for value in (operator.inputs[0], *operator.outputs):  # others may be a shape, or the shift of a MUL
        if value.dtype is not DType.FP32:
            return f"acme-npu computes in fp32, not in {value.dtype}"
        if value.type.is_dynamic:
            return "acme-npu has fixed sizes"
    return None


WORD = "acme-npu".replace("-", "")
"""The word of TOSA's targets that stands for the device: TOSA-1.0+FP+WORD."""
narrow(WORD, why_not)

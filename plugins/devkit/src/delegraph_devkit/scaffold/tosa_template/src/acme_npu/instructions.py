"""Lists the TOSA operators of the device, and refuses others. Replace the operators and limits by yours.

The backend takes an operator of PyTorch if the device has all the TOSA operators that it becomes.
"""

from __future__ import annotations

from delegraph_tosa import DType, Operator, narrow

OPERATORS = ("ADD", "CLAMP", "CONV2D", "IDENTITY", "MATMUL", "MAXIMUM", "MINIMUM", "MUL", "RESHAPE", "SUB", "TRANSPOSE")
"""Linear layers are a CONV2D, relu is a CLAMP, and a part returns an unchanged input by an IDENTITY."""


def why_not(operator: Operator) -> str | None:
    """Return why the device does not take this operator, or None. Users read the reason in their report."""
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
"""The word for the device in TOSA targets: TOSA-1.0+FP+WORD."""
narrow(WORD, why_not)

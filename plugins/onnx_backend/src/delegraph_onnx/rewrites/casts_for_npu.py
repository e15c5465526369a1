"""Change conversions that Qualcomm's compiler computes wrongly, for NPUs.

Qualcomm's compiler replaces two conversions in a row by one. So 1.6 that is converted
to int32 and to float32 again stays 1.6, and 3 that is converted to bool and to int32
stays 3. If the operand already is a value of the new type, no conversion changes it.

It also converts uint8 to floats as if it were bool. So uint8 becomes int32 first.
"""

from __future__ import annotations

import onnx_ir as ir

from .graph_writer import GraphWriter


def correct_casts(model: ir.Model) -> None:
    """Convert only whole numbers to integers, 0 and 1 to bool, and int32 to floats."""
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        source = node.inputs[0] if node.op_type == "Cast" else None
        target = node.outputs[0].dtype
        if source is None or source.dtype is None or target is None:
            continue
        writer = GraphWriter(model, node, node.name)
        if target is ir.DataType.BOOL and source.dtype.is_integer():
            sign = writer.add("Sign", [source])
            node.replace_input_with(0, writer.add("Abs", [sign]))
        elif target.is_integer() and source.dtype.is_floating_point():
            whole = writer.add("Floor", [writer.add("Abs", [source])])
            sign = writer.add("Sign", [source])
            node.replace_input_with(0, writer.add("Mul", [sign, whole]))
        elif source.dtype is ir.DataType.UINT8 and target.is_floating_point():
            integers = writer.add("Cast", [source], to=ir.DataType.INT32)
            # without an operator between them, the two conversions become one
            node.replace_input_with(0, writer.add("Abs", [integers]))

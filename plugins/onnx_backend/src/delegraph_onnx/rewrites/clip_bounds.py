"""Give each Clip both of its bounds.

For a missing bound, ONNX Runtime takes the largest finite number: an infinite operand
would become finite.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .graph_writer import add_constant


def bound_clips(model: ir.Model) -> None:
    """Make missing bounds of Clip infinite."""
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        value = node.inputs[0] if node.op_type == "Clip" else None
        if value is None or value.dtype is None or not value.dtype.is_floating_point():
            continue
        node.resize_inputs(3)
        # input 1 is the lower bound, input 2 the upper one
        for index, infinity in ((1, -np.inf), (2, np.inf)):
            if node.inputs[index] is None:
                bound = np.array(infinity, value.dtype.numpy())
                node.replace_input_with(index, add_constant(model, "bound", bound))

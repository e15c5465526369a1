"""Emit Python's operators on numbers that are computed at run time, such as sizes."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import Node

from ..kernels import why_not
from .graph_emitter import GraphEmitter, Result, unsupported
from .method_values import scalar_value

PRIM = "executorch_prim"
SYMBOLIC: dict[Any, tuple[str, str]] = {
    operator.add: ("add", "Scalar"),
    operator.sub: ("sub", "Scalar"),
    operator.mul: ("mul", "Scalar"),
    operator.floordiv: ("floordiv", "Scalar"),
    operator.truediv: ("truediv", "Scalar"),
    operator.mod: ("mod", "Scalar"),
    operator.neg: ("neg", "Scalar"),
    operator.eq: ("eq", "Scalar"),
    operator.lt: ("lt", "Scalar"),
    operator.le: ("le", "Scalar"),
    operator.gt: ("gt", "Scalar"),
    operator.ge: ("ge", "Scalar"),
    math.ceil: ("ceil", "Scalar"),
    math.trunc: ("trunc", "Scalar"),
    round: ("round", "Scalar"),
    torch.sym_float: ("sym_float", "Scalar"),
    torch.sym_int: ("sym_int", "Scalar"),
    torch.sym_max: ("sym_max", "Scalar"),
    torch.sym_min: ("sym_min", "Scalar"),
    torch.sym_not: ("sym_not", "Scalar"),
    torch.sym_ite: ("sym_ite", "Scalar"),
    torch.ops.aten.sym_size.int: ("sym_size", "int"),
    torch.ops.aten.sym_numel.default: ("sym_numel", ""),
    torch.ops.aten._local_scalar_dense.default: ("_local_scalar_dense", ""),
    torch.ops.aten.item.default: ("_local_scalar_dense", ""),
}
"""Function -> name and overload of the kernel that computes it."""


def emit_symbolic(emitter: GraphEmitter, node: Node) -> Result:
    """Emit a call of the kernel for an operation on numbers."""
    name, overload = SYMBOLIC[node.target]
    namespace = "aten" if isinstance(node.target, torch._ops.OpOverload) else PRIM
    whole = f"{namespace}::{name}"
    if overload:
        whole = f"{whole}.{overload}"
    if whole not in emitter.context.kernels:
        hint = "name a kernel set that has it (option kernels)"
        raise unsupported(
            node, f"{emitter.context.kernels.runtime} has no kernel {whole}", hint
        )
    if not isinstance(node.meta["val"], (torch.SymInt, torch.SymFloat, torch.SymBool)):
        # Export found that the size is constant.
        return node.meta["val"]  # type: ignore[no-any-return]
    why = why_not(whole, {"self": _val(node.args[0])}, [])
    if why is not None:
        runtime = emitter.context.kernels.runtime
        raise unsupported(
            node, f"the kernel {whole} of {runtime} does not compute this: {why}"
        )
    (result,) = emitter.new_results(node)
    args = [emitter.position(emitter.item(a)) for a in node.args]
    if node.target is operator.mod and isinstance(node.meta["val"], torch.SymInt):
        _emit_remainder(emitter, args, emitter.position(result))
    else:
        emitter.assembler.add_kernel_call(
            f"{namespace}::{name}", overload, [*args, emitter.position(result)]
        )
    return result


def _emit_remainder(emitter: GraphEmitter, operands: list[int], result: int) -> None:
    """Emit ``a % b`` as ``a - b * (a // b)``, which has the sign of ``b`` as in Python.

    ExecuTorch's ``mod`` computes C's remainder, which has the sign of ``a``.
    """
    first, second = operands
    quotient = emitter.position(scalar_value(int))
    product = emitter.position(scalar_value(int))
    call = emitter.assembler.add_kernel_call
    call(f"{PRIM}::floordiv", "Scalar", [first, second, quotient])
    call(f"{PRIM}::mul", "Scalar", [second, quotient, product])
    call(f"{PRIM}::sub", "Scalar", [first, product, result])


def _val(argument: Any) -> Any:
    """Return an argument, or the value that export recorded for a node."""
    return argument.meta.get("val") if isinstance(argument, Node) else argument

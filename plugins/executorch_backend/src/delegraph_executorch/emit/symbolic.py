"""Arithmetic with sizes: Python's operators on numbers that are known at run time only."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch.fx import Node

from ..kernels import why_not
from .body import Body, Result, unsupported
from .values import scalar_value

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
"""Function -> the kernel that computes it."""


def emit_symbolic(body: Body, node: Node) -> Result:
    """Call the kernel for an operation on numbers."""
    name, overload = SYMBOLIC[node.target]
    namespace = "aten" if isinstance(node.target, torch._ops.OpOverload) else PRIM
    whole = f"{namespace}::{name}" + (f".{overload}" if overload else "")
    if whole not in body.context.kernels:
        hint = "name a kernel set that has it (option kernels)"
        raise unsupported(
            node, f"{body.context.kernels.runtime} has no kernel {whole}", hint
        )
    if not isinstance(node.meta["val"], (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return node.meta["val"]  # type: ignore[no-any-return]  # a size that export found to be fixed
    why = why_not(whole, {"self": _val(node.args[0])}, [])
    if why is not None:
        raise unsupported(
            node,
            f"the kernel {whole} of {body.context.kernels.runtime} does not compute"
            f" this: {why}",
        )
    (result,) = body.new_results(node)
    args = [body.position(body.item(a)) for a in node.args]
    if node.target is operator.mod and isinstance(node.meta["val"], torch.SymInt):
        _emit_remainder(body, args, body.position(result))
    else:
        body.assembler.kernel(
            f"{namespace}::{name}", overload, [*args, body.position(result)]
        )
    return result


def _emit_remainder(body: Body, operands: list[int], result: int) -> None:
    """``a % b`` as ``a - b * (a // b)``: ExecuTorch's own ``mod`` gives C's remainder,
    which has the sign of ``a``.
    """
    first, second = operands
    quotient, product = (body.position(scalar_value(int)) for _ in range(2))
    for name, args in (
        ("floordiv", [first, second, quotient]),
        ("mul", [second, quotient, product]),
        ("sub", [first, product, result]),
    ):
        body.assembler.kernel(f"{PRIM}::{name}", "Scalar", args)


def _val(argument: Any) -> Any:
    return argument.meta.get("val") if isinstance(argument, Node) else argument

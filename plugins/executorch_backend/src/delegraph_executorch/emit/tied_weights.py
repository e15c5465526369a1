"""Products by the transpose of a weight that the file has anyway: they read the weight
as it is.

A head that is tied to the embedding multiplies by its transpose, which is another
constant of the same size. The kernel of ``linear`` takes the weight itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from delegraph_programs import constant_placeholders, constant_tensor, placeholders
from torch.export import ExportedProgram
from torch.fx import Node

from ..kernels import KernelSet

aten = torch.ops.aten
_TRANSPOSES = frozenset({aten.permute.default, aten.transpose.int, aten.t.default})
_KERNEL = "aten::linear.out"
_Memory = tuple[int, torch.dtype, tuple[int, ...]]
"""Where a contiguous tensor is: address, type and shape."""


def use_tied_weights(programs: Collection[ExportedProgram], kernels: KernelSet) -> None:
    """Replace ``mm(x, weight.T)`` and ``addmm(bias, x, weight.T)`` by ``linear`` if
    something else reads the weight.

    That may be another method. A parameter may also be the transpose of another one in
    the same memory. Changes ``programs``.
    """
    if _KERNEL not in kernels:
        return
    read = {
        _memory(tensor) for program in programs for tensor in _read_as_they_are(program)
    }
    for program in programs:
        _use_weights(program, read)


def _use_weights(program: ExportedProgram, read: Collection[_Memory]) -> None:
    """Replace the products of one program. ``read``: the weights that some program
    reads as they are.
    """
    tensors = _constants(program)
    for node in list(program.graph.nodes):
        product = _product(node)
        weight = None if product is None else _tied_weight(product[1], tensors, read)
        if product is None or weight is None:
            continue
        x, matrix, bias = product
        with program.graph.inserting_before(node):
            new = program.graph.call_function(aten.linear.default, (x, weight, bias))
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        program.graph.erase_node(node)
        if matrix.op == "call_function" and not matrix.users:
            program.graph.erase_node(matrix)


def _constants(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """The placeholders of weights that never change, with their tensors."""
    constant = constant_placeholders(program)
    return {
        n: constant_tensor(program, spec)
        for n, spec in placeholders(program)
        if n in constant
    }


def _read_as_they_are(program: ExportedProgram) -> Iterator[torch.Tensor]:
    """The contiguous weights that something reads otherwise than through a transpose."""
    for node, tensor in _constants(program).items():
        if tensor.is_contiguous() and any(
            user.target not in _TRANSPOSES for user in node.users
        ):
            yield tensor


def _memory(tensor: torch.Tensor) -> _Memory:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape)


def _product(node: Node) -> tuple[Node, Node, Node | None] | None:
    """The operand, matrix and bias of a product of matrices; None for any other call."""
    args: Any = node.args
    if node.target is aten.mm.default:
        return args[0], args[1], None
    is_plain = node.target is aten.addmm.default and not node.kwargs and len(args) == 3
    if is_plain and args[0].meta["val"].dim() == 1:
        return args[1], args[2], args[0]
    return None


def _tied_weight(
    matrix: Node, tensors: Mapping[Node, torch.Tensor], read: Collection[_Memory]
) -> Node | None:
    """The weight whose transpose ``matrix`` is, if something reads that weight as it
    is; else None.
    """
    if (
        matrix.target in _TRANSPOSES
        and matrix.args[0] in tensors
        and matrix.meta["val"].dim() == 2
    ):
        weight = matrix.args[0]
        assert isinstance(weight, Node)
        return weight if _memory(tensors[weight]) in read and _swaps(matrix) else None
    tensor = tensors.get(matrix)
    if (
        tensor is None
        or tensor.dim() != 2
        or tensor.is_contiguous()
        or not tensor.mT.is_contiguous()
    ):
        return None
    wanted = _memory(tensor.mT)
    return next(
        (n for n, t in tensors.items() if t.is_contiguous() and _memory(t) == wanted),
        None,
    )


def _swaps(transpose: Node) -> bool:
    """Whether a call exchanges the two dimensions of its operand."""
    if transpose.target is aten.t.default:
        return True
    dims: Any = (
        transpose.args[1]
        if transpose.target is aten.permute.default
        else transpose.args[1:]
    )
    return [dim % 2 for dim in dims] == [1, 0] or (
        transpose.target is aten.transpose.int
        and sorted(dim % 2 for dim in dims) == [0, 1]
    )

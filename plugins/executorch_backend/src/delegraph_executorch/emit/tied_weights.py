"""Multiply by the transpose of a weight without storing the transpose.

A language model's head may be tied to the embedding: it multiplies by the transposed
embedding weight. The file would store the transpose as a second constant of the same
size. The kernel of ``linear`` reads the weight itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from delegraph_programs import constant_placeholders, constant_tensor, placeholders
from torch.export import ExportedProgram
from torch.fx import Node

from ..kernels import KernelSet

aten = torch.ops.aten
_TRANSPOSES = frozenset({aten.permute.default, aten.transpose.int, aten.t.default})
_KERNEL = "aten::linear.out"


class _Memory(NamedTuple):
    """The memory of a contiguous tensor."""

    address: int
    dtype: torch.dtype
    shape: tuple[int, ...]


class _Product(NamedTuple):
    """A product of two matrices, plus a bias."""

    x: Node
    matrix: Node
    bias: Node | None


def use_tied_weights(programs: Collection[ExportedProgram], kernels: KernelSet) -> None:
    """Replace ``mm(x, weight.T)`` and ``addmm(bias, x, weight.T)`` by ``linear``.

    Only if something else reads the weight itself, in any of the methods. The parameter
    may also be a transposed view of another one. Changes ``programs``.
    """
    if _KERNEL not in kernels:
        return
    read = {
        _memory(tensor) for program in programs for tensor in _read_as_they_are(program)
    }
    for program in programs:
        _use_weights(program, read)


def _use_weights(program: ExportedProgram, read: Collection[_Memory]) -> None:
    """Replace the products of one program; ``read`` are weights that are read as is."""
    tensors = _constants(program)
    for node in list(program.graph.nodes):
        product = _product(node)
        if product is None:
            continue
        matrix = product.matrix
        weight = _tied_weight(matrix, tensors, read)
        if weight is None:
            continue
        args = (product.x, weight, product.bias)
        with program.graph.inserting_before(node):
            new = program.graph.call_function(aten.linear.default, args)
        new.meta = dict(node.meta)
        node.replace_all_uses_with(new)
        program.graph.erase_node(node)
        if matrix.op == "call_function" and not matrix.users:
            program.graph.erase_node(matrix)


def _constants(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """Return the placeholders of constant weights, with their tensors."""
    constant = constant_placeholders(program)
    return {
        n: constant_tensor(program, spec)
        for n, spec in placeholders(program)
        if n in constant
    }


def _read_as_they_are(program: ExportedProgram) -> Iterator[torch.Tensor]:
    """Yield the contiguous weights that something reads without a transpose."""
    for node, tensor in _constants(program).items():
        if tensor.is_contiguous() and any(
            user.target not in _TRANSPOSES for user in node.users
        ):
            yield tensor


def _memory(tensor: torch.Tensor) -> _Memory:
    return _Memory(tensor.data_ptr(), tensor.dtype, tuple(tensor.shape))


def _product(node: Node) -> _Product | None:
    """Return the operands of a matrix product; None for other calls."""
    args: Any = node.args
    if node.target is aten.mm.default:
        return _Product(args[0], args[1], None)
    is_plain = node.target is aten.addmm.default and not node.kwargs and len(args) == 3
    if is_plain and args[0].meta["val"].dim() == 1:
        return _Product(args[1], args[2], args[0])
    return None


def _tied_weight(
    matrix: Node, tensors: Mapping[Node, torch.Tensor], read: Collection[_Memory]
) -> Node | None:
    """Return the weight that ``matrix`` transposes, if the weight is read as is."""
    if matrix.target in _TRANSPOSES:
        weight = matrix.args[0]
        if not isinstance(weight, Node) or weight not in tensors:
            return None
        is_tied = _memory(tensors[weight]) in read and _swaps_dimensions(matrix)
        return weight if is_tied else None
    tensor = tensors.get(matrix)
    if tensor is None or tensor.dim() != 2 or tensor.is_contiguous():
        return None
    # The parameter may be a transposed view of another one.
    for node, other in tensors.items():
        if (
            tensor.mT.is_contiguous()
            and other.is_contiguous()
            and _memory(other) == _memory(tensor.mT)
        ):
            return node
    return None


def _swaps_dimensions(transpose: Node) -> bool:
    """Return whether a call exchanges the two dimensions of a matrix."""
    weight: Any = transpose.args[0]
    if weight.meta["val"].dim() != 2:
        return False
    if transpose.target is aten.t.default:
        return True
    dims: Any = transpose.args[1:]
    if transpose.target is aten.permute.default:
        [order] = dims
        return [dim % 2 for dim in order] == [1, 0]
    first, second = dims
    return bool(first % 2 != second % 2)

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
    """The operands of ``x @ matrix + bias``."""

    x: Node
    matrix: Node
    bias: Node | None


def use_tied_weights(programs: Collection[ExportedProgram], kernels: KernelSet) -> None:
    """Replace ``mm(x, weight.T)`` and ``addmm(bias, x, weight.T)`` by ``linear``.

    A product is replaced only if a method also reads the weight without a transpose.
    The matrix may also be a parameter that is a transposed view of the weight. Changes
    ``programs``.
    """
    if _KERNEL not in kernels:
        return
    untransposed: set[_Memory] = set()
    for program in programs:
        untransposed.update(map(_memory, _weights_read_untransposed(program)))
    for program in programs:
        _replace_products(program, untransposed)


def _replace_products(
    program: ExportedProgram, untransposed: Collection[_Memory]
) -> None:
    """Replace the products of one program.

    ``untransposed``: the weights that a method reads without a transpose.
    """
    tensors = _constants(program)
    for node in list(program.graph.nodes):
        product = _product(node)
        if product is None:
            continue
        matrix = product.matrix
        weight = _tied_weight(matrix, tensors, untransposed)
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


def _weights_read_untransposed(program: ExportedProgram) -> Iterator[torch.Tensor]:
    """Yield the contiguous weights that a node reads without a transpose."""
    for node, tensor in _constants(program).items():
        is_read = any(user.target not in _TRANSPOSES for user in node.users)
        if is_read and tensor.is_contiguous():
            yield tensor


def _memory(tensor: torch.Tensor) -> _Memory:
    """Return the memory of a tensor, by which equal tensors of programs are found."""
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
    matrix: Node,
    tensors: Mapping[Node, torch.Tensor],
    untransposed: Collection[_Memory],
) -> Node | None:
    """Return the weight that ``matrix`` transposes, if it is also read untransposed."""
    if matrix.target in _TRANSPOSES:
        weight = matrix.args[0]
        if not isinstance(weight, Node) or weight not in tensors:
            return None
        is_tied = _memory(tensors[weight]) in untransposed and _swaps_dimensions(matrix)
        return weight if is_tied else None
    tensor = tensors.get(matrix)
    if tensor is None or tensor.dim() != 2 or tensor.is_contiguous():
        return None
    # The parameter may be a transposed view of another one.
    transpose = tensor.mT
    if not transpose.is_contiguous():
        return None
    for node, other in tensors.items():
        if other.is_contiguous() and _memory(other) == _memory(transpose):
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

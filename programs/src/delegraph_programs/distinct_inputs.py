"""Example inputs that are one tensor: torch.export takes them for one input, whatever
later calls pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from .errors import InputError
from .exported_program import (
    CONSTANT_KINDS,
    constant_tensor,
    flat_arguments,
    placeholders,
    user_inputs,
)
from .input_sizes import input_names

_HINT = (
    "export it with tensors of their own, x and x.clone(); delegraph.lower(module,"
    " inputs) does so itself"
)


def distinct_inputs(inputs: Any, module: torch.nn.Module | None = None) -> Any:
    """``inputs``, in any containers, with a tensor object of its own in each place, for
    an export of ``module``.

    torch.export recognizes tensors by identity. The second of two equal objects would
    replace the first in the program, and an input that is a parameter of the module
    would replace the parameter. Tensors that share memory with each other or with the
    module get memory of their own, since later calls may pass others. So do those whose
    elements share memory, such as expanded ones; they become dense.
    """
    uses = Counter(map(_memory, filter(_is_strided, pytree.tree_leaves(inputs))))
    held = (
        set(map(_memory, filter(_is_strided, _tensors_of(module))))
        if module is not None
        else set()
    )

    def another(tensor: torch.Tensor) -> torch.Tensor:
        """Another object for the same tensor, with the marks that torch keeps on the
        object.
        """
        new = tensor.detach()
        if _is_strided(tensor):
            memory = _memory(tensor)
            if any(
                size > 1 and stride == 0
                for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            ):
                new = new.clone(memory_format=torch.contiguous_format)
            elif uses[memory] > 1 or memory in held:
                new = torch.empty_strided(
                    tensor.shape,
                    tensor.stride(),
                    dtype=tensor.dtype,
                    device=tensor.device,
                )
                new.copy_(tensor.detach())
        if tensor.requires_grad:
            new.requires_grad_()
        for name, value in getattr(tensor, "__dict__", {}).items():
            setattr(new, name, value)
        return new

    return pytree.tree_map_only(torch.Tensor, another, inputs)


def _is_strided(value: Any) -> bool:
    """Whether ``value`` is a plain dense tensor with memory, whose strides say where
    its elements are.
    """
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return (
        value.layout is torch.strided
        and value.device.type != "meta"
        and not value.is_quantized
    )


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors_of(module: torch.nn.Module) -> Iterator[Any]:
    """The parameters, buffers and attributes of a module and its submodules."""
    for each in module.modules():
        yield from each.parameters(recurse=False)
        yield from each.buffers(recurse=False)
        yield from vars(each).values()


def expect_distinct(program: ExportedProgram) -> None:
    """Raise InputError if two inputs of ``program`` were one tensor when it was
    exported.

    The example inputs show it, if they are the objects of the export.
    """
    rows = list(_example_tensors(program))
    _expect_no_parameter(program, rows)
    for name, other_name, tensor, other in _half_used_pairs(rows):
        if tensor is other:
            text = (
                f"inputs {name} and {other_name} were the same tensor when the program"
                " was exported:"
            )
            text += (
                " torch.export took them for one input, and calls with two tensors"
                " would be computed wrongly"
            )
            raise InputError("input-invalid", text, hint=_HINT)


def equal_inputs_note(program: ExportedProgram) -> str | None:
    """A note if an input is not used and its example equals that of another input,
    which may have replaced it.
    """
    for name, other_name, tensor, other in _half_used_pairs(
        list(_example_tensors(program))
    ):
        if _are_equal(tensor, other):
            text = (
                f"input {name} is not used, and its example equals that of"
                f" {other_name}: if both were one tensor at"
            )
            return f"{text} the export, torch.export took them for one input"
    return None


def _half_used_pairs(
    rows: list[tuple[str, Node, torch.Tensor]],
) -> Iterator[tuple[str, str, torch.Tensor, torch.Tensor]]:
    """The pairs of an unused input and a used one: name, other name, example, other
    example.
    """
    for name, node, tensor in rows:
        if not node.users:
            for other_name, other, other_tensor in rows:
                if other.users:
                    yield name, other_name, tensor, other_tensor


def _example_tensors(
    program: ExportedProgram,
) -> Iterator[tuple[str, Node, torch.Tensor]]:
    """Name, placeholder and example of each input that is a tensor."""
    examples: Any = program.example_inputs
    if examples is None:
        return
    nodes = user_inputs(program)
    try:
        flat = flat_arguments(program.call_spec.in_spec, *examples)
    except InputError:
        # examples of another program, such as of one that a transform has changed
        return
    if len(flat) != len(nodes):
        return
    for name, node, value in zip(input_names(program), nodes, flat, strict=True):
        if isinstance(value, torch.Tensor):
            yield name, node, value


def _expect_no_parameter(
    program: ExportedProgram, rows: list[tuple[str, Node, torch.Tensor]]
) -> None:
    """Raise InputError if an input took the place of a parameter, buffer or constant of
    the module.
    """
    unused = [
        (n, s)
        for n, s in placeholders(program)
        if s.kind in CONSTANT_KINDS and not n.users
    ]
    for _, spec in unused:
        constant = constant_tensor(program, spec)
        for name, node, tensor in rows:
            if node.users and _is_same(tensor, constant):
                text = (
                    f"input {name} was {spec.target} of the module itself when the"
                    " program was exported:"
                )
                text += (
                    " torch.export reads the input wherever the module reads"
                    f" {spec.target}"
                )
                raise InputError("input-invalid", text, hint=_HINT)


def _is_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two dense tensors are the same elements of the same memory."""
    if (
        tensor.layout is not torch.strided
        or other.layout is not torch.strided
        or not tensor.numel()
    ):
        return False
    same_form = (
        tensor.dtype is other.dtype
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
    )
    return same_form and tensor.data_ptr() == other.data_ptr()


def _are_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same type and elements."""
    if (
        tensor.layout is not other.layout
        or tensor.device != other.device
        or not tensor.numel()
    ):
        return False
    same_type = tensor.dtype is other.dtype and tensor.shape == other.shape
    return same_type and tensor.layout is torch.strided and torch.equal(tensor, other)

"""Separates example inputs that are one tensor, and finds exports that merged them.

torch.export recognizes tensors by identity: it makes one input of two that are the same
tensor, and calls with two tensors are then computed wrongly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

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
from .input_size_conditions import input_names
from .tensor_bytes import is_dense

_HINT = (
    "export it with tensors of their own, x and x.clone(); delegraph.lower(module,"
    " inputs) does so itself"
)


def distinct_inputs(inputs: Any, module: torch.nn.Module | None = None) -> Any:
    """Return ``inputs`` with a separate tensor object in each place, for an export.

    An input that is a parameter of ``module`` would replace that parameter in the
    program. Tensors that share memory with each other or with the module are copied,
    since later calls may pass others. Tensors with elements that share memory, such as
    expanded ones, become dense.
    """
    dense = filter(is_dense, pytree.tree_leaves(inputs))
    uses = Counter(_memory(tensor) for tensor in dense)
    held: set[int] = set()
    if module is not None:
        held = {_memory(t) for t in _tensors_of(module) if is_dense(t)}

    def another(tensor: torch.Tensor) -> torch.Tensor:
        """Return another object for the tensor, with its attributes."""
        new = tensor.detach()
        if is_dense(tensor):
            memory = _memory(tensor)
            strides = zip(tensor.shape, tensor.stride(), strict=True)
            if any(size > 1 and stride == 0 for size, stride in strides):
                new = new.clone(memory_format=torch.contiguous_format)
            elif uses[memory] > 1 or memory in held:
                copy = torch.empty_strided(
                    new.shape, new.stride(), dtype=new.dtype, device=new.device
                )
                new = copy.copy_(new)
        if tensor.requires_grad:
            new.requires_grad_()
        for name, value in getattr(tensor, "__dict__", {}).items():
            setattr(new, name, value)
        return new

    return pytree.tree_map_only(torch.Tensor, another, inputs)


def _memory(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return int(tensor.untyped_storage()._cdata)


def _tensors_of(module: torch.nn.Module) -> Iterator[Any]:
    """Yield the parameters, buffers and other attributes of a module and its
    submodules.
    """
    for each in module.modules():
        yield from each.parameters(recurse=False)
        yield from each.buffers(recurse=False)
        yield from vars(each).values()


def expect_distinct(program: ExportedProgram) -> None:
    """Raise InputError if two inputs of ``program`` were one tensor at the export.

    The example inputs show it, unless the program was loaded from a file.
    """
    inputs = list(_example_tensors(program))
    _expect_no_parameter(program, inputs)
    for unused, other in _half_used_pairs(inputs):
        if unused.tensor is other.tensor:
            text = (
                f"inputs {unused.name} and {other.name} were the same tensor when the"
                " program was exported: torch.export took them for one input, and calls"
                " with two tensors would be computed wrongly"
            )
            raise InputError("input-invalid", text, hint=_HINT)


def equal_inputs_note(program: ExportedProgram) -> str | None:
    """Return a note if an unused input has the same example as another input.

    torch.export may have taken the two for one input.
    """
    for unused, other in _half_used_pairs(list(_example_tensors(program))):
        if _are_equal(unused.tensor, other.tensor):
            return (
                f"input {unused.name} is not used, and its example equals that of"
                f" {other.name}: if both were one tensor at the export, torch.export"
                " took them for one input"
            )
    return None


class _ExampleTensor(NamedTuple):
    """A tensor input: the caller's name for it, its placeholder and its example."""

    name: str
    node: Node
    tensor: torch.Tensor


def _half_used_pairs(
    inputs: list[_ExampleTensor],
) -> Iterator[tuple[_ExampleTensor, _ExampleTensor]]:
    """Yield (unused input, used input) for each pair that may have been one tensor.

    If torch.export takes two inputs for one, the program uses only one of them.
    """
    used = [other for other in inputs if other.node.users]
    for unused in inputs:
        if not unused.node.users:
            yield from ((unused, other) for other in used)


def _example_tensors(program: ExportedProgram) -> Iterator[_ExampleTensor]:
    """Yield each input that is a tensor, with its example."""
    examples: Any = program.example_inputs
    if examples is None:
        return
    nodes = user_inputs(program)
    try:
        flat = flat_arguments(program.call_spec.in_spec, *examples)
    except InputError:
        return  # a transform has changed the program, and the examples do not fit
    if len(flat) != len(nodes):
        return
    for name, node, value in zip(input_names(program), nodes, flat, strict=True):
        if isinstance(value, torch.Tensor):
            yield _ExampleTensor(name, node, value)


def _expect_no_parameter(
    program: ExportedProgram, inputs: list[_ExampleTensor]
) -> None:
    """Raise InputError if an input replaced a constant or parameter of the module."""
    used_inputs = [example for example in inputs if example.node.users]
    for node, spec in placeholders(program):
        if spec.kind not in CONSTANT_KINDS or node.users:
            continue
        constant = constant_tensor(program, spec)
        for example in used_inputs:
            if _is_same(example.tensor, constant):
                text = (
                    f"input {example.name} was {spec.target} of the module itself when"
                    " the program was exported: torch.export reads the input wherever"
                    f" the module reads {spec.target}"
                )
                raise InputError("input-invalid", text, hint=_HINT)


def _is_same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are the same elements of the same memory."""
    return (
        _have_same_type(tensor, other)
        and tensor.stride() == other.stride()
        and tensor.data_ptr() == other.data_ptr()
    )


def _are_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same type and elements."""
    return _have_same_type(tensor, other) and torch.equal(tensor, other)


def _have_same_type(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors with elements have one dtype, shape and device.

    False for layouts without strides, such as sparse ones.
    """
    if tensor.layout is not torch.strided or other.layout is not torch.strided:
        return False
    same_form = tensor.dtype is other.dtype and tensor.shape == other.shape
    return same_form and tensor.device == other.device and tensor.numel() > 0

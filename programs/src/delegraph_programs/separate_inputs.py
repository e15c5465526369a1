"""Separates example inputs that are one tensor and would become one input."""

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

_HINT = (
    "export it with tensors of their own, x and x.clone(); delegraph.lower(module,"
    " inputs) does so itself"
)


def distinct_inputs(inputs: Any, module: torch.nn.Module | None = None) -> Any:
    """Return ``inputs`` with a separate tensor object in each place, for an export.

    torch.export recognizes tensors by identity. The second of two equal objects would
    replace the first in the program. An input that is a parameter of ``module`` would
    replace that parameter. Tensors that share memory with each other or with the module
    are copied, since later calls may pass others. Tensors with elements that share
    memory, such as expanded ones, become dense.
    """
    strided = filter(_is_strided, pytree.tree_leaves(inputs))
    uses = Counter(_memory(tensor) for tensor in strided)
    held: set[int] = set()
    if module is not None:
        held = {_memory(t) for t in _tensors_of(module) if _is_strided(t)}

    def another(tensor: torch.Tensor) -> torch.Tensor:
        """Return another object for the same tensor, with all marks of torch."""
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
    """Return whether ``value`` is a plain strided tensor with memory."""
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
    """Yield the parameters, buffers and attributes of a module and its submodules."""
    for each in module.modules():
        yield from each.parameters(recurse=False)
        yield from each.buffers(recurse=False)
        yield from vars(each).values()


def expect_distinct(program: ExportedProgram) -> None:
    """Raise InputError if two inputs of ``program`` were one tensor when it was
    exported.

    The example inputs show it, if they are the objects of the export.
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
    """An input that is a tensor: the caller's name, the placeholder and the example."""

    name: str
    node: Node
    tensor: torch.Tensor


def _half_used_pairs(
    inputs: list[_ExampleTensor],
) -> Iterator[tuple[_ExampleTensor, _ExampleTensor]]:
    """Yield each pair of an unused and a used input that may have been one tensor."""
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
        # examples of another program, such as of one that a transform has changed
        return
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
    """Return whether two dense tensors are the same elements of the same memory."""
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
    """Return whether two tensors have the same type and elements."""
    if (
        tensor.layout is not other.layout
        or tensor.device != other.device
        or not tensor.numel()
    ):
        return False
    same_type = tensor.dtype is other.dtype and tensor.shape == other.shape
    return same_type and tensor.layout is torch.strided and torch.equal(tensor, other)

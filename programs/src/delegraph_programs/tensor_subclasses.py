"""Replaces parameters that are tensor subclasses by the plain tensors in them.

Such parameters are, for example, torchao's quantized weights. torch.export keeps one as
a single input of the graph, and reads its parts by calls of a special operator. No file
format has that operator, and the parameter itself has no memory to write to a file.
"""

from __future__ import annotations

import operator

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .errors import InputError
from .exported_program import (
    CONSTANT_KINDS,
    add_constant,
    constant_tensors,
    copy_program,
)
from .source_line import source_of

_READ_PART = torch.ops.export.access_subclass_inner_tensor.default
"""The operator that reads a part: its arguments are a subclass and the part's name."""
_UNWRAP = "torch._functorch._aot_autograd.subclass_parametrization.unwrap_tensor_subclass_parameters(model)"


def unwrap_subclasses(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` with each part of a subclass as a constant of its own.

    The tensors are shared, not copied. Returns ``program`` itself if it has no such
    parameter, otherwise a copy. Raises InputError if a call uses the subclass as a
    whole: the graph does not show the computation, only the code of the subclass does.
    """
    if not _wrapped(program):
        return program
    program = copy_program(program)
    tensors = _wrapped(program)
    # in graph order, because a part may be a subclass and have parts itself
    for node in program.graph.nodes:
        if node.target is _READ_PART and node.args[0] in tensors:
            whole, part = node.args
            tensors[node] = operator.attrgetter(part)(tensors[whole])
    # several calls may read one part: (subclass, name of the part) -> its constant
    constants: dict[tuple[str, str], Node] = {}
    # users first, because a node with users cannot be erased
    for node, tensor in reversed(tensors.items()):
        if node.op == "call_function" and not is_traceable_wrapper_subclass(tensor):
            whole, part = node.args
            key = (str(whole), str(part))
            if key not in constants:
                constants[key] = add_constant(program, tensor.detach(), "_".join(key))
            node.replace_all_uses_with(constants[key])
        for user in node.users:
            raise _used_whole(node, tensor, user)
        program.graph.erase_node(node)
    specs = program.graph_signature.input_specs
    left = {n.name for n in program.graph.nodes if n.op == "placeholder"}
    specs[:] = [s for s in specs if s.kind not in CONSTANT_KINDS or s.arg.name in left]
    return program


def _wrapped(program: ExportedProgram) -> dict[Node, torch.Tensor]:
    """Return placeholder -> tensor, for subclasses that contain other tensors."""
    tensors = constant_tensors(program).items()
    return {n: tensor for n, tensor in tensors if is_traceable_wrapper_subclass(tensor)}


def _used_whole(node: Node, tensor: torch.Tensor, user: Node) -> InputError:
    """Return the error for ``user``, which takes a subclass and not one of its parts."""
    text = (
        f"{node.name} is a {type(tensor).__name__}, and torch.export has not traced the"
        " tensors in it"
    )
    hint = f"call {_UNWRAP} before the export"
    return InputError("input-invalid", text, user, source_of(user), hint)

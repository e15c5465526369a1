"""Write a program as Python that runs without this kit and without OpInfo."""

from __future__ import annotations

import base64
import operator
import textwrap
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from delegraph_programs import constant_tensor, output_node, placeholders
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from .programs import Program

_LISTED = 64
"""The most elements of a tensor that is written as numbers."""
_WIDTH = 110
"""The length of lines of encoded tensors."""
OTHER_INPUTS = (
    "[x.flip(list(range(x.dim()))) if isinstance(x, torch.Tensor) else x for x in"
    " inputs]"
)
"""The expression of ``other_inputs``."""


def other_inputs(inputs: Sequence[Any]) -> list[Any]:
    """Return inputs with other values, which are in the domain of most operators."""
    return [
        x.flip(list(range(x.dim()))) if isinstance(x, torch.Tensor) else x
        for x in inputs
    ]


def listing(program: Program) -> str:
    """Return Python that sets ``model`` and ``inputs``; a comment if that is
    impossible.
    """
    if program.source:
        return program.source
    text = _text(*program.exported) if program.exported is not None else None
    if text is None:
        return f"# {program.name} has parts that are no calls of operators\n"
    return text


def _text(program: ExportedProgram, inputs: Sequence[Any]) -> str | None:
    """Return Python for a program; None if it has subgraphs."""
    constants = []
    lines = []
    names = []
    for node, spec in placeholders(program):
        if spec.kind is InputKind.USER_INPUT:
            names.append(node.name)
        else:
            constants.append(
                f"{node.name} = {tensor_text(constant_tensor(program, spec))}"
            )
    for node in program.graph.nodes:
        if node.op == "get_attr":
            return None
        if node.op == "call_function":
            lines.append(f"{node.name} = {_call(node)}")
    outputs = zip(
        program.graph_signature.output_specs,
        output_node(program.graph).args[0],  # type: ignore[arg-type]
        strict=True,
    )
    returned = [
        _literal(v) for spec, v in outputs if spec.kind is OutputKind.USER_OUTPUT
    ]
    results = returned[0] if len(returned) == 1 else f"({', '.join(returned)})"
    lines.append(f"return {results}")
    leaves = pytree.tree_leaves(tuple(inputs))
    given = ",\n".join(
        tensor_text(v) if isinstance(v, torch.Tensor) else _literal(v) for v in leaves
    )
    body = textwrap.indent("\n".join(lines), " " * 8)
    return "\n".join(
        [
            "import base64",
            "import operator",
            "import zlib",
            "",
            "import torch",
            "from torch import inf, nan",
            "",
            *constants,
            "",
            "class Model(torch.nn.Module):",
            f"    def forward(self, {', '.join(names)}):",
            body,
            "",
            "model = Model().eval()",
            "inputs = (",
            textwrap.indent(given + ",", "    "),
            ")",
            "",
        ]
    )


def _call(node: Node) -> str:
    """Return the expression of a call."""
    target: Any = node.target
    if target is operator.getitem:
        return f"{node.args[0]}[{node.args[1]!r}]"
    if isinstance(target, torch._ops.OpOverload):
        function = f"torch.ops.{target}"
    else:
        # the functions of _operator are those of operator
        module = getattr(target, "__module__", "").removeprefix("_")
        function = f"{module or 'torch'}.{target.__name__}"
    arguments = [_literal(value) for value in node.args]
    arguments += [f"{name}={_literal(value)}" for name, value in node.kwargs.items()]
    return f"{function}({', '.join(arguments)})"


def _literal(value: Any) -> str:
    """Return the expression of an argument; a node becomes its name."""
    if isinstance(value, (list, tuple)):
        listed = ", ".join(map(_literal, value))
        if isinstance(value, list):
            return f"[{listed}]"
        return f"({listed},)" if len(value) == 1 else f"({listed})"
    if isinstance(value, torch.device):
        return f"torch.device({str(value)!r})"
    return value.name if isinstance(value, Node) else repr(value)


def tensor_text(tensor: torch.Tensor) -> str:
    """Return an expression for the tensor with the same bits and strides."""
    dtype = tensor.dtype
    if not tensor.numel():
        made = f"torch.empty({list(tensor.shape)}, dtype={dtype})"
    elif tensor.numel() <= _LISTED and not tensor.is_complex():
        made = f"torch.tensor({tensor.tolist()}, dtype={dtype})"
    else:
        data = zlib.compress(
            tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
        encoded = textwrap.wrap(base64.b64encode(data).decode(), _WIDTH)
        text = "\n".join(["(", *(f"    {line!r}" for line in encoded), ")"])
        read = f"bytearray(zlib.decompress(base64.b64decode({text})))"
        made = f"torch.frombuffer({read}, dtype={dtype}).reshape({list(tensor.shape)})"
    if tensor.is_contiguous():
        return made
    strided = (
        f"torch.empty_strided({tuple(tensor.shape)}, {tensor.stride()}, dtype={dtype})"
    )
    return f"{strided}.copy_({made})"

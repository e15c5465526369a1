"""Passes over edge programs, and the rules that an edge program keeps.

An edge program is functional, calls ATen overloads, has static types, and a debug
handle on every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from delegraph.errors import ContractViolation
from delegraph_programs import (
    all_nodes,
    build_program,
    name_outputs,
    output_node,
    root_call,
    source_of,
)
from delegraph_programs.type_aliases import Transform
from torch._ops import HigherOrderOperator, OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase
from torch.fx.passes.infra.pass_manager import PassManager

Pass = Callable[[Any], Any]
"""A function from ExportedProgram to ExportedProgram, or a ``PassBase`` or
``PassManager`` of torch.
"""


def as_transform(each: Pass, method: str, check: bool) -> Transform:
    """``each`` as a function from program to program; with ``check``, an error says
    which rule the pass broke.
    """
    name = getattr(each, "__name__", type(each).__name__)

    def transform(program: ExportedProgram) -> ExportedProgram:
        if isinstance(each, PassBase | PassManager):
            module: GraphModule = getattr(
                each(program.graph_module), "graph_module", program.graph_module
            )
        else:
            program = each(program)
            if not isinstance(program, ExportedProgram):
                text = (
                    f"pass {name} returned {type(program).__name__}, not an"
                    " ExportedProgram"
                )
                raise ContractViolation("contract-violation", text)
            module = program.graph_module
        if check:
            verify(module, f"after pass {name}, method {method}", numbered=False)
        return _with_signature(program, module)

    return transform


def _with_signature(program: ExportedProgram, module: GraphModule) -> ExportedProgram:
    """The program of ``module`` after a pass: ``program``'s signature still names what
    the graph returned before it.
    """
    signature = program.graph_signature
    outputs = name_outputs(signature.output_specs, output_node(module.graph).args[0])  # type: ignore[arg-type]
    return build_program(
        module,
        module.graph,
        signature.input_specs,
        outputs,
        program,
        root_call(program),
    )


def verify(module: GraphModule, where: str, numbered: bool = True) -> None:
    """Raise ContractViolation, which names the node and the rule, if ``module`` is not
    that of an edge program.

    ``numbered``: calls have debug handles. What a pass added gets its handles when its
    result is normalized.
    """
    for node in all_nodes(module):
        broken = _broken_rule(node, numbered)
        if broken:
            text = f"{where}: node {node.name} ({node.target}) {broken}"
            raise ContractViolation("contract-violation", text, node, source_of(node))


def _broken_rule(node: Node, numbered: bool) -> str | None:
    """The rule that a node breaks, in words; None if it keeps all."""
    if node.op in ("call_module", "call_method"):
        return f"is a {node.op}; edge programs call functions"
    if node.op != "call_function":
        return None
    if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
        return "writes to its arguments; edge programs are functional"
    # operators on numbers and symbolic sizes, of Python and torch, have no overloads
    plain = getattr(node.target, "__module__", "") in (
        "_operator",
        "math",
        "builtins",
        "torch",
    )
    if not isinstance(node.target, OpOverload | HigherOrderOperator) and not plain:
        return "is no operator overload"
    if "val" not in node.meta:
        return "has no type (meta['val'])"
    return (
        None if "debug_handle" in node.meta or not numbered else "has no debug handle"
    )

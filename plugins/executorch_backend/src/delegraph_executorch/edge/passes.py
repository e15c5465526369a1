"""Run passes over edge programs, and verify the rules of edge programs.

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
"""A function from a program to a program, or torch's ``PassBase`` or ``PassManager``."""


def as_transform(each: Pass, method: str, check: bool) -> Transform:
    """Return a pass as a function of programs.

    ``check``: verify the result; the error names the rule that the pass broke.
    """
    name = getattr(each, "__name__", type(each).__name__)

    def transform(program: ExportedProgram) -> ExportedProgram:
        if isinstance(each, PassBase | PassManager):
            result = each(program.graph_module)
            module: GraphModule = getattr(result, "graph_module", program.graph_module)
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
            # calls that the pass added get debug handles later
            where = f"after pass {name}, method {method}"
            verify(module, where, needs_handles=False)
        return _with_signature(program, module)

    return transform


def _with_signature(program: ExportedProgram, module: GraphModule) -> ExportedProgram:
    """Return the program of ``module``, which is the graph of ``program`` after a pass.

    The signature of ``program`` still has the outputs from before the pass.
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


def verify(module: GraphModule, where: str, needs_handles: bool = True) -> None:
    """Raise ContractViolation, with node and rule, unless ``module`` is an edge graph.

    ``where`` begins the error. ``needs_handles``: calls must have debug handles.
    """
    for node in all_nodes(module):
        broken = _broken_rule(node, needs_handles)
        if broken:
            text = f"{where}: node {node.name} ({node.target}) {broken}"
            raise ContractViolation("contract-violation", text, node, source_of(node))


def _broken_rule(node: Node, needs_handles: bool) -> str | None:
    """Return the rule that a node breaks, in words; None if it keeps all."""
    if node.op in ("call_module", "call_method"):
        return f"is a {node.op}; edge programs call functions"
    if node.op != "call_function":
        return None
    if isinstance(node.target, OpOverload) and node.target._schema.is_mutable:
        return "writes to its arguments; edge programs are functional"
    # Functions of Python and torch on numbers and symbolic sizes have no overloads.
    is_plain = getattr(node.target, "__module__", "") in (
        "_operator",
        "math",
        "builtins",
        "torch",
    )
    if not isinstance(node.target, OpOverload | HigherOrderOperator) and not is_plain:
        return "is no operator overload"
    if "val" not in node.meta:
        return "has no type (meta['val'])"
    if needs_handles and "debug_handle" not in node.meta:
        return "has no debug handle"
    return None

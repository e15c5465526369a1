"""The support check: accepts calls that torch.onnx converts and ONNX Runtime loads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from delegraph.errors import OptionError
from delegraph.partitioner import CapabilityPartitioner, Reason
from delegraph_engines import TrialCompilation, to_specs, why_subgraph
from delegraph_programs import bound_arguments, is_random
from delegraph_programs.higher_order_subgraphs import subgraphs_of
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from .exporter import Draft, has_rule
from .providers import why_absent
from .session import why_not_loaded
from .settings import PREFIX, check_settings

TYPES = frozenset(
    {
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.bool,
    }
)
"""Types of tensors that cross the border of a delegate, or lie inside."""
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
CONVERSIONS = (
    "aten._to_copy.",
    "aten.to.",
    "aten.type_as.",
    "prims.convert_element_type.",
    "aten.sum.",
    "aten.prod.",
    "aten.cumsum.",
    "aten.cumprod.",
)
"""Operators whose result may have another type than their first operand."""
NO_RULE = "torch.onnx has no rule for this operator"


def compile_alone(program: ExportedProgram) -> None:
    """Convert a program of few calls and load it. Raises Unsupported if that fails."""
    draft = Draft(program)
    why = why_not_loaded(draft.content())
    if why is not None:
        raise draft.failure(why)


TRIALS = TrialCompilation(compile_alone)
"""Trials of exporter and runtime, which take some milliseconds for a call."""


class OnnxPartitioner(CapabilityPartitioner):
    """Gives ONNX Runtime the calls that it computes. ``plugin`` describes options."""

    def __init__(
        self,
        ep: str = "cpu",
        ep_options: str = "",
        soc: str = "",
        htp_arch: str = "",
        threads: int = 0,
        session: str = "",
    ) -> None:
        settings = {
            "ep": ep,
            "ep_options": ep_options,
            "soc": soc,
            "htp_arch": htp_arch,
            "threads": str(threads),
            "session": session,
        }
        check_settings(settings)
        why = why_absent(ep)
        if why is not None:
            hint = f"pip install onnxruntime-{ep}, or onnxruntime-ep-{ep}"
            raise OptionError("option-invalid", why, hint=hint)
        check = CHECKS.get(ep, why_not_ahead)
        super().__init__(TRIALS.after(check), "OnnxBackend", to_specs(PREFIX, settings))


def why_not(node: Node) -> str | None:
    """Return why a call is refused; None if a trial has to decide."""
    if is_random(node):
        return "it draws random numbers, which only the host does"
    for value in (*node.all_input_nodes, node):
        # a branch, a loop body, or a constant in one
        if value.op == "get_attr":
            continue
        why = _why_not_value(value)
        if why is not None:
            return why
    if not has_rule(node):
        return NO_RULE
    for body in subgraphs_of(node):
        for inner in body.graph.nodes:
            if inner.op != "call_function" or inner.target is getitem:
                continue
            why = why_not(inner)
            if why is not None:
                return f"{inner.target} in its body: {why}"
    return _why_computed_otherwise(node)


def why_not_ahead(node: Node) -> str | None:
    """Return a reason as ``why_not`` does, for models that are compiled ahead.

    ONNX Runtime's ModelCompiler loses constants that a branch reads.
    """
    return why_subgraph(node, "its compiler for execution providers") or why_not(node)


def why_not_on_qnn(node: Node) -> str | None:
    """Return a reason as ``why_not_ahead`` does, for Qualcomm's provider."""
    # this first, because a call that has no rule is decomposed
    return _why_wrong_on_qnn(node) or why_not_ahead(node)


CHECKS = {"cpu": why_not, "qnn": why_not_on_qnn}
"""Execution providers -> their support checks. Others have ``why_not_ahead``."""


def _why_wrong_on_qnn(node: Node) -> str | None:
    """Return a reason if Qualcomm's compiler takes a call and computes it wrongly."""
    name = str(node.target)
    if name.startswith("aten.floor_divide."):
        dtype = node.meta["val"].dtype
        if dtype.is_signed and not dtype.is_floating_point:
            return "Qualcomm's compiler divides negative integers wrongly"
    if name == "aten.index.Tensor":
        indices = [i for i in bound_arguments(node)["indices"] if i is not None]
        shapes = [list(index.meta["val"].shape) for index in indices]
        if len(shapes) > 1 and not _are_equal_and_static(shapes):
            return "Qualcomm's compiler does not broadcast several index tensors"
    if name.startswith(CONVERSIONS):
        return _why_converted_wrongly(node)
    return None


def _why_converted_wrongly(node: Node) -> str | None:
    """Return a reason if Qualcomm's compiler may convert types wrongly in a call."""
    operand = node.all_input_nodes[0]
    source = operand.meta["val"].dtype
    target = node.meta["val"].dtype
    becomes_uint8 = target is torch.uint8 and source is not torch.uint8
    if becomes_uint8 and source in INTEGERS:
        return "Qualcomm's compiler does not wrap integers that become uint8"
    is_dequantized = "quantized_decomposed.dequantize" in str(operand.target)
    if is_dequantized and target in INTEGERS:
        return (
            "its operand is dequantized; Qualcomm's compiler may compute it in float16,"
            " on the other side of an integer"
        )
    return None


def _are_equal_and_static(shapes: Sequence[Sequence[Any]]) -> bool:
    """Return whether shapes have no dynamic sizes and are equal."""
    for shape in shapes:
        # comparing dynamic sizes would add a guard to the program
        if not all(type(size) is int for size in shape):
            return False
    return all(shape == shapes[0] for shape in shapes)


def _why_computed_otherwise(node: Node) -> str | None:
    """Return a reason if torch.onnx converts a call to something else."""
    if "quantized_decomposed.quantize_per" in str(node.target):
        return _why_narrow(node)
    if getattr(node.target, "namespace", "") != "aten":
        return None
    name = str(node.target).split(".")[1]
    given = bound_arguments(node)
    if "batch_norm" in name and given.get("training"):
        return "torch.onnx uses the running statistics, not those of the batch"
    if given.get("divisor_override") is not None:
        return "torch.onnx ignores divisor_override"
    if name == "pad" and given["mode"] == "circular" and _is_empty(given["self"]):
        return "ONNX Runtime has no circular padding of tensors without elements"
    if _repeats_elements(name, given):
        widths = given["pad"] if name == "pad" else given["padding"]
        if any(type(width) is int and width < 0 for width in widths):
            return "ONNX Runtime may have no elements to repeat after negative padding"
    if name == "scatter_add" and not given["self"].meta["val"].dim():
        return "ONNX Runtime does not scatter to a tensor without dimensions"
    return None


def _repeats_elements(name: str, given: Mapping[str, Any]) -> bool:
    """Return whether a call pads a tensor with its own elements."""
    if name == "pad":
        return given["mode"] in ("replicate", "reflect")
    return name.startswith(("replication_pad", "reflection_pad"))


def _why_narrow(quantize: Node) -> str | None:
    """Return a reason if a call quantizes to a part of the range of its type."""
    given = bound_arguments(quantize)
    ends = (given["quant_min"], given["quant_max"])
    info = torch.iinfo(given["dtype"])
    # symmetric ranges leave out only the smallest integer: results differ by one step
    if ends in ((info.min, info.max), (-info.max, info.max)):
        return None
    return f"torch.onnx ignores the range {ends[0]} to {ends[1]} of the quantization"


def _is_empty(node: Node) -> bool:
    """Return whether a tensor is known to have no elements."""
    return any(type(size) is int and size == 0 for size in node.meta["val"].shape)


def _why_not_value(node: Node) -> str | None:
    """Return a reason if ONNX Runtime cannot hold a value of ``node``."""
    for val in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(val, torch.Tensor):
            if val.dtype not in TYPES:
                text = (
                    f"{node.name} is {val.dtype}, which ONNX Runtime does not compute"
                )
                return Reason(text, cause=str(val.dtype), of=node)
            if free_unbacked_symbols(list(val.shape)):
                return f"the size of {node.name} depends on values of tensors"
        elif not isinstance(val, (torch.SymInt, int)) or isinstance(val, bool):
            kind = "None" if val is None else f"a {type(val).__name__}"
            return f"{node.name} is {kind}; delegates take tensors and sizes"
    return None

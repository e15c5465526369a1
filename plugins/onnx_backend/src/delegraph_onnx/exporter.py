"""Convert partitions to ONNX models with PyTorch's own exporter, ``torch.onnx``.

``torch.onnx.export`` takes a second for a program of one call: it reads the registry of
all rules, and decomposes the program. delegraph has decomposed it before, and the
registry is kept. So this module calls the steps of the exporter one by one.

Only this module and ``type_promotion`` use private names of torch.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as common
import torch

# without these operators, the registry leaves out the rules of quantized ones
import torch.ao.quantization.fx._decomposed
from delegraph_engines import NumberedCalls, Signature
from delegraph_engines.numbered_calls import EngineError
from delegraph_programs.higher_order_subgraphs import all_nodes, graphs, subgraphs_of
from onnxscript import optimizer, version_converter
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.onnx._internal.exporter import _core
from torch.onnx._internal.exporter._dispatching import dispatch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from .exporter_rules import RULES
from .rewrites.activations_for_npu import quantize_before_activations
from .rewrites.bias_scales import TOO_LARGE, rescale_biases
from .rewrites.casts_for_npu import correct_casts
from .rewrites.clip_bounds import bound_clips
from .rewrites.constants_for_npu import separate_constants
from .rewrites.float_weights_for_cpu import hide_float_weights
from .rewrites.indices_for_npu import simplify_indices
from .rewrites.linear_for_npu import use_gemm
from .rewrites.quantized_layers import SHORTS, optional_input
from .rewrites.unsigned_integers import use_unsigned
from .rewrites.weight_scales import COMPUTED, dequantize_other_weights
from .type_promotion import insert_casts

OPSET = 20
"""The version of ONNX's operators in all models; ``torch.onnx.export`` has the same."""
OPSET_OF_16_BITS = 21
"""The version in models that quantize to 16 bits. Other operators are the same."""
LARGEST_FOLDED = 16384
"""The most elements of a result that is computed at compile time."""


class Draft(NumberedCalls):
    """A partition and its ONNX model.

    Inputs are named ``x0``, ``x1``, ..., outputs ``y0``, ``y1``, .... The names of nodes
    begin with the numbers of their calls, as in ``n3/Gemm/7``.
    """

    def __init__(self, program: ExportedProgram, for_npu: bool = False) -> None:
        """Convert ``program``. Raises ``failure`` with the reason.

        ``for_npu``: write quantized layers as NPUs take them; else as ONNX Runtime's CPU
        computes them exactly.
        """
        super().__init__()
        self.signature = Signature.of(program)
        self.calls = [n for n in program.graph.nodes if n.op == "call_function"]
        with _quiet():
            self.model = self._convert(program)
            _name_inputs_and_constants(self.model)
            self.model = _simplify(self.model)
        bound_clips(self.model)
        if not dequantize_other_weights(self.model):
            raise self.failure(COMPUTED)
        if not rescale_biases(self.model, for_npu):
            raise self.failure(TOO_LARGE)
        if for_npu:
            use_gemm(self.model)
            simplify_indices(self.model)
            quantize_before_activations(self.model)
            correct_casts(self.model)
            use_unsigned(self.model, ir.DataType.INT16)
            separate_constants(self.model)
        else:
            hide_float_weights(self.model)
            use_unsigned(self.model, ir.DataType.INT8)
        common.RemoveUnusedNodesPass()(self.model)
        if _quantizes_to_16_bits(self.model):
            self.model.graph.opset_imports[""] = OPSET_OF_16_BITS
        _separate_outputs(self.model.graph)
        _name_nodes(self.model)
        _drop_comments(self.model)

    def failure(self, reason: str) -> Exception:
        """Return the exception for a model that cannot be written or loaded.

        For several calls, it is an EngineError, even if the reason names a call: after
        an Unsupported, the whole partition would stay on the host.
        """
        return self.refused(reason) if len(self.calls) == 1 else EngineError(reason)

    def content(self) -> bytes:
        """Return the model as the bytes of a file."""
        model: bytes = ir.to_proto(self.model).SerializeToString(deterministic=True)
        return model

    def _convert(self, program: ExportedProgram) -> ir.Model:
        """Return the exporter's model. The names of nodes begin with their calls."""
        _copy_bodies(program.graph_module)
        numbers = self._numbers()
        try:
            for graph in graphs(program.graph_module):
                insert_casts(graph)
            exported = _core._exported_program_to_onnx_program(
                program, registry=registry()
            )
        except Exception as error:  # the exporter raises errors of any kind
            raise self.failure(_reason_of(error)) from error
        model: ir.Model = exported.model
        # branches and loop bodies are functions until they are inlined
        parts: list[Any] = [model.graph, *model.functions.values()]
        for part in parts:
            for node in ir.traversal.RecursiveGraphIterator(part):
                source = node.meta.get("node")
                while source is not None and source not in numbers:
                    # ``insert_casts`` added it: a cast belongs to the call that reads it
                    source = next(iter(source.users), None)
                node.name = f"n{numbers[source]}/" if source is not None else ""
                node.meta.clear()
        return model

    def _numbers(self) -> dict[Node, int]:
        """Return the number of each call. Calls in a body have that of the outer call."""
        numbers = {}
        for number, call in enumerate(self.calls):
            numbers[call] = number
            for body in subgraphs_of(call):
                numbers |= dict.fromkeys(all_nodes(body), number)
        return numbers


def _copy_bodies(module: GraphModule) -> None:
    """Copy branches and loop bodies, and write their constants into their metadata.

    The exporter reads the constants of a body from the metadata of nodes. The bodies
    are copied first, because the host's program shares them and must not change.
    """
    for name, body in list(module.named_children()):
        if isinstance(body, GraphModule):
            own = copy.deepcopy(body)
            setattr(module, name, own)
            for node in own.graph.find_nodes(op="get_attr"):
                fetched = getattr(own, node.target)
                if isinstance(fetched, torch.Tensor):
                    node.meta["val"] = fetched
            _copy_bodies(own)


@cache
def registry() -> ONNXRegistry:
    """Return the rules of torch.onnx, by operator. Reading them takes a second."""
    with _quiet():
        rules = ONNXRegistry.from_torchlib(opset_version=OPSET)
    for operator, rule in RULES.items():
        rules.register_op(operator, rule)
    return rules


def has_rule(node: Node) -> bool:
    """Return whether torch.onnx has a rule for the operator of ``node``."""
    rule, _ = dispatch(node, registry())
    return rule is not None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's warnings from the user, who gets refusals with reasons."""
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _reason_of(error: BaseException) -> str:
    """Return the line of an error of the exporter that has the cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = str(error).strip().partition("\n")[0]
    reason = f"torch.onnx does not convert it: {type(error).__name__}"
    return f"{reason}: {text:.200}" if text else reason


def _name_inputs_and_constants(model: ir.Model) -> None:
    """Name inputs ``x0``, ``x1``, ..., and constants ``c0``, ``c1``, ...."""
    for k, value in enumerate(model.graph.inputs):
        value.name = f"x{k}"
    for k, (name, value) in enumerate(list(model.graph.initializers.items())):
        del model.graph.initializers[name]
        value.name = f"c{k}"
        if value.const_value is not None:
            value.const_value.name = value.name
        model.graph.initializers[value.name] = value


def _simplify(model: ir.Model) -> ir.Model:
    """Inline functions, fold constants and remove nodes that nothing reads.

    onnxscript's rules for fusing operators are left out. ONNX Runtime has such rules of
    its own, and those of onnxscript keep the last model in memory.
    """
    parts: list[Any] = [model, *model.functions.values()]
    for part in parts:
        # a nested body has another version than its model, which no inliner accepts
        for domain in part.opset_imports:
            if domain.startswith("pkg."):
                part.opset_imports[domain] = 1
    version_converter.convert_version(model, OPSET, fallback=True)
    common.InlinePass()(model)
    optimizer.fold_constants(model, output_size_limit=LARGEST_FOLDED)
    simplify = ir.passes.Sequential(
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.LiftSubgraphInitializersToMainGraphPass(),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.NameFixPass(),
    )
    return simplify(model).model


def _quantizes_to_16_bits(model: ir.Model) -> bool:
    """Return whether an operator quantizes to 16 bits or dequantizes them."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            zero = optional_input(node, 2)
            if zero is not None and zero.dtype in SHORTS:
                return True
    return False


def _separate_outputs(graph: ir.Graph) -> None:
    """Name outputs ``y0``, ``y1``, ..., each a separate value.

    ONNX permits no output twice, and a value has one name. So inputs and repeated
    values are copied.
    """
    seen = set[Any]()
    for k, value in enumerate(list(graph.outputs)):
        if value.producer() is None or value in seen:
            copy = ir.Node("", "Identity", [value], name=f"copy{k}")
            result = copy.outputs[0]
            result.shape = value.shape
            result.type = value.type
            graph.append(copy)
            graph.outputs[k] = result
        seen.add(value)
        graph.outputs[k].name = f"y{k}"


def _name_nodes(model: ir.Model) -> None:
    """Name nodes by calls and positions, such as ``n3/Gemm/7``.

    onnxscript's names contain numbers that count all nodes of the process.
    """
    nodes = ir.traversal.RecursiveGraphIterator(model.graph)
    kept = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    for k, node in enumerate(nodes):
        call = (node.name or "").partition("/")[0]
        prefix = f"{call}/" if call[:1] == "n" and call[1:].isdecimal() else ""
        node.name = f"{prefix}{node.op_type}/{k}"
        for index, value in enumerate(node.outputs):
            if value.name and value.name not in kept:
                value.name = f"{prefix}v{k}_{index}"


def _drop_comments(model: ir.Model) -> None:
    """Remove the exporter's comments, which name files of the user's machine."""
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()

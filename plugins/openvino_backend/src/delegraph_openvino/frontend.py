"""Graphs of calls become OpenVINO's models, by OpenVINO's own frontend for torch.fx graphs."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import openvino as ov
import torch
from delegraph.errors import Unsupported
from delegraph.exported import bound_arguments
from delegraph.exported_program import constant_placeholders, constant_tensor, output_values, placeholders
from delegraph.source import source_of
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from .quantized import extensions

_NAMES = ("float32 f32", "float16 f16", "bfloat16 bf16", "int8 i8", "uint8 u8", "int16 i16", "int32 i32", "int64 i64")
TYPES = {getattr(torch, t): getattr(ov.Type, o) for t, o in map(str.split, (*_NAMES, "bool boolean"))}
"""The element types that cross the border, or lie inside."""
NO_RULE = "OpenVINO's frontend has no rule for this operator"
_NUMBERS = {dtype: k for k, dtype in enumerate(TYPES)}


class Draft:
    """A graph for OpenVINO's frontend: constants are attributes, calls are named ``n0``, ``n1``, ... in their order.

    The frontend puts a call's name before the names of the operators that it becomes. ``n0_in`` is a part of ``n0``.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.graph, self.values = Graph(), dict[Node, Node]()
        self.constants: dict[str, torch.Tensor] = {}
        self.types: list[str] = []
        self.calls: list[Node] = []
        constant = constant_placeholders(program)
        for node, spec in placeholders(program):
            if node in constant:
                self._add_constant(node, constant_tensor(program, spec))
            else:
                self._add_input(node)
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._add_call(node)
        self.outputs: list[Node] = list(output_values(program))

    def _add_input(self, node: Node) -> None:
        """An input with the type and the shape of ``node``; an integer is a tensor without dimensions."""
        val = node.meta["val"]
        made = self.values[node] = self.graph.placeholder(f"x{len(self.types)}")
        made.meta["val"] = val if isinstance(val, torch.Tensor) else torch.empty((), dtype=torch.int64, device="meta")
        self.types.append(str(made.meta["val"].dtype))

    def _add_constant(self, node: Node, tensor: torch.Tensor) -> None:
        name = f"c{len(self.constants)}"
        self.constants[name] = tensor.detach().resolve_neg().contiguous()
        self.values[node] = self.graph.create_node("get_attr", name, name=name)

    def _add_call(self, node: Node) -> None:
        target, args, kwargs = _as_known(node)
        args, kwargs = torch.fx.map_arg((args, kwargs), self.values.__getitem__)
        if getattr(target, "namespace", "") == "quantized_decomposed":
            args = tuple(_NUMBERS.get(arg, arg) if isinstance(arg, torch.dtype) else arg for arg in args)
        name, joined = f"n{len(self.calls)}", dequantized_parts(node)
        if joined and all(self.values[part].op == "call_function" for part in joined):
            # OpenVINO's int8 transformation of a concatenation of dequantized tensors is wrong, by up to all of the
            # range; of integers it is right. Where the call is alone, to ask about it, its parts are inputs.
            integers = [self.values[part].args[0] for part in joined]
            small = self.graph.create_node("call_function", target, (integers, *args[1:]), kwargs, name=f"{name}_in")
            small.meta["val"] = node.meta["val"].to(joined[0].all_input_nodes[0].meta["val"].dtype)
            target, args, kwargs = joined[0].target, (small, *self.values[joined[0]].args[1:]), {}
        elif target is aten._native_batch_norm_legit_no_training.default and target is not node.target:
            whole = self.graph.create_node("call_function", target, args, kwargs, name=f"{name}_in")
            target, args, kwargs = operator.getitem, (whole, 0), {}
        made = self.values[node] = self.graph.create_node("call_function", target, args, kwargs, name=name)
        made.meta["val"] = node.meta.get("val")
        self.calls.append(node)

    def convert(self) -> ov.Model:
        """OpenVINO's model, of the recorded types and shapes. Raises Unsupported with the reason, and the call."""
        decoder = _Decoder(self, [self.values[node] for node in self.outputs])
        try:
            model = _frontend().convert(_frontend().load(decoder))
        except Exception as e:  # OpenVINO names no base of what its frontend raises, in C++ and in Python
            raise self.refused(e) from e
        for output, node in zip(model.outputs, self.outputs, strict=True):
            _check_value(output, node.meta["val"])
        return model

    def refused(self, error: Exception) -> Unsupported:
        """The refusal of the program, at the call that OpenVINO's error names, or at the first."""
        reason = reason_of(error)
        named = re.search(r"\bn(\d+)(?:_in)?/", reason)
        node = self.calls[int(named.group(1)) if named and int(named.group(1)) < len(self.calls) else 0]
        return Unsupported("unsupported", reason, node=node, source=source_of(node))


def _as_known(node: Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A call, or the same by another operator for which the frontend has a rule: then the core decomposes none.

    Of a batch norm that is the first result of the other.
    """
    given = bound_arguments(node) if node.target in KNOWN_AS else {}
    target: Any = KNOWN_AS.get(node.target)
    if target is aten.convolution.default:
        given |= {"transposed": False, "output_padding": [0] * len(given["stride"])}
        if given["input"].meta["val"].dim() != given["weight"].meta["val"].dim():  # an image without a batch
            target = None
    if target is None or given.get("training"):
        return node.target, node.args, node.kwargs
    return target, tuple(given[argument.name] for argument in target._schema.arguments), {}


aten = torch.ops.aten
KNOWN_AS: dict[Any, Any] = {
    **dict.fromkeys((aten.conv1d.default, aten.conv2d.default, aten.conv3d.default), aten.convolution.default),
    aten.batch_norm.default: aten._native_batch_norm_legit_no_training.default,
}
"""Operators without a rule -> those with one that compute the same in most of their forms."""


def dequantized_parts(node: Node) -> list[Node]:
    """What ``node`` concatenates, if it does, and each part is dequantized here; else nothing."""
    if node.target is not torch.ops.aten.cat.default:
        return []
    parts: Any = node.args[0]
    return list(parts) if all(map(is_dequantized, parts)) else []


def is_dequantized(node: Node) -> bool:
    return "quantized_decomposed.dequantize" in str(node.target)


class _Decoder(TorchFXPythonDecoder):  # type: ignore[misc]  # of Any
    """What the frontend reads a draft through. OpenVINO's own reads a GraphModule, for which torch writes code.

    That took longer than all else that is done here for a call which is asked about.
    """

    def __init__(self, draft: Draft, results: Iterable[Node]) -> None:
        super().__init__(SimpleNamespace(**draft.constants), input_types=draft.types)  # not read: it is no graph
        self._nodes = _Nodes(draft.graph.nodes)
        inputs = [node for node in self._nodes if node.op == "placeholder"]
        self._inputs = [self._nodes.index(node) for node in inputs]
        self._input_signature = [node.name for node in inputs]
        shapes = (node.meta["val"].shape for node in inputs)
        self.input_shapes = [[size if isinstance(size, int) else -1 for size in shape] for shape in shapes]
        self._outputs = [("", self._nodes.index(node)) for node in results]


class _Nodes(list[Node]):
    """Nodes that know their places: the decoder asks for that of each operand, and a list would search it."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self._places = {node: k for k, node in enumerate(self)}

    def index(self, node: Node, *limits: Any) -> int:
        return self._places[node]


@cache
def _frontend() -> Any:
    frontend = FrontEndManager().load_by_framework("pytorch")
    for extension in extensions(list(TYPES.values())):
        frontend.add_extension(extension)
    return frontend


def _check_value(output: Any, val: Any) -> None:
    """Raise Unsupported if OpenVINO makes another type or shape of a call than the program records."""
    dtype, shape = (val.dtype, val.shape) if isinstance(val, torch.Tensor) else (torch.int64, ())
    kind, sizes = output.get_element_type(), [size if isinstance(size, int) else -1 for size in shape]
    if kind != TYPES[dtype]:
        raise Unsupported("unsupported", f"OpenVINO makes {kind.get_type_name()} of what is {dtype} here")
    if not output.get_partial_shape().compatible(ov.PartialShape(sizes)):
        text = f"OpenVINO makes the shape {output.get_partial_shape()} of what is {sizes} here"
        raise Unsupported("unsupported", text)


def reason_of(error: Exception) -> str:
    """The line of an error of OpenVINO that tells what is wrong; around it there is a trace of C++ files."""
    text = str(error)
    if "No conversion rule found" in text:
        return NO_RULE
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [after for line, after in pairwise(lines) if line.endswith("with a message:")]
    said += [line for line in lines if not re.match(r"Exception from|Check '|FrontEnd API failed|Summary:|--", line)]
    return f"OpenVINO: {(said or lines or [type(error).__name__])[0]:.200}"

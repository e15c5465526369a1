"""Converts graphs of calls to OpenVINO models, by OpenVINO's frontend for torch.fx."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import torch
from delegraph.errors import Unsupported
from delegraph_programs import bound_arguments
from openvino.frontend import FrontEndManager
from openvino.frontend.pytorch import ConversionExtension
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
from torch.fx import Node

from .core_calls import core_call
from .corrections import REDUCTIONS, TO_BOOL, correct, rules
from .numbered_graph import NumberedGraph
from .value_check import dequantized_parts

_NAMES = (
    "float32 f32",
    "float16 f16",
    "bfloat16 bf16",
    "int8 i8",
    "uint8 u8",
    "int16 i16",
    "int32 i32",
    "int64 i64",
)
TYPES = {
    getattr(torch, t): getattr(ov.Type, o)
    for t, o in map(str.split, (*_NAMES, "bool boolean"))
}
"""The element types of OpenVINO that are used."""
DTYPES = {kind: str(dtype).removeprefix("torch.") for dtype, kind in TYPES.items()}
PLACE_ROWS = "delegraph.place_rows"
NO_RULE = "OpenVINO's frontend has no rule for this operator"
aten = torch.ops.aten
op = ov.opset13
identity_opset = ov.opset16


class Draft(NumberedGraph):
    """The graph of a partition for OpenVINO's frontend.

    The frontend puts a call's name before the names of its operators.
    """

    def write(self, node: Node) -> tuple[Any, Any, Any]:
        """Return a call that OpenVINO computes correctly: its target, args and kwargs.

        Other forms are used if OpenVINO computes the call itself wrongly, or has a rule
        only for core ATen.
        """
        # Calls such as conv2d are written as operators that the frontend knows, so that
        # the core decomposes none of them.
        if ignores_product(node):
            given = bound_arguments(node)
            [tensor] = self.operands(given["self"])
            scaled = self.part(aten.mul.Tensor, tensor, given["beta"])
            return aten.expand.default, (scaled, list(node.meta["val"].shape)), {}
        if node.target in REDUCTIONS and node.args[0].meta["val"].dtype in TYPES:  # type: ignore[union-attr]
            [tensor], rest = self.operands(node.args[:1], (node.args[1:], node.kwargs))
            # rules get types as positions in TYPES
            type_number = [*TYPES].index(node.args[0].meta["val"].dtype)  # type: ignore[union-attr]
            truth = self.part(_Name(TO_BOOL), tensor, type_number)
            return node.target, (truth, *rest[0]), rest[1]
        replaced = self._correct(node) or self._write_rows(node)
        if replaced is not None:
            return replaced
        known = core_call(node)
        target, *arguments = known or (node.target, node.args, node.kwargs)
        args, kwargs = self.operands(*arguments)
        if getattr(target, "namespace", "") == "quantized_decomposed":
            args = tuple(
                [*TYPES].index(arg) if isinstance(arg, torch.dtype) else arg
                for arg in args
            )
        joined = self.operands(*dequantized_parts(node))
        if joined and all(part.op == "call_function" for part in joined):
            # OpenVINO's int8 transformation of a concatenation of dequantized tensors
            # is wrong, by up to the whole range; that of integers is right. In a trial
            # of this call alone, the parts are inputs.
            integers = self.part(
                target, [part.args[0] for part in joined], *args[1:], **kwargs
            )
            return joined[0].target, (integers, *joined[0].args[1:]), {}
        if known and len(known[0]._schema.returns) > 1:  # a norm, with its statistics
            return operator.getitem, (self.part(target, *args, **kwargs), 0), {}
        mask = None
        if "scaled_dot_product" in str(target):
            mask = bound_arguments(node).get("attn_mask")
        if isinstance(mask, Node):
            # If a mask hides a whole row, OpenVINO computes NaN, and torch 0. Such a
            # row sees everything here, and is set to 0 afterwards.
            [given] = self.operands(mask)
            invert = aten.logical_not.default
            visible = given
            if mask.meta["val"].dtype is not torch.bool:
                visible = self.part(invert, self.part(aten.isinf.default, given))
            hidden = self.part(invert, self.part(aten.any.dim, visible, -1, True))
            shown = self.part(aten.masked_fill.Scalar, given, hidden, 1)
            more, kwargs = torch.fx.map_arg(
                (args[3:], kwargs), lambda n: shown if n is given else n
            )
            attention = self.part(target, *args[:3], *more, **kwargs)
            return aten.masked_fill.Scalar, (attention, hidden, 0), {}
        return target, args, kwargs

    def _correct(self, node: Node) -> tuple[Any, Any, Any] | None:
        """Return the call of a rule of ``corrections``, or None."""
        if getattr(node.target, "namespace", "") != "aten":
            return None
        corrected = correct(node, bound_arguments(node), [*TYPES])
        if corrected is None:
            return None
        name, operands = corrected
        return _Name(name), self.operands(operands)[0], {}

    def _write_rows(self, node: Node) -> tuple[Any, Any, Any] | None:
        """Return a call that writes rows for ``slice_scatter`` or ``select_scatter``.

        The rows are at constant places. The frontend fails on a chain of these
        operators.
        """
        if node.target not in (aten.slice_scatter.default, aten.select_scatter.default):
            return None
        given = bound_arguments(node)
        dim = given["dim"]
        size = given["self"].meta["val"].shape[dim]
        is_select = node.target is aten.select_scatter.default
        names = ["index"] if is_select else ["start", "end", "step"]
        places = [given[name] for name in names]
        if any(not isinstance(place, int | None) for place in (size, *places)):
            return None
        if is_select:
            rows = [places[0] % size]
        else:
            rows = [*range(size)][slice(*places)]
        if not rows:
            return None
        tensor, values = self.operands(given["self"], given["src"])
        if is_select:
            values = self.part(aten.unsqueeze.default, values, dim)
        axis = dim % given["self"].meta["val"].dim()
        return _Name(PLACE_ROWS), (tensor, values, rows, axis), {}

    def convert(self) -> ov.Model:
        """Return OpenVINO's model, with the recorded types and shapes.

        Raises Unsupported with the reason and the call.
        """
        decoder = _Decoder(self)  # the frontend does not keep it alive
        try:
            model = _frontend().convert(_frontend().load(decoder))
        except Exception as e:
            # OpenVINO's frontend has no base class of its errors, in C++ and in Python
            raise self.refused(reason_of(e), str(e)) from e
        # inputs have the types that the decoder gives them
        no_inputs = [None] * len(self.signature.inputs)
        why = self.signature.why_mismatch(no_inputs, map(type_of, model.outputs))
        if why is not None:
            raise Unsupported(
                "unsupported", f"OpenVINO's model differs from the partition: {why}"
            )
        return model


def ignores_product(node: Node) -> bool:
    """Return whether torch adds no product of an ``addmm``, since alpha is 0.

    NaN and infinities of the factors are then ignored.
    """
    if node.target is not aten.addmm.default:
        return False
    given = bound_arguments(node)
    sizes = node.meta["val"].shape
    return (
        given["alpha"] == 0
        and given["beta"] != 0
        and all(isinstance(size, int) for size in sizes)
    )


class _Name:
    """An operator of this plugin, as the target of a call.

    The frontend reads its name; it is never called.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __str__(self) -> str:
        return self.__name__

    def __call__(self) -> None:
        raise NotImplementedError(self.__name__)


class _Decoder(TorchFXPythonDecoder):  # type: ignore[misc]  # of Any
    """The frontend's access to a draft.

    OpenVINO's own decoder reads a GraphModule, for which torch generates code. That
    took most of the time of a trial of one call.
    """

    def __init__(self, draft: Draft) -> None:
        types = [
            f"torch.{'int64' if dtype == 'int' else dtype}"
            for dtype, _ in draft.signature.inputs
        ]
        # the constants only; the graph is set below
        super().__init__(SimpleNamespace(**draft.constants), input_types=types)
        self._nodes = _Nodes(draft.graph.nodes)
        self._inputs = [
            place for place, node in enumerate(self._nodes) if node.op == "placeholder"
        ]
        self._input_signature = [self._nodes[place].name for place in self._inputs]
        self.input_shapes = [list(shape) for _, shape in draft.signature.inputs]
        self._outputs = [("", self._nodes.index(node)) for node in draft.outputs]


class _Nodes(list[Node]):
    """Nodes with a fast ``index``: the decoder calls it for each operand."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self.index = {node: k for k, node in enumerate(self)}.__getitem__  # type: ignore[method-assign,assignment]


@cache
def _frontend() -> Any:
    """Return OpenVINO's frontend for torch, with our rules."""
    frontend = FrontEndManager().load_by_framework("pytorch")
    converters: dict[str, Any] = {PLACE_ROWS: _place_rows, "aten.clone.default": _copy}
    for name, rule in RULES.items():
        converters[name] = partial(rule, "channel" in name)
    for name, rule in rules().items():
        converters[name] = partial(_convert_operands, rule)
    for name, converter in converters.items():
        frontend.add_extension(ConversionExtension(name, converter))
    return frontend


def type_of(output: Any) -> tuple[str | None, tuple[int, ...] | None]:
    """Return dtype and shape of OpenVINO's input or output, for ``why_mismatch``."""
    dtype = DTYPES.get(output.get_element_type())
    shape = output.get_partial_shape()
    if shape.rank.is_dynamic:
        return dtype, None
    sizes = [size.get_length() if size.is_static else -1 for size in shape]
    return dtype, tuple(sizes)


def reason_of(error: Exception) -> str:
    """Return the line of OpenVINO's error message that names the problem.

    Around it there is a trace of C++ files.
    """
    text = str(error)
    if "No conversion rule found" in text:
        return NO_RULE
    lines = re.findall(r"with a message:\s+(.+)", text)
    lines += re.findall(r"^\s*(\S.*)", text, re.MULTILINE)
    lines = [line.strip() for line in lines if not line.startswith(_TRACE)]
    reason = lines[0] if lines else f"its frontend raised {type(error).__name__}"
    missing = re.fullmatch(r"Input with index: (\d+) is none\.", reason)
    if missing:
        return (
            f"OpenVINO's frontend needs argument {missing[1]}, which is None or left"
            " out"
        )
    counts = re.fullmatch(r"Got less inputs (\d+) than expected (\d+)", reason)
    if counts:
        return (
            f"OpenVINO's frontend needs {counts[2]} arguments, and the call has"
            f" {counts[1]}"
        )
    return f"OpenVINO: {reason:.200}"


_TRACE = (
    "Exception from",
    "Exception happened during conversion",
    "Check '",
    "FrontEnd API failed",
    "Model wasn't fully converted",
    "Summary:",
    "While validating node",
    "Shape inference input shapes",
    "--",
)
"""Beginnings of lines in OpenVINO's errors that do not name the problem."""


def _quantize(by_channel: bool, context: Any) -> Any:
    """Write a quantize operator as a FakeQuantize and a cast.

    Its arguments are input, scale, zero point, (axis,) low, high, type. A FakeQuantize
    rounds floats of one range to levels in another range.
    """
    x, scale, zero = _operands(by_channel, context)
    # with an axis, the later arguments have a position more
    least, most, kind = (
        int(context.get_values_from_const_input(k + by_channel)) for k in (3, 4, 5)
    )
    low = np.float32(least)
    high = np.float32(most)
    float_low = (low - zero) * scale
    float_high = (high - zero) * scale
    levels = most - least + 1
    quantized = op.fake_quantize(x, float_low, float_high, low, high, levels)
    return op.convert(quantized, [*TYPES.values()][kind]).outputs()


def _dequantize(by_channel: bool, context: Any) -> Any:
    """Write a dequantize operator as (x - zero) * scale in float32."""
    x, scale, zero = _operands(by_channel, context)
    x = op.convert(x, ov.Type.f32)
    if zero.any():
        x = op.subtract(x, zero)
    return op.multiply(x, scale).outputs()


class _Quantized(NamedTuple):
    """A tensor, and its scale and zero point as arrays that broadcast against it."""

    tensor: Any
    scale: Any
    zero: Any


def _operands(by_channel: bool, context: Any) -> _Quantized:
    """Return the operands of a quantize or dequantize operator.

    For integer kernels, the compiler needs constants here instead of operators.
    """
    x = context.get_input(0)
    scale, zero = (
        context.get_input(k).get_node().data.astype(np.float32) for k in (1, 2)
    )
    if by_channel:
        rank = len(x.get_partial_shape())
        axis = int(context.get_values_from_const_input(3))
        scale, zero = (
            v.reshape([-1 if k == axis % rank else 1 for k in range(rank)])
            for v in (scale, zero)
        )
    return _Quantized(x, scale, zero)


def _copy(context: Any) -> Any:
    """Return an operator for a copy.

    The frontend has none, and fails if a program returns both a value and its copy.
    """
    return identity_opset.identity(context.get_input(0)).outputs()


def _convert_operands(rule: Any, context: Any) -> Any:
    """Call a rule of ``corrections`` with operands of one type.

    The last operand is the position of this type in ``TYPES``.
    """
    last = context.get_input_size() - 1
    kind = [*TYPES.values()][int(context.get_values_from_const_input(last))]
    operands = [op.convert(context.get_input(k), kind) for k in range(last)]
    return rule(*operands).outputs()


def _place_rows(context: Any) -> Any:
    """Write values at some positions of an axis of a tensor."""
    tensor = context.get_input(0)
    values = context.get_input(1)
    rows = np.array(context.get_values_from_const_input(2), np.int32).reshape(-1)
    axis = np.array(context.get_values_from_const_input(3), np.int32).reshape(())
    return op.scatter_update(tensor, rows, values, axis).outputs()


_q = "quantized_decomposed"
RULES = {
    f"{_q}.quantize_per_tensor.default": _quantize,
    f"{_q}.quantize_per_tensor.tensor": _quantize,
    f"{_q}.quantize_per_channel.default": _quantize,
    f"{_q}.dequantize_per_tensor.default": _dequantize,
    f"{_q}.dequantize_per_tensor.tensor": _dequantize,
    f"{_q}.dequantize_per_channel.default": _dequantize,
}
"""Our rules, for calls with a constant scale and zero point.

Those of the frontend fit quantized tensors of torch: they drop each dequantization, so
that an int8 weight would be multiplied as it is. Our rules write the form that OpenVINO
turns into integer kernels, that of its ONNX reader. These are FakeQuantize and Convert,
and Convert, Subtract, Multiply.
"""

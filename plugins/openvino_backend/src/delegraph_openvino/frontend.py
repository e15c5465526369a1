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
from .numbered_graph import Call, NumberedGraph
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
"""Dtype of torch -> element type of OpenVINO. Others are not used.

Rules of the frontend get only numbers, so a type is passed as its position here.
"""
ENGINE_TYPES = list(TYPES.values())
DTYPES = {kind: str(dtype).removeprefix("torch.") for dtype, kind in TYPES.items()}
"""Element type of OpenVINO -> the name of the dtype, such as ``float32``."""
PLACE_ROWS = "delegraph.place_rows"
"""The name of the operator that ``_place_rows`` converts."""
NO_RULE = "OpenVINO's frontend has no rule for this operator"
aten = torch.ops.aten
op = ov.opset13
identity_opset = ov.opset16


class Draft(NumberedGraph):
    """The graph of a partition for OpenVINO's frontend.

    The frontend puts a call's name before the names of its operators.
    """

    def write(self, node: Node) -> Call:
        """Return a call that OpenVINO computes correctly.

        Other forms are used if OpenVINO computes the call itself wrongly, or has a rule
        only for core ATen.
        """
        return (
            self._write_without_product(node)
            or self._write_truth_reduction(node)
            or self._write_correction(node)
            or self._write_rows(node)
            or self._write_integer_concatenation(node)
            or self._write_masked_attention(node)
            or self._write_core_call(node)
        )

    def _write_without_product(self, node: Node) -> Call | None:
        """Return ``beta * self`` for an ``addmm`` with alpha=0, or None."""
        if not ignores_product(node):
            return None
        given = bound_arguments(node)
        [tensor] = self.operands(given["self"])
        scaled = self.part(aten.mul.Tensor, tensor, given["beta"])
        return Call(aten.expand.default, (scaled, list(node.meta["val"].shape)), {})

    def _write_truth_reduction(self, node: Node) -> Call | None:
        """Return ``any`` or ``all`` of bools, which are computed from numbers first."""
        if node.target not in REDUCTIONS:
            return None
        tensor: Any = node.args[0]
        dtype = tensor.meta["val"].dtype
        if dtype not in TYPES:
            return None
        [operand] = self.operands(tensor)
        truth = self.part(_Name(TO_BOOL), operand, _position(dtype))
        others, kwargs = self.operands(node.args[1:], node.kwargs)
        return Call(node.target, (truth, *others), kwargs)

    def _write_correction(self, node: Node) -> Call | None:
        """Return the call of a rule of ``corrections``, or None."""
        if getattr(node.target, "namespace", "") != "aten":
            return None
        correction = correct(node, bound_arguments(node), TYPES)
        if correction is None:
            return None
        [operands] = self.operands(correction.operands)
        dtype = _position(correction.dtype)
        return Call(_Name(correction.rule), (*operands, dtype), {})

    def _write_rows(self, node: Node) -> Call | None:
        """Return a ``PLACE_ROWS`` for a ``slice_scatter`` or ``select_scatter``, or None.

        The frontend fails on a chain of these operators. ``PLACE_ROWS`` needs constant
        positions.
        """
        if node.target not in (aten.slice_scatter.default, aten.select_scatter.default):
            return None
        given = bound_arguments(node)
        dim = given["dim"]
        size = given["self"].meta["val"].shape[dim]
        is_select = node.target is aten.select_scatter.default
        names = ["index"] if is_select else ["start", "end", "step"]
        positions = [given[name] for name in names]
        if any(not isinstance(value, int | None) for value in (size, *positions)):
            return None
        if is_select:
            rows = [positions[0] % size]
        else:
            rows = list(range(size))[slice(*positions)]
        if not rows:
            return None
        tensor, values = self.operands(given["self"], given["src"])
        if is_select:
            values = self.part(aten.unsqueeze.default, values, dim)
        axis = dim % given["self"].meta["val"].dim()
        return Call(_Name(PLACE_ROWS), (tensor, values, rows, axis), {})

    def _write_integer_concatenation(self, node: Node) -> Call | None:
        """Return a dequantized concatenation of integers, or None.

        It replaces a concatenation of dequantized tensors. OpenVINO's int8
        transformation of that is wrong, by up to the whole range.
        """
        parts = self.operands(*dequantized_parts(node))
        # in a trial of this call alone, the parts are inputs
        if not parts or any(part.op != "call_function" for part in parts):
            return None
        others, kwargs = self.operands(node.args[1:], node.kwargs)
        integers = self.part(
            node.target, [part.args[0] for part in parts], *others, **kwargs
        )
        # all parts have the same scale and zero point
        return Call(parts[0].target, (integers, *parts[0].args[1:]), {})

    def _write_masked_attention(self, node: Node) -> Call | None:
        """Return an attention whose hidden rows are 0, or None if it has no mask.

        If a mask hides a whole row, OpenVINO computes NaN, and torch 0. Such a row sees
        everything here, and is set to 0 afterwards.
        """
        if "scaled_dot_product" not in str(node.target):
            return None
        mask = bound_arguments(node).get("attn_mask")
        if not isinstance(mask, Node):
            return None
        [given] = self.operands(mask)
        invert = aten.logical_not.default
        visible = given
        if mask.meta["val"].dtype is not torch.bool:
            visible = self.part(invert, self.part(aten.isinf.default, given))
        hidden = self.part(invert, self.part(aten.any.dim, visible, -1, True))
        shown = self.part(aten.masked_fill.Scalar, given, hidden, 1)
        args, kwargs = self.operands(node.args, node.kwargs)
        # query, key and value come first; one of them may be the mask as well
        others, kwargs = torch.fx.map_arg(
            (args[3:], kwargs), lambda operand: shown if operand is given else operand
        )
        attention = self.part(node.target, *args[:3], *others, **kwargs)
        return Call(aten.masked_fill.Scalar, (attention, hidden, 0), {})

    def _write_core_call(self, node: Node) -> Call:
        """Return the call itself, or the one of core ATen that computes the same.

        The frontend has no rules for calls such as conv2d. They are not decomposed
        before, because this plugin keeps them whole.
        """
        known = core_call(node)
        target, *arguments = known or (node.target, node.args, node.kwargs)
        args, kwargs = self.operands(*arguments)
        if getattr(target, "namespace", "") == "quantized_decomposed":
            args = tuple(
                _position(arg) if isinstance(arg, torch.dtype) else arg for arg in args
            )
        if known and len(known[0]._schema.returns) > 1:  # a norm, with its statistics
            norm = self.part(target, *args, **kwargs)
            return Call(operator.getitem, (norm, 0), {})
        return Call(target, args, kwargs)

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


def _position(dtype: torch.dtype) -> int:
    """Return the position of a dtype in ``TYPES``."""
    return list(TYPES).index(dtype)


def ignores_product(node: Node) -> bool:
    """Return whether ``node`` is an ``addmm`` with alpha=0, which is ``beta * self``.

    torch then ignores NaN and infinities of the factors. The shape of the result must
    be known, and ``beta`` must not be 0.
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
            k for k, node in enumerate(self._nodes) if node.op == "placeholder"
        ]
        self._input_signature = [self._nodes[k].name for k in self._inputs]
        self.input_shapes = [list(shape) for _, shape in draft.signature.inputs]
        self._outputs = [("", self._nodes.index(node)) for node in draft.outputs]


class _Nodes(list[Node]):
    """Nodes with an ``index`` that looks up a dict: the decoder calls it per operand."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self.index = {node: k for k, node in enumerate(self)}.__getitem__  # type: ignore[method-assign,assignment]


@cache
def _frontend() -> Any:
    """Return OpenVINO's frontend for torch, with our rules."""
    frontend = FrontEndManager().load_by_framework("pytorch")
    converters: dict[str, Any] = {PLACE_ROWS: _place_rows, "aten.clone.default": _copy}
    for name, convert in RULES.items():
        by_channel = "per_channel" in name
        converters[name] = partial(convert, by_channel)
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
    """Return the line of OpenVINO's error that names the problem, in plain words.

    The other lines are a trace of C++ files.
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
    first = 4 if by_channel else 3
    least, most, kind = (
        int(context.get_values_from_const_input(first + k)) for k in range(3)
    )
    low = np.float32(least)
    high = np.float32(most)
    float_low = (low - zero) * scale
    float_high = (high - zero) * scale
    levels = most - least + 1
    quantized = op.fake_quantize(x, float_low, float_high, low, high, levels)
    return op.convert(quantized, ENGINE_TYPES[kind]).outputs()


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

    Scale and zero point become constants of their final shape. With operators in
    between, OpenVINO's compiler would not find the pattern of its integer kernels.
    """
    x = context.get_input(0)
    scale = context.get_input(1).get_node().data.astype(np.float32)
    zero = context.get_input(2).get_node().data.astype(np.float32)
    if by_channel:
        rank = len(x.get_partial_shape())
        axis = int(context.get_values_from_const_input(3)) % rank
        shape = [-1 if k == axis else 1 for k in range(rank)]
        scale = scale.reshape(shape)
        zero = zero.reshape(shape)
    return _Quantized(x, scale, zero)


def _copy(context: Any) -> Any:
    """Write a copy.

    The frontend writes no operator for one, and fails if a program returns both a value and its copy.
    """
    return identity_opset.identity(context.get_input(0)).outputs()


def _convert_operands(rule: Any, context: Any) -> Any:
    """Call a rule of ``corrections`` with operands of one type.

    The last operand is the position of this type in ``TYPES``.
    """
    last = context.get_input_size() - 1
    kind = ENGINE_TYPES[int(context.get_values_from_const_input(last))]
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
"""Name of a quantize or dequantize operator -> the function that converts it.

The frontend's own rules are for quantized tensors of torch. They drop each
dequantization, so an int8 weight would be multiplied as it is. These functions write
the two patterns that OpenVINO turns into integer kernels: FakeQuantize and Convert to
quantize; Convert, Subtract and Multiply to dequantize.
"""

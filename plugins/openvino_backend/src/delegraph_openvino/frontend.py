"""Graphs of calls become OpenVINO's models, by OpenVINO's own frontend for torch.fx
graphs.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

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
"""The element types that cross the border, or lie inside."""
DTYPES = {kind: str(dtype).removeprefix("torch.") for dtype, kind in TYPES.items()}
PLACE_ROWS = "delegraph.place_rows"
NO_RULE = "OpenVINO's frontend has no rule for this operator"
aten = torch.ops.aten
op = ov.opset13
identity_opset = ov.opset16


class Draft(NumberedGraph):
    """The graph of a partition for OpenVINO's frontend, which puts a call's name before
    those of its operators.
    """

    def write(self, node: Node) -> tuple[Any, Any, Any]:
        """The call as OpenVINO is to have it, where its own way is wrong, or only core
        ATen has a rule there.
        """
        # conv2d, batch_norm and such as operators that the frontend knows: then the
        # core decomposes none
        if ignores_product(node):
            given = bound_arguments(node)
            [tensor] = self.operands(given["self"])
            scaled = self.part(aten.mul.Tensor, tensor, given["beta"])
            return aten.expand.default, (scaled, list(node.meta["val"].shape)), {}
        if node.target in REDUCTIONS and node.args[0].meta["val"].dtype in TYPES:  # type: ignore[union-attr]
            [tensor], rest = self.operands(node.args[:1], (node.args[1:], node.kwargs))
            place = [*TYPES].index(node.args[0].meta["val"].dtype)  # type: ignore[union-attr]
            truth = self.part(_Name(TO_BOOL), tensor, place)
            return node.target, (truth, *rest[0]), rest[1]
        replaced = self._corrected(node) or self._placed(node)
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
            # is wrong, by up to all of the range; of integers it is right. Where the
            # call is alone, to ask about it, its parts are inputs.
            integers = self.part(
                target, [part.args[0] for part in joined], *args[1:], **kwargs
            )
            return joined[0].target, (integers, *joined[0].args[1:]), {}
        if known and len(known[0]._schema.returns) > 1:  # a norm, with its statistics
            return operator.getitem, (self.part(target, *args, **kwargs), 0), {}
        mask = (
            bound_arguments(node).get("attn_mask")
            if "scaled_dot_product" in str(target)
            else None
        )
        if isinstance(mask, Node):
            # OpenVINO computes NaN where a mask hides a whole row, and torch 0: it sees
            # all, and is 0 afterwards.
            [given], invert = self.operands(mask), aten.logical_not.default
            is_bool = mask.meta["val"].dtype is torch.bool
            seen = (
                given
                if is_bool
                else self.part(invert, self.part(aten.isinf.default, given))
            )
            hidden = self.part(invert, self.part(aten.any.dim, seen, -1, True))
            shown = self.part(aten.masked_fill.Scalar, given, hidden, 1)
            more, kwargs = torch.fx.map_arg(
                (args[3:], kwargs), lambda n: shown if n is given else n
            )
            return (
                aten.masked_fill.Scalar,
                (self.part(target, *args[:3], *more, **kwargs), hidden, 0),
                {},
            )
        return target, args, kwargs

    def _corrected(self, node: Node) -> tuple[Any, Any, Any] | None:
        """Return the call with which a rule of ``corrections`` takes the place of the
        frontend's; None if none does.
        """
        if getattr(node.target, "namespace", "") != "aten":
            return None
        corrected = correct(node, bound_arguments(node), [*TYPES])
        if corrected is None:
            return None
        name, operands = corrected
        return _Name(name), self.operands(operands)[0], {}

    def _placed(self, node: Node) -> tuple[Any, Any, Any] | None:
        """Return a call that writes rows at constant places for ``slice_scatter`` and
        ``select_scatter``.

        The frontend fails on a chain of these.
        """
        if node.target not in (aten.slice_scatter.default, aten.select_scatter.default):
            return None
        given = bound_arguments(node)
        dim = given["dim"]
        size = given["self"].meta["val"].shape[dim]
        if node.target is aten.select_scatter.default:
            places: Any = [given["index"]]
        else:
            places = given["start"], given["end"], given["step"]
        if not all(
            isinstance(value, int) or value is None for value in (size, *places)
        ):
            return None
        if node.target is aten.select_scatter.default:
            rows = [places[0] % size]
        else:
            rows = [*range(size)][slice(*places)]
        tensor, values = self.operands(given["self"], given["src"])
        if node.target is aten.select_scatter.default:
            values = self.part(aten.unsqueeze.default, values, dim)
        if not rows:
            return None
        return (
            _Name(PLACE_ROWS),
            (tensor, values, rows, dim % given["self"].meta["val"].dim()),
            {},
        )

    def convert(self) -> ov.Model:
        """OpenVINO's model, of the recorded types and shapes. Raises Unsupported with
        the reason, and the call.
        """
        decoder = _Decoder(self)  # the frontend does not keep it alive
        try:
            model = _frontend().convert(_frontend().load(decoder))
        except Exception as e:
            # OpenVINO names no base of what its frontend raises, in C++ and in Python
            raise self.refused(reason_of(e), str(e)) from e
        if why := self.signature.why_otherwise(
            [None] * len(self.signature.inputs), map(type_of, model.outputs)
        ):
            raise Unsupported("unsupported", f"OpenVINO's model {why}")
        return model


def ignores_product(node: Node) -> bool:
    """Whether torch adds no product, since alpha is 0: NaN and infinities of the
    factors are ignored.
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
    """An operator of this plugin, as the target of a call: the frontend reads its name,
    and nothing calls it.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __str__(self) -> str:
        return self.__name__

    def __call__(self) -> None:
        raise NotImplementedError(self.__name__)


class _Decoder(TorchFXPythonDecoder):  # type: ignore[misc]  # of Any
    """What the frontend reads a draft through. OpenVINO's own reads a GraphModule, for
    which torch writes code.

    That took longer than all else that is done here for a call which is asked about.
    """

    def __init__(self, draft: Draft) -> None:
        types = [
            f"torch.{'int64' if dtype == 'int' else dtype}"
            for dtype, _ in draft.signature.inputs
        ]
        # not read: it is no graph
        super().__init__(SimpleNamespace(**draft.constants), input_types=types)
        self._nodes = _Nodes(draft.graph.nodes)
        self._inputs = [
            place for place, node in enumerate(self._nodes) if node.op == "placeholder"
        ]
        self._input_signature = [self._nodes[place].name for place in self._inputs]
        self.input_shapes = [list(shape) for _, shape in draft.signature.inputs]
        self._outputs = [("", self._nodes.index(node)) for node in draft.outputs]


class _Nodes(list[Node]):
    """Nodes that know their places: the decoder asks for that of each operand, and a
    list would search it.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        super().__init__(nodes)
        self.index = {node: k for k, node in enumerate(self)}.__getitem__  # type: ignore[method-assign,assignment]


@cache
def _frontend() -> Any:
    frontend = FrontEndManager().load_by_framework("pytorch")
    for name, rule in RULES.items():
        frontend.add_extension(
            ConversionExtension(name, partial(rule, "channel" in name))
        )
    for name, rule in rules().items():
        frontend.add_extension(
            ConversionExtension(name, partial(_convert_operands, rule))
        )
    frontend.add_extension(ConversionExtension(PLACE_ROWS, _place_rows))
    frontend.add_extension(ConversionExtension("aten.clone.default", _copy))
    return frontend


def type_of(output: Any) -> tuple[str | None, tuple[int, ...] | None]:
    """Dtype and shape of an input or output of OpenVINO's, as
    ``Signature.why_otherwise`` takes them.
    """
    dtype = DTYPES.get(output.get_element_type())
    shape = output.get_partial_shape()
    known = (
        None
        if shape.rank.is_dynamic
        else [size.get_length() if size.is_static else -1 for size in shape]
    )
    return dtype, None if known is None else tuple(known)


def reason_of(error: Exception) -> str:
    """The line of an error of OpenVINO that tells what is wrong; around it there is a
    trace of C++ files.
    """
    text = str(error)
    if "No conversion rule found" in text:
        return NO_RULE
    lines = re.findall(r"with a message:\s+(.+)", text)
    lines += re.findall(r"^\s*(\S.*)", text, re.MULTILINE)
    lines = [line.strip() for line in lines if not line.startswith(_TRACE)]
    reason = lines[0] if lines else f"its frontend raised {type(error).__name__}"
    if match := re.fullmatch(r"Input with index: (\d+) is none\.", reason):
        return (
            f"OpenVINO's frontend needs argument {match[1]}, which is None or left out"
        )
    if match := re.fullmatch(r"Got less inputs (\d+) than expected (\d+)", reason):
        return (
            f"OpenVINO's frontend needs {match[2]} arguments, and the call has"
            f" {match[1]}"
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
"""Beginnings of lines of OpenVINO's errors that describe its own sources, or only that
it failed.
"""


def _quantize(by_channel: bool, context: Any) -> Any:
    x, scale, zero = _operands(by_channel, context)
    least, most, kind = (
        int(context.get_values_from_const_input(k + by_channel)) for k in (3, 4, 5)
    )
    ends = np.float32(least), np.float32(most)
    quantized = op.fake_quantize(
        x, *((end - zero) * scale for end in ends), *ends, most - least + 1
    )
    return op.convert(quantized, [*TYPES.values()][kind]).outputs()


def _dequantize(by_channel: bool, context: Any) -> Any:
    x, scale, zero = _operands(by_channel, context)
    x = op.convert(x, ov.Type.f32)
    return op.multiply(op.subtract(x, zero) if zero.any() else x, scale).outputs()


def _operands(by_channel: bool, context: Any) -> tuple[Any, Any, Any]:
    """The tensor, and scale and zero point as arrays that broadcast against it.

    What the compiler is to turn into integer kernels has constants there, and no
    operators that compute them.
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
    return x, scale, zero


def _copy(context: Any) -> Any:
    """Return an operator for a copy.

    The frontend has none. It fails if a program returns both a value and its copy.
    """
    return identity_opset.identity(context.get_input(0)).outputs()


def _convert_operands(rule: Any, context: Any) -> Any:
    """Call a rule of ``corrections`` with operands of one type, the place of which
    among ``TYPES`` is the last.
    """
    last = context.get_input_size() - 1
    kind = [*TYPES.values()][int(context.get_values_from_const_input(last))]
    return rule(
        *(op.convert(context.get_input(k), kind) for k in range(last))
    ).outputs()


def _place_rows(context: Any) -> Any:
    """Write values at some places of a dimension of a tensor."""
    tensor = context.get_input(0)
    values = context.get_input(1)
    rows, dim = (
        np.array(context.get_values_from_const_input(k), np.int32) for k in (2, 3)
    )
    return op.scatter_update(
        tensor, rows.reshape(-1), values, dim.reshape(())
    ).outputs()


RULES = {
    f"quantized_decomposed.{kind}_{name}": rule
    for kind, rule in (("quantize", _quantize), ("dequantize", _dequantize))
    for name in ("per_tensor.default", "per_tensor.tensor", "per_channel.default")
}
"""Rules of our own, for calls whose scale and zero point are constants.

Those of the frontend fit quantized tensors of torch: they drop each dequantization, so
that an int8 weight would be multiplied as it is. These write the form that OpenVINO
turns into integer kernels, that of its reader of ONNX: FakeQuantize and Convert, and
Convert, Subtract, Multiply.
"""

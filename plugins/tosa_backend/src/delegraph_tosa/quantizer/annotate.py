"""``TOSAQuantizer`` annotates each call of an exported graph for integer rules.

The registry of lowering rules decides which calls run in integers
(``computes_in_integers``), which share their input's quantization (``MOVES``), and
which limits, such as relu, are fused into the operator before them (the rules on
``Lazy``).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.quantizer import (
    FixedQParamsQuantizationSpec,
    QuantizationAnnotation,
    QuantizationSpecBase,
    Quantizer,
    SharedQuantizationSpec,
)

from ..ir.graph import Value
from ..lowering import RULES, has_rule
from ..lowering.integer import activations, data_movement
from ..lowering.interpret.quantized_calls import computes_in_integers, is_pointwise
from ..lowering.lazy.lazy_values import Lazy
from . import specs
from .calls import arguments, functional, is_constant, is_float, packet
from .decomposed_operators import is_decomposed, write_out
from .masks import hiding
from .settings import (
    Precision,
    Setting,
    Settings,
    expect_operator,
    expect_setting,
    type_name,
)

aten = torch.ops.aten
KEY = "quantization_annotation"
NORMS = ("layer_norm", "rms_norm", "group_norm", "instance_norm", "batch_norm")
"""Their weight and bias are folded exactly, as floats."""
AVERAGES = ("adaptive_avg_pool2d", "_adaptive_avg_pool2d", "mean")
"""Averages of many pixels.

Averages of few pixels are often ties, which AVG_POOL2D rounds differently from torch.
"""
JOINS = (
    "cat",
    "concat",
    "concatenate",
    "stack",
    *(o._overloadpacket.__name__ for o in data_movement.WRITES),
)


class TOSAQuantizer(Quantizer):  # type: ignore[misc]
    """Quantizes calls that the TOSA backend computes in integers, and no others.

    ``qat=True`` is for ``prepare_qat_pt2e``. The most specific setting holds: that of a
    module's name, then of its type, then of the operator, then the global one. None
    leaves floats. Each ``set_`` method returns the quantizer.
    """

    def __init__(self, precision: Setting = Precision(), *, qat: bool = False) -> None:  # noqa: B008
        super().__init__()
        expect_setting(precision)
        self._settings = Settings(precision)
        self._qat = qat
        # see ``set_io``
        self._inputs = True
        self._outputs = True
        self._hiding: set[Node] = set()
        # control flow bodies of the program that was annotated last
        self._bodies: set[GraphModule] = set()

    def set_global(self, setting: Setting) -> TOSAQuantizer:
        """Set the precision of all calls without a more specific setting."""
        expect_setting(setting)
        self._settings.overall = setting
        return self

    def set_operator_type(self, target: Any, setting: Setting) -> TOSAQuantizer:
        """Set the precision of all calls of an operator, such as ``aten.add.Tensor``.

        Raises OptionError.
        """
        expect_setting(setting)
        expect_operator(
            target, lambda op: computes_in_integers(op) or is_decomposed(op)
        )
        self._settings.operators[target] = setting
        return self

    def set_module_type(
        self, kind: type[torch.nn.Module], setting: Setting
    ) -> TOSAQuantizer:
        """Set the precision of all modules of a class. Raises OptionError."""
        expect_setting(setting)
        self._settings.module_types[type_name(kind)] = setting
        return self

    def set_module_name(self, name: str, setting: Setting) -> TOSAQuantizer:
        """Set the precision of a module such as ``"features.0"``, and of all in it."""
        expect_setting(setting)
        self._settings.module_names[name] = setting
        return self

    def set_io(self, *, inputs: bool = True, outputs: bool = True) -> TOSAQuantizer:
        """Set whether calls that read inputs or make outputs are quantized."""
        self._inputs = inputs
        self._outputs = outputs
        return self

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Replace decomposed operators by their parts.

        ``prepare_pt2e`` calls this before ``annotate``.
        """
        write_out(model, lambda node: self._settings.of(node, node.target) is not None)
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate a graph. ``prepare_pt2e`` also calls this for control flow bodies.

        Raises OptionError for settings of a module that the program lacks.
        """
        if model not in self._bodies:
            parts = [part for part in model.modules() if isinstance(part, GraphModule)]
            self._settings.expect_names([part.graph for part in parts])
            self._bodies = set(parts[1:])
        self._hiding = hiding(model.graph.nodes)
        chosen: dict[Node, Precision] = {}
        for node in model.graph.nodes:
            precision = self._precision(node)
            if precision is not None:
                chosen[node] = precision
        for node, precision in chosen.items():
            call = _Call(node, precision, chosen, self._hiding, self._qat)
            node.meta[KEY] = call.annotation()
        return model

    def validate(self, model: GraphModule) -> None:
        """Do nothing: annotations match the rules by construction."""

    def _precision(self, node: Node) -> Setting:
        """Return the setting of a quantized call, or None."""
        if node.op != "call_function":
            return None
        if node.target is operator.getitem:
            source = node.args[0]
            if not isinstance(source, Node) or not is_float(node):
                return None
            return self._precision(source)
        target = functional(node.target)
        if not computes_in_integers(target) and not belongs_to_convolution(node):
            return None
        operands = node.all_input_nodes
        if not any(is_float(n) and n not in self._hiding for n in operands):
            return None
        at_input = any(operand.op == "placeholder" for operand in operands)
        at_output = any(user.op == "output" for user in node.users)
        if (at_input and not self._inputs) or (at_output and not self._outputs):
            return None
        return self._settings.of(node, target)


class _Call:
    """A call that is quantized.

    ``chosen`` are all such calls, with their precision; ``hiding`` are the masks.
    """

    def __init__(
        self,
        node: Node,
        precision: Precision,
        chosen: dict[Node, Precision],
        hiding: set[Node],
        qat: bool,
    ) -> None:
        self.node = node
        self.precision = precision
        self.chosen = chosen
        self.hiding = hiding
        self.qat = qat
        self.target = functional(node.target)

    def annotation(self) -> QuantizationAnnotation:
        """Return the specs of the call's operands and of its result."""
        plain = specs.activation(self.precision, self.qat)
        operands = self._operands()
        for operand, spec in operands.items():
            if spec is plain:
                operands[operand] = self._spec_of_producer(operand)
        return QuantizationAnnotation(operands, self._result(), _annotated=True)

    def _spec_of_producer(self, operand: Node) -> QuantizationSpecBase:
        """Return the fixed spec that ``operand``'s operator has for it, if any.

        With the usual spec, the operand would be quantized twice. A call that joins
        several operands needs the usual spec for all of them.
        """
        plain = specs.activation(self.precision, self.qat)
        if self._joins():
            return plain
        while operand in self.chosen and is_move(operand):
            operand = _first_float(operand)
        if self.chosen.get(operand) != self.precision:
            return plain
        if operand.target is operator.getitem:
            return plain
        producer = _Call(operand, self.precision, self.chosen, self.hiding, self.qat)
        made = producer._result()
        return made if isinstance(made, FixedQParamsQuantizationSpec) else plain

    def _operands(self) -> dict[Node, QuantizationSpecBase | None]:
        """Return the spec of each quantized operand."""
        if self.target is operator.getitem:
            return {}
        named = arguments(self.node)
        plain = specs.activation(self.precision, self.qat)
        x = named.get("input")
        weight = named.get("weight")
        name = packet(self.target)
        if name in NORMS:
            return self._unless_fused([x], plain)
        if self.target is aten.prelu.default and is_constant(named["weight"]):
            return self._unless_fused([named["self"]], plain)
        if isinstance(x, Node) and isinstance(weight, Node):
            return self._weighted(x, weight, named.get("bias"))
        if name == "scaled_dot_product_attention":
            operands = [named["query"], named["key"], named["value"]]
            return self._unless_fused(operands, plain)
        floats = [operand for operand in self.node.all_input_nodes if is_float(operand)]
        floats = [operand for operand in floats if operand not in self.hiding]
        if self._joins():
            first, *others = floats
            shared = SharedQuantizationSpec((first, self.node))
            return {first: plain, **dict.fromkeys(others, shared)}
        return self._unless_fused(floats, plain)

    def _joins(self) -> bool:
        """Return whether the result consists of elements of several operands.

        An operator that accumulates makes sums instead.
        """
        if packet(self.target) not in JOINS:
            return False
        return not arguments(self.node).get("accumulate")

    def _averages(self) -> bool:
        """Return whether the result is an average in the quantization of its operand.

        NPUs compute such an average in a quarter of the cycles of a sum. But this
        quantization is too coarse for averages of values on both sides of 0. So the
        operand must be limited, such as by relu, or only convolutions must read the
        result, which make a gate of it.
        """
        x = self.node.all_input_nodes[0]
        name = packet(self.target)
        if x.meta["val"].dim() != 4 or name not in AVERAGES:
            return False
        if name == "mean":
            axes = [axis % 4 for axis in arguments(self.node).get("dim") or ()]
            if sorted(axes) != [2, 3]:
                return False
        if is_limit(functional(x.target)):
            return True
        users = [packet(functional(user.target)) for user in self.node.users]
        return all(user.startswith("conv") for user in users)

    def _weighted(
        self, x: Node, weight: Node, bias: Any
    ) -> dict[Node, QuantizationSpecBase | None]:
        """Return the specs of the operands of a convolution or a linear layer."""
        plain = specs.activation(self.precision, self.qat)
        found: dict[Node, QuantizationSpecBase | None] = {x: plain}
        has_computed_bias = isinstance(bias, Node) and not is_constant(bias)
        if not is_constant(weight):
            is_linear = packet(self.target) == "linear"
            found[weight] = plain if is_linear else self._computed_kernel()
        else:
            is_transposed = packet(self.target).startswith("conv_transpose")
            precision = self.precision
            if has_computed_bias:
                precision = replace(precision, per_channel=False)
            axis = 1 if is_transposed else 0
            found[weight] = specs.weight(precision, axis, self.qat)
            if isinstance(bias, Node) and not has_computed_bias:
                groups = 1
                if is_transposed and precision.per_channel:
                    groups = arguments(self.node).get("groups", 1)
                found[bias] = specs.bias(precision, x, weight, self.node, groups)
        if has_computed_bias:
            found[bias] = plain
        return found

    def _computed_kernel(self) -> QuantizationSpecBase:
        """Return the spec of a weight that is computed at run time.

        TOSA convolves by int8 only.
        """
        precision = replace(self.precision, activations=torch.int8)
        return specs.activation(precision, self.qat)

    def _unless_fused(
        self, operands: Iterable[Any], spec: QuantizationSpecBase
    ) -> dict[Node, QuantizationSpecBase | None]:
        """Return ``spec`` for operands that are not fused with the call."""
        rounded = [n for n in operands if not self._are_fused(n, self.node)]
        return dict.fromkeys(rounded, spec)

    def _result(self) -> QuantizationSpecBase | None:
        """Return the spec of the result; None if it is not quantized."""
        if not is_float(self.node) or self.node in self.hiding:
            return None
        if len(self.node.users) == 1:
            (user,) = self.node.users
            if self._are_fused(self.node, user):
                return None
        plain = specs.activation(self.precision, self.qat)
        if self.target is operator.getitem:
            source = self.node.args[0]
            assert isinstance(source, Node)
            if packet(source.target) not in data_movement.MOVES:
                return plain
            return SharedQuantizationSpec((_first_float(source), source))
        if self._joins():
            return SharedQuantizationSpec((_first_float(self.node), self.node))
        if is_move(self.node) or self._averages():
            first = _first_float(self.node)
            # a clone inside of a table has no quantized operand
            if not self._are_fused(first, self.node):
                return SharedQuantizationSpec((first, self.node))
        return specs.fixed(self.precision, self.target) or plain

    def _are_fused(self, before: Node, after: Node) -> bool:
        """Return whether the value between two calls is not quantized.

        This is so if only ``after`` uses ``before``, and the lowering computes both
        by one operator.
        """
        if len(before.users) > 1 or self.chosen.get(before) != self.chosen.get(after):
            return False
        if before not in self.chosen or before.target is operator.getitem:
            return False
        if belongs_to_convolution(after):
            return True
        if is_limit(functional(after.target)) or is_scaling(after):
            return not is_move(before)
        if not is_table(before) or not is_table(after):
            return False
        return not is_limit(functional(before.target)) and self._is_of_one_value(before)

    def _is_of_one_value(self, node: Node) -> bool:
        """Return whether a call is a function of one quantized value.

        A chain of tables, all fused, is one if its first operand is quantized.
        """
        before = _first_float(node)
        if not self._are_fused(before, node):
            return True
        if not is_table(before) or is_limit(functional(before.target)):
            return False
        return self._is_of_one_value(before)


def _first_float(node: Node) -> Node:
    """Return the first operand of a call that has floats."""
    return next(operand for operand in node.all_input_nodes if is_float(operand))


def is_limit(target: Any) -> bool:
    """Return whether integers compute the operator as limits of the one before it.

    Examples are relu and clamp.
    """
    rule = RULES.get((target, Lazy))
    if rule is None:
        return False
    module: str = getattr(rule.function, "__module__", "")
    return module == activations.__name__


def is_move(node: Node) -> bool:
    """Return whether the result has only elements of the operand."""
    name = packet(functional(node.target))
    if name == "pad":
        mode: str = arguments(node).get("mode", "constant")
        return mode != "constant"
    return name in data_movement.MOVES


def is_scaling(node: Node) -> bool:
    """Return whether a call multiplies or divides by a positive number.

    Only the scale changes then.
    """
    if packet(functional(node.target)) not in ("mul", "div") or len(node.args) != 2:
        return False
    number = node.args[1]
    return isinstance(number, (int, float)) and number > 0


def is_table(node: Node) -> bool:
    """Return whether a call becomes a TABLE of each element of one tensor."""
    target = functional(node.target)
    tensors = [operand for operand in node.all_input_nodes if is_float(operand)]
    if len(tensors) != 1 or not has_rule(target):
        return False
    return is_pointwise(target, RULES[target, Value])


def belongs_to_convolution(node: Node) -> bool:
    """Return whether torchao folds a batch norm into the convolution before it."""
    source = node.args[0]
    if packet(node.target) != "batch_norm" or not isinstance(source, Node):
        return False
    return packet(source.target).startswith("conv") and len(source.users) == 1

"""``TOSAQuantizer`` annotates each call of an exported graph for integer rules.

The registry of rules decides which calls run in integers, which share their input's
quantization, and which limits are fused into the operator before them
(``computes_in_integers``, the rules on ``Lazy``, ``MOVES``).
"""

from __future__ import annotations

import operator
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

Those of few have ties, which AVG_POOL2D rounds otherwise than eager.
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

    ``qat=True`` is for ``prepare_qat_pt2e``. The setting of a module's name goes before
    that of its type, that before the operator's, that before the one for all; None
    leaves floats. Each ``set_`` returns the quantizer.
    """

    def __init__(self, precision: Setting = Precision(), *, qat: bool = False) -> None:  # noqa: B008
        super().__init__()
        expect_setting(precision)
        self._settings = Settings(precision)
        self._qat = qat
        self._inputs = self._outputs = True
        self._hiding: set[Node] = set()
        self._bodies: set[GraphModule] = set()

    def set_global(self, setting: Setting) -> TOSAQuantizer:
        """For everything that nothing else is set for."""
        expect_setting(setting)
        self._settings.overall = setting
        return self

    def set_operator_type(self, target: Any, setting: Setting) -> TOSAQuantizer:
        """For all calls of an operator, such as ``torch.ops.aten.add.Tensor``.

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
        """For all modules of a class. Raises OptionError."""
        expect_setting(setting)
        self._settings.module_types[type_name(kind)] = setting
        return self

    def set_module_name(self, name: str, setting: Setting) -> TOSAQuantizer:
        """For the module of that name, such as ``"features.0"``, and all in it."""
        expect_setting(setting)
        self._settings.module_names[name] = setting
        return self

    def set_io(self, *, inputs: bool = True, outputs: bool = True) -> TOSAQuantizer:
        """Return whether users of inputs, and producers of outputs, are quantized."""
        self._inputs = inputs
        self._outputs = outputs
        return self

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Write out composite calls. Called by ``prepare_pt2e`` before ``annotate``."""
        write_out(model, lambda node: self._settings.of(node, node.target) is not None)
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate a graph. ``prepare_pt2e`` also calls this for control flow bodies.

        Raises OptionError for settings of a module that is not there.
        """
        if model not in self._bodies:
            parts = [part for part in model.modules() if isinstance(part, GraphModule)]
            self._settings.expect_names([part.graph for part in parts])
            self._bodies = set(parts[1:])
        self._hiding = hiding(model.graph.nodes)
        chosen = {
            n: precision
            for n in model.graph.nodes
            if (precision := self._precision(n)) is not None
        }
        for node, precision in chosen.items():
            node.meta[KEY] = _Call(
                node, precision, chosen, self._hiding, self._qat
            ).annotation()
        return model

    def validate(self, model: GraphModule) -> None:
        """Do nothing: annotations match the rules by construction."""

    def _precision(self, node: Node) -> Setting:
        """Return the setting of a quantized call, or None."""
        if node.op != "call_function":
            return None
        if node.target is operator.getitem:
            source = node.args[0]
            return (
                self._precision(source)
                if isinstance(source, Node) and is_float(node)
                else None
            )
        target = functional(node.target)
        if not computes_in_integers(target) and not belongs_to_convolution(node):
            return None
        if not any(is_float(n) and n not in self._hiding for n in node.all_input_nodes):
            return None
        at_input = any(n.op == "placeholder" for n in node.all_input_nodes)
        at_output = any(n.op == "output" for n in node.users)
        if (at_input and not self._inputs) or (at_output and not self._outputs):
            return None
        return self._settings.of(node, target)


class _Call:
    """A call, with its quantized operands and result."""

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
        plain = specs.activation(self.precision, self.qat)
        operands = {
            n: self._as_made(n) if spec is plain else spec
            for n, spec in self._operands().items()
        }
        return QuantizationAnnotation(operands, self._result(), _annotated=True)

    def _as_made(self, operand: Node) -> QuantizationSpecBase:
        """Return the fixed limits of ``operand``'s operator, if it has any.

        Otherwise it would be quantized twice. A call that joins several operands has the
        limits of none of them.
        """
        plain = specs.activation(self.precision, self.qat)
        while operand in self.chosen and is_move(operand):
            operand = next(n for n in operand.all_input_nodes if is_float(n))
        if (
            self._joins()
            or self.chosen.get(operand) != self.precision
            or operand.target is operator.getitem
        ):
            return plain
        made = _Call(
            operand, self.precision, self.chosen, self.hiding, self.qat
        )._result()
        return made if isinstance(made, FixedQParamsQuantizationSpec) else plain

    def _operands(self) -> dict[Node, QuantizationSpecBase | None]:
        if self.target is operator.getitem:
            return {}
        named = arguments(self.node)
        plain = specs.activation(self.precision, self.qat)
        x = named.get("input")
        weight = named.get("weight")
        if packet(self.target) in NORMS:
            return self._unless_joined({x: plain})
        if self.target is aten.prelu.default and is_constant(named["weight"]):
            return self._unless_joined({named["self"]: plain})
        if isinstance(x, Node) and isinstance(weight, Node):
            return self._weighted(x, weight, named.get("bias"))
        floats = [
            n for n in self.node.all_input_nodes if is_float(n) and n not in self.hiding
        ]
        if packet(self.target) == "scaled_dot_product_attention":
            floats = list(
                dict.fromkeys(named[name] for name in ("query", "key", "value"))
            )
        if self._joins():
            shared = SharedQuantizationSpec((floats[0], self.node))
            return {n: shared if k else plain for k, n in enumerate(floats)}
        return self._unless_joined(dict.fromkeys(floats, plain))

    def _joins(self) -> bool:
        """Return whether results are elements of several operands.

        Adding to existing elements makes sums instead.
        """
        return packet(self.target) in JOINS and not arguments(self.node).get(
            "accumulate"
        )

    def _averages(self) -> bool:
        """Return whether the result averages pixels in their own quantization.

        NPUs average int8 in a quarter of the cycles that sums take, and only in the
        operand's quantization. That is too coarse for the average of values on both
        sides of 0, unless a convolution makes a gate of it.
        """
        x = self.node.all_input_nodes[0]
        name = packet(self.target)
        if x.meta["val"].dim() != 4 or name not in AVERAGES:
            return False
        if name == "mean" and sorted(
            d % 4 for d in arguments(self.node).get("dim") or ()
        ) != [2, 3]:
            return False
        gates = all(
            packet(functional(user.target)).startswith("conv")
            for user in self.node.users
        )
        return gates or is_limit(functional(x.target))

    def _weighted(
        self, x: Node, weight: Node, bias: Any
    ) -> dict[Node, QuantizationSpecBase | None]:
        plain = specs.activation(self.precision, self.qat)
        computed = isinstance(bias, Node) and not is_constant(bias)
        if not is_constant(weight):
            found = {
                x: plain,
                weight: (
                    plain
                    if packet(self.target) == "linear"
                    else self._computed_kernel()
                ),
            }
        else:
            is_transposed = packet(self.target).startswith("conv_transpose")
            axis = 1 if is_transposed else 0
            precision = replace(
                self.precision, per_channel=self.precision.per_channel and not computed
            )
            found = {x: plain, weight: specs.weight(precision, axis, self.qat)}
            if isinstance(bias, Node) and not computed:
                repeated = (
                    arguments(self.node).get("groups", 1)
                    if is_transposed and precision.per_channel
                    else 1
                )
                found[bias] = specs.bias(precision, x, weight, self.node, repeated)
        return {**found, bias: plain} if computed else found

    def _computed_kernel(self) -> QuantizationSpecBase:
        """Of a weight that is computed at run time: TOSA convolves by int8 only."""
        return specs.activation(
            replace(self.precision, activations=torch.int8), self.qat
        )

    def _unless_joined(
        self, operands: dict[Any, QuantizationSpecBase | None]
    ) -> dict[Node, Any]:
        """Return the operands that no operator before passes on without rounding."""
        return {
            n: spec for n, spec in operands.items() if not self._continues(n, self.node)
        }

    def _result(self) -> QuantizationSpecBase | None:
        if not is_float(self.node) or self.node in self.hiding:
            return None
        if len(self.node.users) == 1 and self._continues(
            self.node, next(iter(self.node.users))
        ):
            return None
        source = self.node.args[0]
        if self.target is operator.getitem:
            assert isinstance(source, Node)
            if packet(source.target) not in data_movement.MOVES:
                return specs.activation(self.precision, self.qat)
            first = next(n for n in source.all_input_nodes if is_float(n))
            return SharedQuantizationSpec((first, source))
        if is_move(self.node) or self._joins() or self._averages():
            first = next(n for n in self.node.all_input_nodes if is_float(n))
            # a clone inside the same table has no operand with a quantization that it
            # could share
            if self._joins() or not self._continues(first, self.node):
                return SharedQuantizationSpec((first, self.node))
        return specs.fixed(self.precision, self.target) or specs.activation(
            self.precision, self.qat
        )

    def _continues(self, before: Node, after: Node) -> bool:
        """Return whether ``after`` alone uses ``before`` and can be fused with it."""
        if len(before.users) > 1 or self.chosen.get(before) != self.chosen.get(after):
            return False
        if before not in self.chosen or before.target is operator.getitem:
            return False
        made = functional(before.target)
        uses = functional(after.target)
        if belongs_to_convolution(after):
            return True
        if is_limit(uses) or is_scaling(after):
            return not is_move(before)
        return (
            is_table(before)
            and is_table(after)
            and not is_limit(made)
            and self._is_of_one_value(before)
        )

    def _is_of_one_value(self, node: Node) -> bool:
        """Return whether a table's operand is quantized or part of such a table."""
        while True:
            (before,) = [n for n in node.all_input_nodes if is_float(n)]
            if not self._continues(before, node):
                return True
            if not is_table(before) or is_limit(functional(before.target)):
                return False
            node = before


def is_limit(target: Any) -> bool:
    """relu, clamp and the like: their integer rule limits the call before them."""
    rule = RULES.get((target, Lazy))
    return (
        rule is not None
        and getattr(rule.function, "__module__", "") == activations.__name__
    )


def is_move(node: Node) -> bool:
    """Return whether results are elements of the operand, with its limits."""
    name = packet(functional(node.target))
    return name in data_movement.MOVES or (
        name == "pad" and arguments(node).get("mode", "constant") != "constant"
    )


def is_scaling(node: Node) -> bool:
    """Return whether a call multiplies by a positive number, part of the scale."""
    other = node.args[1] if len(node.args) == 2 else None
    return (
        packet(functional(node.target)) in ("mul", "div")
        and isinstance(other, (int, float))
        and other > 0
    )


def is_table(node: Node) -> bool:
    """Return whether a call becomes a TABLE of each element of one tensor."""
    target = functional(node.target)
    tensors = [n for n in node.all_input_nodes if is_float(n)]
    return (
        len(tensors) == 1
        and has_rule(target)
        and is_pointwise(target, RULES[target, Value])
    )


def belongs_to_convolution(node: Node) -> bool:
    """Return whether torchao folds a batch norm into the convolution before it."""
    source = node.args[0]
    return (
        packet(node.target) == "batch_norm"
        and isinstance(source, Node)
        and packet(source.target).startswith("conv")
        and len(source.users) == 1
    )

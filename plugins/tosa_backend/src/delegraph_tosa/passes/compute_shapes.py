"""Computes dynamic shapes by the shape operators of TOSA 1.1 (EXT-SHAPE)."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from ..ir import operators as tosa
from ..ir.dynamic_sizes import (
    Atom,
    Quotient,
    Symbol,
    is_dynamic,
    products,
    size_of_atom,
)
from ..ir.graph import Entries, Graph, Operator, Undecided, Value, shape_value
from ..ir.size_sources import size_sources
from ..ir.types import DType, Type
from ..spec import TosaSpec
from .rewriter import with_operands


def compute_shapes(graph: Graph, spec: TosaSpec) -> Graph:
    """Replace ``Entries``, shapes as expressions of symbols, by shape operators.

    before: RESHAPE (x, [n, 64]), where x is an input of shape [n, 8, 8]
    after:  n = DIM x, s = CONCAT_SHAPE (n, [64]), RESHAPE (x, s)

    The value of every symbol is measured by DIM of an input. Raises Undecided for a
    symbol that is in no input's shape.
    """
    for operator in graph.operators:
        if any(isinstance(value.producer, Entries) for value in operator.inputs):
            return _ShapeComputations(graph, spec).graph()
    return graph


class _ShapeComputations:
    """The operators of the new graph, shape operators among them.

    Each size and each shape is computed once, before its first use.
    """

    def __init__(self, graph: Graph, spec: TosaSpec) -> None:
        self.old = graph
        self.spec = spec
        # sizes are measured on inputs that need no cast, if possible
        measurable_first = sorted(graph.inputs, key=lambda v: not self.has_dim(v))
        self.size_sources = size_sources(measurable_first)
        self.operators: list[Operator] = []
        # the source of the operator for which shapes are computed
        self.source: Any = None
        # size -> SHAPE [1]
        self.sizes: dict[int, Value] = {}
        # entries -> SHAPE
        self.shapes: dict[tuple[int, ...], Value] = {}
        # old value -> new value, where they differ
        self.values: dict[Value, Value] = {}
        # input -> its cast to fp32, on which sizes are measured
        self.floats: dict[Value, Value] = {}

    def graph(self) -> Graph:
        """Return the new graph."""
        for operator in self.old.operators:
            self.source = operator.source
            inputs = [self.value(v) for v in operator.inputs]
            new = operator
            if any(a is not b for a, b in zip(inputs, operator.inputs, strict=True)):
                new = with_operands(operator, inputs)
                self.values.update(zip(operator.outputs, new.outputs, strict=True))
            self.operators.append(new)
        outputs = [self.values.get(v, v) for v in self.old.outputs]
        return Graph(self.old.inputs, outputs, self.operators, self.old.name)

    def value(self, old: Value) -> Value:
        """Return the value of the new graph for ``old``."""
        if isinstance(old.producer, Entries):
            return self.shape(old.producer.entries or ())
        return self.values.get(old, old)

    def shape(self, entries: tuple[int, ...]) -> Value:
        """Return a SHAPE with these entries."""
        if entries not in self.shapes:
            parts = self.parts(entries)
            if len(parts) == 1:
                self.shapes[entries] = parts[0]
            else:
                self.shapes[entries] = self.make(tosa.CONCAT_SHAPE, *parts)
        return self.shapes[entries]

    def parts(self, entries: tuple[int, ...]) -> list[Value]:
        """Return SHAPEs that CONCAT_SHAPE joins to these entries.

        A run of known entries is one constant.
        """
        parts: list[Value] = []
        for is_known, run in groupby(entries, lambda entry: type(entry) is int):
            if is_known:
                parts.append(_constant(*run))
            else:
                parts += [self.size(entry) for entry in run]
        return parts

    def size(self, size: int) -> Value:
        """Return ``size`` as a SHAPE [1]."""
        if size not in self.sizes:
            self.sizes[size] = self.sum(size) if is_dynamic(size) else _constant(size)
        return self.sizes[size]

    def sum(self, size: int) -> Value:
        """Return a dynamic size, a sum of products, as a SHAPE [1].

        Products are subtracted last, so that no intermediate result is negative.
        """
        total: Value | None = None
        subtracted_last = sorted(products(size), key=lambda term: term.factor < 0)
        for product, factor in subtracted_last:
            part = self.scaled(product, abs(factor))
            if factor < 0:
                minuend = _constant(0) if total is None else total
                total = self.make(tosa.SUB_SHAPE, minuend, part)
            elif total is None:
                total = part
            else:
                total = self.make(tosa.ADD_SHAPE, total, part)
        assert total is not None
        return total

    def scaled(self, product: int, factor: int) -> Value:
        """Return a product of atoms times a number, as a SHAPE [1]."""
        if not is_dynamic(product):
            return _constant(product * factor)
        (monomial,) = product.terms  # type: ignore[attr-defined]
        first, *others = monomial
        result = self.atom(first)
        for other in others:
            result = self.make(tosa.MUL_SHAPE, result, self.atom(other))
        if factor == 1:
            return result
        return self.make(tosa.MUL_SHAPE, result, _constant(factor))

    def atom(self, atom: Atom) -> Value:
        """Return a symbol, quotient, maximum or minimum as a SHAPE [1]."""
        key = size_of_atom(atom)
        if key not in self.sizes:
            self.sizes[key] = self.new_atom(atom)
        return self.sizes[key]

    def new_atom(self, atom: Atom) -> Value:
        """As ``atom``, computed by new operators."""
        if isinstance(atom, Symbol):
            return self.symbol(atom)
        if isinstance(atom, Quotient):
            dividend = self.size(atom.dividend)
            divisor = self.size(atom.divisor)
            return self.make(tosa.DIV_FLOOR_SHAPE, dividend, divisor)
        left = self.size(atom.left)
        right = self.size(atom.right)
        return self.make(tosa.MAX_SHAPE if atom.larger else tosa.MIN_SHAPE, left, right)

    def symbol(self, symbol: Symbol) -> Value:
        """Return a symbol as a SHAPE [1].

        Raises Undecided if no shape of an input has it.
        """
        if symbol not in self.size_sources:
            raise Undecided(f"no input of the delegate has the size {symbol}")
        # the size of this axis is factor * symbol + rest
        input, axis, factor, rest = self.size_sources[symbol]
        measured = input if self.has_dim(input) else self.as_float(input)
        size = self.make(tosa.DIM, measured, axis=axis)
        if rest != 0:
            size = self.make(tosa.SUB_SHAPE, size, self.size(rest))
        if factor != 1:
            size = self.make(tosa.DIV_FLOOR_SHAPE, size, self.size(factor))
        return size

    def has_dim(self, value: Value) -> bool:
        """Return whether the target has DIM for ``value``; int32 requires PRO-INT."""
        return self.spec.why_not(_dim(value)) is None

    def as_float(self, value: Value) -> Value:
        """Return ``value`` cast to fp32, for which every target with PRO-FP has DIM."""
        if value not in self.floats:
            self.floats[value] = self.make(tosa.CAST, value, dtype=DType.FP32)
        return self.floats[value]

    def make(self, cls: type[Operator], *operands: Value, **attributes: Any) -> Value:
        """Append a new operator, and return its only result."""
        operator = cls(operands, self.source, **attributes)
        (type,) = operator.infer()
        operator.outputs = (Value(type, producer=operator),)
        self.operators.append(operator)
        return operator.outputs[0]


def _constant(*entries: int) -> Value:
    """Return a constant SHAPE with these entries."""
    return shape_value(entries)


def _dim(value: Value) -> Operator:
    """Return a DIM of ``value``, used only to check the target."""
    operator = tosa.DIM((value,), axis=0)
    operator.outputs = (Value(Type((1,), DType.SHAPE), producer=operator),)
    return operator

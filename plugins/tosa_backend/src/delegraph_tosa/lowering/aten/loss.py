"""Losses over class labels: negative log-likelihood and cross entropy.

Tensors are flattened to one row of scores [C] for each of M labels. A label equal to
``ignore_index`` is ignored and need not be a class.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ...ir.graph import Value
from ...ir.types import FLOATS, DType
from ..builder import Shape, Tosa
from ..geometry.layout import channels_last, flattened
from ..promotion import converted
from ..ranges.index_bounds import labels
from ..registry import lowers
from .index import gathered
from .reduce import log_softmax_of
from .shape import replace_axis

aten = torch.ops.aten
NONE = 0
MEAN = 1
SUM = 2
INDEXES = {"target": labels("self", "ignore_index")}
"""The labels that eager accepts: classes, or ``ignore_index``."""


class Labels(NamedTuple):
    """Flattened labels [M]: integer classes, and the weight of each label's class.

    ``is_counted`` is bool. An ignored label is not counted, and has class 0 and weight
    0.
    """

    classes: Value
    is_counted: Value
    weights: Value


def _labels(
    t: Tosa, target: Value, weight: Value | None, count: int, ignored: int, dtype: DType
) -> Labels:
    """Return the labels ``target``, of any shape.

    ``weight`` [C] has one weight for each of ``count`` classes; None is all 1.
    ``ignored`` is the ignore_index, ``dtype`` the type of the weights.
    """
    flat = flattened(t, target)
    is_counted = t.logical_not(t.equal(flat, ignored))
    classes = t.select(is_counted, flat, 0)
    if weight is None:
        weights = t.constant(1, dtype, (1,))
    else:
        table = t.reshape(weight, (1, count, 1))
        weights = gathered(t, table, t.reshape(classes, (1, *flat.shape)))
        weights = t.reshape(weights, flat.shape)
    weights = t.select(is_counted, weights, 0)
    return Labels(classes, is_counted, weights)


def _rows(t: Tosa, x: Value) -> Value:
    """x [N,C,*S] or [C] -> [M,C], one row of scores for each label"""
    x = t.ranked(x, max(x.rank, 2))
    classes = x.shape[1]
    classes_last = t.transpose(x, channels_last(x.rank))
    return t.reshape(classes_last, (math.prod(x.shape) // classes, classes))


def _reduced(
    t: Tosa, losses: Value, weights: Value | None, shape: Shape, reduction: int
) -> Value:
    """losses [M] -> ``shape`` (NONE), their sum [] (SUM), or weighted mean [] (MEAN).

    The losses are already multiplied by ``weights`` [M]. None means that all weights
    are 1.
    """
    if reduction == NONE:
        return t.reshape(losses, shape)
    total = t.reduce_sum(losses, 0)
    if reduction == SUM:
        return t.reshape(total, ())
    if weights is None:
        mean = t.mul(total, 1 / losses.shape[0])
    else:
        mean = t.mul(total, t.reciprocal(t.reduce_sum(weights, 0)))
    return t.reshape(mean, ())


def _likelihoods(t: Tosa, rows: Value, labels: Labels) -> Value:
    """rows [M,C] of log-probabilities -> losses [M]; ignored labels give 0.

    The loss of label m is -rows[m, classes[m]] * weights[m].
    """
    count, classes = rows.shape
    table = t.reshape(rows, (count, classes, 1))
    selected = gathered(t, table, t.reshape(labels.classes, (count, 1)))
    losses = t.negate(t.reshape(selected, (count,)))
    weighted = t.mul(losses, labels.weights)
    return t.select(labels.is_counted, weighted, 0)


@lowers(aten.nll_loss_nd.default, indexes=INDEXES)
def nll_loss_nd(
    t: Tosa,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
) -> Value:
    """self [N,C,*S] or [C], target [N,*S] or [], weight [C] -> [N,*S], or [] reduced"""
    rows = _rows(t, self)
    labels = _labels(t, target, weight, rows.shape[1], ignore_index, self.dtype)
    losses = _likelihoods(t, rows, labels)
    return _reduced(t, losses, labels.weights, target.shape, reduction)


@lowers(aten.cross_entropy_loss.default, indexes=INDEXES)
def cross_entropy_loss(
    t: Tosa,
    self: Value,
    target: Value,
    weight: Value | None,
    reduction: int,
    ignore_index: int,
    label_smoothing: float,
) -> Value:
    """self [N,C,*S] or [C], target [N,*S] or [] -> [N,*S] without reduction, else []

    A float target has probabilities of classes in the shape of self.
    """
    class_axis = 1 if self.rank > 1 else 0
    rows = _rows(t, log_softmax_of(t, self, class_axis))
    classes = rows.shape[1]
    weighted_rows = rows
    if weight is not None:
        weighted_rows = t.mul(rows, t.reshape(weight, (1, classes)))
    if target.dtype in FLOATS:
        probabilities = _rows(t, converted(t, target, self.dtype))
        losses = _losses_of_probabilities(
            t, weighted_rows, probabilities, label_smoothing
        )
        shape = replace_axis(self.shape, class_axis)
        return _reduced(t, losses, None, shape, reduction)
    labels = _labels(t, target, weight, classes, ignore_index, self.dtype)
    losses = _likelihoods(t, rows, labels)
    if label_smoothing:
        # smoothing spreads this share of the probability evenly over all classes
        sums = t.negate(t.reduce_sum(weighted_rows, 1))
        sums = t.select(labels.is_counted, t.reshape(sums, losses.shape), 0)
        even_share = t.mul(sums, label_smoothing / classes)
        label_share = t.mul(losses, 1 - label_smoothing)
        losses = t.add(label_share, even_share)
    return _reduced(t, losses, labels.weights, target.shape, reduction)


def _losses_of_probabilities(
    t: Tosa, rows: Value, probabilities: Value, label_smoothing: float
) -> Value:
    """rows [M,C], probabilities [M,C] -> losses [M]: -sum(row * probabilities of m).

    ``rows`` are log-probabilities, multiplied by the weights of their classes.
    """
    count, classes = rows.shape
    if label_smoothing:
        # smoothing spreads this share of the probability evenly over all classes
        rest = t.mul(probabilities, 1 - label_smoothing)
        probabilities = t.add(rest, label_smoothing / classes)
    products = t.mul(rows, probabilities)
    losses = t.negate(t.reduce_sum(products, 1))
    return t.reshape(losses, (count,))

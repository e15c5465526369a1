"""Metrics, which score the outputs of one sample: better outputs get a larger number."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError, OptionError
from delegraph.host import Verification
from torch.utils import _pytree as pytree

Metric = Callable[[Any, Any], Any]
"""Takes the outputs of a sample and its label, and returns a number.

The number is larger if the outputs are better. If a sample has no label, the metric
gets the outputs of eager PyTorch in its place.
"""


def agreement(outputs: Any, expected: Any) -> float:
    """Return 1 minus the largest relative error of the outputs, and at least 0."""
    return max(0.0, 1.0 - Verification.of(outputs, expected).relative_error)


def top1(outputs: Any, expected: Any) -> float:
    """Return the share of rows of the first output whose largest element is expected.

    ``expected``: a class, a class for each row, or other outputs, such as eager's. A
    row with NaN is wrong. Raises ValueError if the shapes do not fit.
    """
    scores = pytree.tree_leaves(outputs)[0]  # [..., classes]
    if scores.shape[-1:] in ((), (1,)):
        raise ValueError(f"outputs of the shape {list(scores.shape)} have no classes")
    leaves = [torch.as_tensor(leaf) for leaf in pytree.tree_leaves(expected)]
    if leaves[0].shape == scores.shape:
        wanted = leaves[0].argmax(-1)
    else:
        wanted = torch.cat([leaf.reshape(-1) for leaf in leaves])
    classes = scores.argmax(-1)
    if wanted.numel() not in (1, classes.numel()):
        raise ValueError(
            f"outputs of the shape {list(scores.shape)} need {classes.numel()} labels,"
            f" not {wanted.numel()}"
        )
    right = classes.reshape(-1) == wanted.reshape(-1)
    has_nan = scores.isnan().any(-1).reshape(-1)
    return float((right & ~has_nan).double().mean())


NAMED = {"agreement": agreement, "top1": top1}
"""Metrics that can be chosen by name."""


class ScoredMetric(NamedTuple):
    """A metric with its name.

    ``uses_labels``: whether it gets the label of a sample that has one.
    """

    name: str
    function: Metric
    uses_labels: bool

    @classmethod
    def of(cls, metric: Metric | str | None) -> ScoredMetric:
        """Return the given metric; by default ``agreement`` with eager PyTorch."""
        if metric is None or metric == "agreement":
            return cls("agreement", agreement, False)
        if isinstance(metric, str):
            if metric not in NAMED:
                known = ", ".join(NAMED)
                raise OptionError(
                    "option-invalid",
                    f"there is no metric {metric!r}; metrics with a name: {known}",
                    hint="or pass a function of outputs and label",
                )
            return cls(metric, NAMED[metric], True)
        name = getattr(metric, "__name__", type(metric).__name__)
        return cls(name, metric, True)

    def score(self, outputs: Any, label: Any, expected: Any) -> float:
        """Return the number for one sample.

        ``expected``: the outputs of eager PyTorch. Raises InputError if the metric
        fails or returns no number. The metric gets copies, because it may write to
        them.
        """
        reference = label if self.uses_labels and label is not None else expected
        try:
            return float(
                self.function(copy.deepcopy(outputs), copy.deepcopy(reference))
            )
        except Exception as e:  # a metric is a function of the user
            text = f"the metric {self.name} raises {type(e).__name__}: {e}"
            hint = "it takes the outputs of one sample and its label; returns a number"
            raise InputError("input-invalid", text, hint=hint) from e

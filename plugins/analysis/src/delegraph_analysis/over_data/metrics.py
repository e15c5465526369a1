"""Metrics of one sample: a number from its outputs, larger if they are better."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError, OptionError
from delegraph.host import Verification
from torch.utils import _pytree as pytree

Metric = Callable[[Any, Any], Any]
"""Takes the outputs of a sample and its label, and returns a number.

The number is larger if the outputs are better. A sample without a label gives the
outputs of eager PyTorch in its place.
"""


def agreement(outputs: Any, expected: Any) -> float:
    """Return 1 minus the largest relative error of the outputs, and at least 0."""
    return max(0.0, 1.0 - Verification.of(outputs, expected).relative_error)


def top1(outputs: Any, expected: Any) -> float:
    """Return the share of rows of the first output whose largest element is expected.

    ``expected``: a class, a class for each row, or other outputs, such as eager's.
    """
    scores = pytree.tree_leaves(outputs)[0]
    classes = scores.argmax(-1)
    wanted = pytree.tree_leaves(expected)[0]
    if isinstance(wanted, torch.Tensor) and wanted.shape == scores.shape:
        wanted = wanted.argmax(-1)
    return float((classes == torch.as_tensor(wanted)).double().mean())


NAMED = {"agreement": agreement, "top1": top1}
"""Metrics that a name chooses."""


class ScoredMetric(NamedTuple):
    """A metric with its name, and a text that differs for another metric.

    ``uses_labels``: whether it gets the label of a sample that has one.
    """

    name: str
    function: Metric
    identity: str
    uses_labels: bool

    @classmethod
    def of(cls, metric: Metric | str | None) -> ScoredMetric:
        """Return the given metric; by default ``agreement`` with eager PyTorch."""
        if metric is None or metric == "agreement":
            return cls("agreement", agreement, "agreement", False)
        if isinstance(metric, str):
            if metric not in NAMED:
                known = ", ".join(NAMED)
                raise OptionError(
                    "option-invalid",
                    f"there is no metric {metric!r}; metrics with a name: {known}",
                    hint="or pass a function of outputs and label",
                )
            return cls(metric, NAMED[metric], metric, True)
        name = getattr(metric, "__name__", type(metric).__name__)
        return cls(name, metric, f"{name} {_source(metric)}", True)

    def score(self, outputs: Any, label: Any, expected: Any) -> float:
        """Return the number for one sample.

        ``expected``: the outputs of eager PyTorch. Raises InputError if the metric
        fails or returns no number.
        """
        reference = label if self.uses_labels and label is not None else expected
        try:
            return float(self.function(outputs, reference))
        except Exception as e:  # a metric is a function of the user
            text = f"the metric {self.name} raises {type(e).__name__}: {e}"
            hint = "it takes the outputs of one sample and its label; returns a number"
            raise InputError("input-invalid", text, hint=hint) from e


def _source(metric: Metric) -> str:
    """Return the source of a metric; "" if there is none, as for built-in functions."""
    try:
        return inspect.getsource(metric)
    except (OSError, TypeError):
        return ""

"""Find the values of a program among the values that a delegate's runtime observes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from delegraph.delegates import LoweredBackendModule
from delegraph.host import TOLERANCES, OutputStatistics, compare
from delegraph.runtime import Inside
from torch.fx import Node

from .eager_values import EagerValues, Pair

_NHWC = ((0, 3, 1, 2), (0, 2, 3, 1))
"""Permutations from and to NHWC, the layout of images in many backends."""
_INTEGERS = {torch.int32, torch.int64}
"""Types that may stand for each other: a backend without int64 keeps values in int32."""
FUSED = "the backend has fused or moved them"
"""The reason why values inside a delegate are not compared."""


class Found(NamedTuple):
    """An observed value, and its comparison with float64 if that was made."""

    value: torch.Tensor
    figures: OutputStatistics | None = None


class DelegateValues:
    """The operators of one delegate, and the values that its runtime observed.

    ``observed`` is None if the runtime observes no values.
    """

    def __init__(self, module: LoweredBackendModule, observed: Inside | None) -> None:
        self.values = EagerValues(module.original_module)
        self.returned = self.values.returned()
        self.why_not = "its runtime does not observe values inside the delegate"
        self._by_handle: dict[int, list[torch.Tensor]] = {}
        if observed is not None:
            self.why_not = FUSED
            self._by_handle = _by_handle(module, observed)

    def find(self, node: Node, pair: Pair) -> Found | None:
        """Return the value of ``node`` that agrees best, of those with its debug handle.

        A handle may have several values, since all calls of a decomposition share it.
        A backend may also keep a value in another layout.
        """
        candidates: list[torch.Tensor] = []
        for value in self._by_handle.get(node.meta.get("debug_handle", -1), ()):
            candidates += _as_layouts(value, pair.eager)
        if len(candidates) == 1:
            return Found(candidates[0])
        best: Found | None = None
        least = float("inf")
        for candidate in candidates:
            figures = compare(node.name, candidate, pair.exact)
            error = float("inf") if figures.mismatched else figures.relative_error
            if best is None or error < least:
                best = Found(candidate, figures)
                least = error
            # near enough: another candidate would hardly agree better
            if least <= 0.01 * TOLERANCES.get(figures.dtype, 0.0):
                break
        return best


def _by_handle(
    module: LoweredBackendModule, observed: Inside
) -> dict[int, list[torch.Tensor]]:
    """Return debug handle -> observed values, in reverse order.

    The last value of a decomposition is its result, so it is tried first.
    """
    found: dict[int, list[torch.Tensor]] = {}
    handles: dict[Any, tuple[int, ...]] = module.meta.get("debug_handle_map") or {}
    for identifier, values in reversed(list(observed.items())):
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        for handle in handles.get(identifier, ()):
            found.setdefault(handle, []).extend(tensors)
    return found


def _as_layouts(value: torch.Tensor, wanted: Any) -> Iterator[torch.Tensor]:
    """Yield ``value`` in the shape of ``wanted``, for each possible layout."""
    both_integers = value.dtype in _INTEGERS and wanted.dtype in _INTEGERS
    same_type = value.dtype == wanted.dtype or both_integers
    if not same_type or value.numel() != wanted.numel():
        return
    value = value.to(wanted.dtype)
    yield value.reshape(wanted.shape)
    if value.dim() == 4:
        for order in _NHWC:
            moved = value.permute(order)
            if moved.shape == wanted.shape:
                yield moved

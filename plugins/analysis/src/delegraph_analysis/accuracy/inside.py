"""Finding the values of a program among those that a delegate's runtime tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from delegraph.delegates import LoweredBackendModule
from delegraph.host import TOLERANCES, OutputStatistics, compare
from delegraph.runtime import Inside
from torch.fx import Node

from .eager_values import EagerValues, Pair

_NHWC = ((0, 3, 1, 2), (0, 2, 3, 1))
"""From and to the layout that many backends compute images in."""
_INTEGERS = {torch.int32, torch.int64}
"""A backend without the wider one may hold its values in the other."""


class DelegateValues:
    """The operators of one delegate, and what was told of them; None if its runtime
    tells nothing.
    """

    def __init__(self, module: LoweredBackendModule, told: Inside | None) -> None:
        self.values = EagerValues(module.original_module)
        self.returned = self.values.returned()
        self.why_not = "its runtime tells the border of the delegate only"
        self._by_handle: dict[int, list[torch.Tensor]] | None = None
        if told is not None:
            self.why_not = "the backend has fused or moved them"
            self._by_handle = _by_handle(module, told)

    def find(
        self, node: Node, pair: Pair
    ) -> tuple[torch.Tensor, OutputStatistics | None] | None:
        """The value of ``node``: of those under its debug handle the one that agrees
        best, and how if there are others.

        A backend may hold a value in another layout, and one handle stands for all that
        a call was decomposed to.
        """
        told = (self._by_handle or {}).get(node.meta.get("debug_handle", -1), ())
        candidates = [c for value in told for c in _as_layouts(value, pair.eager)]
        if len(candidates) == 1:
            return candidates[0], None
        best: tuple[torch.Tensor, OutputStatistics | None] | None = None
        least = float("inf")
        for candidate in candidates:
            figures = compare(node.name, candidate, pair.exact)
            error = float("inf") if figures.mismatched else figures.relative_error
            if best is None or error < least:
                best = (candidate, figures)
                least = error
            if least <= 0.01 * TOLERANCES.get(figures.dtype, 0.0):
                break
        return best


def _by_handle(
    module: LoweredBackendModule, told: Inside
) -> dict[int, list[torch.Tensor]]:
    """Debug handle -> what the backend computed for it, last results first."""
    found: dict[int, list[torch.Tensor]] = {}
    handles: dict[Any, tuple[int, ...]] = module.meta.get("debug_handle_map") or {}
    for identifier, values in reversed(list(told.items())):
        for handle in handles.get(identifier, ()):
            found.setdefault(handle, []).extend(
                v for v in values if isinstance(v, torch.Tensor)
            )
    return found


def _as_layouts(value: torch.Tensor, wanted: Any) -> Iterator[torch.Tensor]:
    """``value`` in the shape of ``wanted``, in each way in which it may be meant."""
    both_integers = value.dtype in _INTEGERS and wanted.dtype in _INTEGERS
    if value.numel() != wanted.numel() or (
        value.dtype != wanted.dtype and not both_integers
    ):
        return
    value = value.to(wanted.dtype)
    yield value.reshape(wanted.shape)
    if value.dim() == 4:
        yield from (
            moved
            for order in _NHWC
            if (moved := value.permute(order)).shape == wanted.shape
        )

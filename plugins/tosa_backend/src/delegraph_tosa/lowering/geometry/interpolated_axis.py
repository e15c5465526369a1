"""One axis of an interpolation, with sizes that are known beforehand or at run time only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

f32 = np.float32


class Axis(NamedTuple):
    """Sizes along one axis, and the input elements per output element where the user gave a scale."""

    size: int
    out: int
    scale: float | None = None

    def step(self, corners: bool = False) -> np.float32:
        """Input elements per output element; with ``corners`` the centres of the outer ones stay."""
        if corners:
            return f32(self.size - 1) / f32(self.out - 1) if self.out > 1 else f32(0)
        if self.scale is not None and self.scale > 0:
            return f32(1 / self.scale)
        return f32(self.size) / f32(self.out)

    def places(self, corners: bool) -> Any:
        """Where in the input the centres of the outputs lie, in elements."""
        outputs = np.arange(self.out, dtype=f32)
        step = self.step(corners)
        return outputs * step if corners else (outputs + f32(0.5)) * step - f32(0.5)

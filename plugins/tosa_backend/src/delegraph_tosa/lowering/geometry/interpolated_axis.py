"""One axis of an interpolation; its sizes may be known at run time only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

f32 = np.float32


class Axis(NamedTuple):
    """An axis of an interpolation: input ``size``, output size ``out``, and ``scale``.

    ``scale`` is output elements per input element as the user gave it, or None if the
    user gave sizes.
    """

    size: int
    out: int
    scale: float | None = None

    def step(self, corners: bool = False) -> np.float32:
        """Return input elements per output element.

        ``corners`` is torch's align_corners: the centres of the outermost elements
        coincide.
        """
        if corners:
            if self.out <= 1:
                return f32(0)
            return f32(self.size - 1) / f32(self.out - 1)
        if self.scale is not None and self.scale > 0:
            return f32(1 / self.scale)
        return f32(self.size) / f32(self.out)

    def places(self, corners: bool) -> Any:
        """Return fp32 [out]: the centres of output elements, in input positions."""
        outputs = np.arange(self.out, dtype=f32)
        step = self.step(corners)
        if corners:
            return outputs * step
        half = f32(0.5)
        return (outputs + half) * step - half

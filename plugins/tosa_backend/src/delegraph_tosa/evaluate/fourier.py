"""Kernels of the Fourier transforms (specification 2.2, EXT-FFT), computed in fp64."""

from __future__ import annotations

import numpy as np

from ..ir import operators as ops
from ..ir.graph import Array
from .kernels import computes


@computes(ops.FFT2D)
def fft2d(op: ops.FFT2D, real: Array, imag: Array) -> tuple[Array, Array]:
    """[N,H,W] twice -> [N,H,W] twice; the inverse is not divided by H*W."""
    values = real.astype(np.float64) + 1j * imag.astype(np.float64)
    spectrum = np.fft.ifft2(values, norm="forward") if op.inverse else np.fft.fft2(values)
    return spectrum.real, spectrum.imag


@computes(ops.RFFT2D)
def rfft2d(op: ops.RFFT2D, real: Array) -> tuple[Array, Array]:
    """[N,H,W] -> [N,H,W/2+1] twice."""
    spectrum = np.fft.rfft2(real.astype(np.float64))
    return spectrum.real, spectrum.imag

"""Kernels of the Fourier transforms FFT2D and RFFT2D (EXT-FFT), computed in fp64."""

from __future__ import annotations

import numpy as np

from ..ir import operators as ops
from ..ir.graph import Array
from .kernels import computes


@computes(ops.FFT2D)
def fft2d(op: ops.FFT2D, real: Array, imag: Array) -> tuple[Array, Array]:
    """Transform real and imaginary parts [N,H,W]; the inverse is not divided by H*W."""
    values = real.astype(np.float64) + 1j * imag.astype(np.float64)
    if op.inverse:
        spectrum = np.fft.ifft2(values, norm="forward")
    else:
        spectrum = np.fft.fft2(values)
    return _parts(spectrum, values)


@computes(ops.RFFT2D)
def rfft2d(op: ops.RFFT2D, real: Array) -> tuple[Array, Array]:
    """Transform [N,H,W] to real and imaginary parts [N,H,W/2+1]."""
    return _parts(np.fft.rfft2(real.astype(np.float64)), real)


def _parts(spectrum: Array, values: Array) -> tuple[Array, Array]:
    """Return the real and the imaginary parts of ``spectrum``.

    They are NaN for images in which ``values`` are not finite, as a direct transform
    would compute.
    """
    is_finite = np.isfinite(values).all(axis=(1, 2), keepdims=True)
    real = np.where(is_finite, spectrum.real, np.nan)
    imag = np.where(is_finite, spectrum.imag, np.nan)
    return real, imag

"""Show the first tensor of a sample: a picture, or the curve of a signal."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from .samples import Sample

SIDE = 128
"""The largest width and height of an image, in pixels."""
_SIGNAL = 32
"""Shorter signals are not drawn."""


def picture_of(sample: Sample) -> str:
    """Return HTML that shows the first tensor of the inputs; "" if it is no picture."""
    leaves = pytree.tree_leaves((sample.args, sample.kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors or tensors[0].is_complex() or tensors[0].numel() == 0:
        return ""
    values = tensors[0].detach().double().cpu().numpy()
    # the first of a batch
    while values.ndim > 3 or (values.ndim > 1 and len(values) == 1):
        values = values[0]
    if values.ndim == 1 and len(values) >= _SIGNAL:
        return _curve(values)
    if values.ndim == 2 and min(values.shape) > 1:
        return _image(values[:, :, None])
    if values.ndim == 3 and len(values) in (3, 4):
        return _image(np.moveaxis(values[:3], 0, 2))
    return ""


def _scaled(values: Any) -> Any:
    """Return the values as numbers from 0 to 1; NaN and infinities are 0."""
    finite = np.where(np.isfinite(values), values, 0.0)
    low = finite.min()
    return (finite - low) / max(finite.max() - low, 1e-30)


def _image(values: Any) -> str:
    """Return an image element of an array [height, width, 1 or 3].

    Of a large array, it has every second (third, ...) pixel.
    """
    step = max(1, math.ceil(max(values.shape[:2]) / SIDE))
    pixels = np.round(255 * _scaled(values[::step, ::step])).astype(np.uint8)
    data = base64.b64encode(_png(pixels)).decode()
    height, width = pixels.shape[:2]
    return (
        f'<img alt="input" width="{width}" height="{height}"'
        f' src="data:image/png;base64,{data}"/>'
    )


def _png(pixels: Any) -> bytes:
    """Return a PNG file of bytes [height, width, 1 or 3]."""
    height, width, channels = pixels.shape
    colour = 0 if channels == 1 else 2
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    # each line begins with the number of its filter
    lines = b"".join(b"\0" + line.tobytes() for line in pixels)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file: length, kind, data and checksum."""
    check = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)


def _curve(values: Any) -> str:
    """Return an SVG of a signal.

    The signal is split into parts, one a pixel: a line connects their largest and least
    values.
    """
    parts = np.array_split(_scaled(values), min(2 * SIDE, len(values)))
    points = []
    for x, part in enumerate(parts):
        points.append(f"{x},{60 - 60 * part.max():.1f}")
        points.append(f"{x},{60 - 60 * part.min():.1f}")
    return (
        f'<svg role="img" aria-label="input" width="{len(parts)}" height="60">'
        f'<path d="M{" L".join(points)}"/></svg>'
    )

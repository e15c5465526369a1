"""Weights of four bits, two in a byte of the file: the host takes them apart before it turns them into floats.

PyTorch holds integers of four bits one in a byte. XNNPACK packs those that it multiplies by; what the host dequantizes
itself, as of a weight-only quantization, would take twice its bytes in the file.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import torch
from torch.fx import Node

from ..kernels import find_kernel
from ..memory.storage import Home, Storage
from ..program.tables import TensorList
from .body import Body
from .values import TensorValue, planned_tensor

aten = torch.ops.aten
LEAST = 1 << 12
"""Elements from which on a weight is packed: below, the calls that take it apart are larger than what they save."""
_BITS, _LOWEST, _HIGHEST = 4, -8, 7
_PIECE = 1 << 20
"""Bytes that are packed at once while a file is written."""
_KERNELS = (aten.bitwise_left_shift.Tensor_Scalar, aten.bitwise_right_shift.Tensor_Scalar, aten.cat.default)


class Nibbles:
    """The bytes of a packed weight (a ``delegraph.backend.Blob``): row k in the low bits, row n/2 + k in the high."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def __len__(self) -> int:
        return self._weight.numel() // 2

    def write_to(self, file: BinaryIO) -> None:
        """Append the bytes to ``file``."""
        low, high = (half.reshape(-1) for half in self._weight.chunk(2))
        for start in range(0, len(self), _PIECE):
            piece = slice(start, start + _PIECE)
            file.write(((low[piece] & 0xF) | (high[piece] << _BITS)).numpy().tobytes())


def unpack_weight(body: Body, node: Node) -> None:
    """Let the operand of a cast be taken apart from a constant that has two of its elements in a byte.

    Nothing happens where it is no constant of the file, has other numbers or too few, or where kernels are missing.
    """
    if node.target is not aten._to_copy.default or not body.context.packs_int4:
        return
    operand: Any = node.args[0]
    weight = body.item(operand)
    if not isinstance(weight, TensorValue) or weight.constant is None or weight.file or not _is_int4(weight.constant):
        return
    if any(find_kernel(target, body.context.kernels) is None for target in _KERNELS):
        return
    half = (weight.sizes[0] // 2, *weight.sizes[1:])
    packed = TensorValue(torch.int8, half, Storage(weight.storage.nbytes // 2, Home.CONSTANT))
    packed.stored = Nibbles(weight.constant)
    low = _shifted(body, "right", _shifted(body, "left", packed))
    high = _shifted(body, "right", packed)
    body.of[operand] = both = planned_tensor(torch.int8, weight.sizes, varies=False)
    halves = body.assembler.values.references(TensorList, [body.position(low), body.position(high)])
    place = body.position(both)
    body.assembler.kernel("aten::cat", "out", [halves, body.position(0), place, place])


def _shifted(body: Body, direction: str, tensor: TensorValue) -> TensorValue:
    made = planned_tensor(torch.int8, tensor.sizes, varies=False)
    args = [body.position(item) for item in (tensor, _BITS, made, made)]
    body.assembler.kernel(f"aten::bitwise_{direction}_shift", "Tensor_Scalar_out", args)
    return made


def _is_int4(weight: torch.Tensor) -> bool:
    if weight.dtype is not torch.int8 or weight.numel() < LEAST or weight.shape[0] % 2:
        return False
    lowest, highest = weight.aminmax()
    return _LOWEST <= int(lowest) and int(highest) <= _HIGHEST

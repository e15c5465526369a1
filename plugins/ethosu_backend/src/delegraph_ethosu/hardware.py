"""The targets ``u55`` and ``u85``: the TOSA operators of Ethos-U55, U65 and U85.

``u55.json`` lists all operators that the U55 has, with their limits; ``u85.json`` lists
limits, and the U85 has every other operator of the integer profile. Each row names its
source. The keys of a row:

- ``types``: element types of the first operand; ``to``: of the result. All if missing.
- ``rank``, ``batch``, ``sizes``, ``channels``: the largest rank, first size of a tensor
  of rank 4, size of any other axis, and last size, of the first operand and of the
  result; of ``channels`` the operand alone.
- ``area``, ``height``, ``depth``: the largest window of a kernel; ``padded``: its
  largest size with padding.
- ``stride``: the largest, along axes on which the window moves; ``strides``: all
  supported pairs.
- ``terms``: the most products in the sum of one element.
- ``constants``: positions of operands that must be constant. ``last_axis``,
  ``not_last_axis``: the supported axis.
- ``rounds``: a shift must round. ``upscale``: factors of RESIZE, NEAREST, the same for
  both axes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from delegraph_tosa import Operator, Value, materialize, narrow

TARGETS = {"1.0": "TOSA-1.0+INT+int16+int4", "0.80": "TOSA-0.80+BI"}
"""Version of TOSA -> the target that Vela reads, without a processor suffix."""
Limits = Mapping[str, Any]


@cache
def table(device: str) -> dict[str, Limits]:
    """Return the limits of each operator on ``device``, "u55" or "u85"."""
    text = (files(__package__) / f"{device}.json").read_text()
    rows: dict[str, Limits] = json.loads(text)["operators"]
    return rows


def why_not_u55(operator: Operator) -> str | None:
    """Return why Ethos-U55 and U65 do not support a TOSA operator, or None."""
    limits = table("u55").get(operator.name)
    if limits is None:
        return f"Ethos-U55 and U65 do not support {operator.name}"
    return next(_exceeded("Ethos-U55 and U65", operator, limits), None)


def why_not_u85(operator: Operator) -> str | None:
    """Return why Ethos-U85 does not support a TOSA operator, or None."""
    limits = table("u85").get(operator.name, {})
    return next(_exceeded("Ethos-U85 processors", operator, limits), None)


def _exceeded(device: str, operator: Operator, limits: Limits) -> Iterator[str]:
    """Yield a sentence for each limit of a device that an operator exceeds.

    Each begins with ``takes``, such as "Ethos-U85 processors take a MATMUL".
    """
    takes = f"{device} take a {operator.name}"
    operands = operator.inputs
    constants = [operands[position] for position in limits.get("constants", ())]
    if any(operand.constant is None for operand in constants):
        yield f"{takes} with constant weights and biases only"
    if not operands:
        return
    given = operands[0].type
    result = operator.outputs[0].type
    if str(given.dtype) not in limits.get("types", [str(given.dtype)]):
        yield f"{takes} of {' or '.join(limits['types'])}, not of {given.dtype}"
    if str(result.dtype) not in limits.get("to", [str(result.dtype)]):
        yield f"{takes} to {' or '.join(limits['to'])}, not to {result.dtype}"
    for shape in (given.shape, result.shape):
        yield from _exceeded_by_shape(takes, shape, limits)
    if given.shape and given.shape[-1] > limits.get("channels", math.inf):
        yield f"{takes} of at most {limits['channels']} channels, not {given.shape[-1]}"
    for check in (_exceeded_by_axis, _exceeded_by_window, _exceeded_by_resize):
        yield from check(takes, operator, limits)


def _exceeded_by_shape(
    takes: str, shape: tuple[int, ...], limits: Limits
) -> Iterator[str]:
    """Yield the limits that a tensor's shape exceeds."""
    if len(shape) > limits.get("rank", math.inf):
        yield f"{takes} of at most {limits['rank']} axes, not {len(shape)}"
    if len(shape) == 4 and shape[0] > limits.get("batch", math.inf):
        yield f"{takes} of one image at a time, not {shape[0]}"
    largest = max(shape, default=0)
    if largest > limits.get("sizes", math.inf):
        yield f"{takes} of sizes up to {limits['sizes']}, not {largest}"


def _exceeded_by_axis(takes: str, operator: Any, limits: Limits) -> Iterator[str]:
    """Yield the limits that the axis or the rounding of an operator exceeds."""
    is_last = getattr(operator, "axis", None) == operator.inputs[0].rank - 1
    if limits.get("last_axis") and not is_last:
        yield f"{takes} along the last axis only"
    if limits.get("not_last_axis") and is_last:
        yield f"{takes} along any axis but the last"
    if limits.get("rounds") and not operator.round:
        yield f"{takes} that rounds only"


def _exceeded_by_window(takes: str, operator: Any, limits: Limits) -> Iterator[str]:
    """Yield the limits that a kernel, its padding or its stride exceeds."""
    if "area" not in limits:
        return
    depth, height, width = _kernel(operator)
    is_too_deep = depth > limits.get("depth", depth)
    area = height * width
    if area > limits["area"] or height > limits["height"] or is_too_deep:
        yield f"{takes} with a smaller kernel than {height} by {width}"
    longest = max(height, width)
    is_padded = any(getattr(operator, "pad", ()))
    if is_padded and longest > limits.get("padded", math.inf):
        yield (
            f"{takes} with padding and a kernel of at most {limits['padded']}, not"
            f" {longest}"
        )
    windows = operator.outputs[0].shape[1:-1]
    strides = zip(operator.stride, windows, strict=True)
    moves = [stride for stride, count in strides if count > 1]
    if max(moves[-2:], default=1) > limits.get("stride", math.inf):
        yield f"{takes} with strides up to {limits['stride']}, not {max(moves)}"
    if "strides" in limits and [*operator.stride] not in limits["strides"]:
        yield (
            f"{takes} with strides of {' or '.join(map(str, limits['strides']))}, not"
            f" {[*operator.stride]}"
        )
    channels = operator.inputs[0].shape[-1]
    if operator.name == "DEPTHWISE_CONV2D":
        channels = 1
    if depth * area * channels > limits.get("terms", math.inf):
        yield f"{takes} with at most {limits['terms']} products for each element"


def _kernel(operator: Any) -> tuple[int, ...]:
    """Return depth, height and width of an operator's window."""
    if hasattr(operator, "kernel"):
        return 1, operator.kernel[0], operator.kernel[1]
    shape = operator.inputs[1].shape
    if operator.name == "DEPTHWISE_CONV2D":
        return 1, shape[0], shape[1]
    return (1, *shape[1:3]) if len(shape) == 4 else shape[1:4]


def _exceeded_by_resize(takes: str, operator: Any, limits: Limits) -> Iterator[str]:
    """Yield a limit unless a RESIZE enlarges by repeating pixels."""
    factors = limits.get("upscale")
    if factors is None:
        return
    numerator, denominator, *of_width = _entries(operator.inputs[1])
    is_same_for_width = of_width == [numerator, denominator]
    is_known = numerator % denominator == 0 and numerator // denominator in factors
    is_centered = _entries(operator.inputs[2]) == [(denominator - numerator) // 2] * 2
    is_nearest = str(operator.mode) == "NEAREST"
    if not (is_nearest and is_same_for_width and is_known and is_centered):
        times = ", ".join(map(str, factors))
        yield f"{takes} only if it repeats pixels {times} times along both axes"


def _entries(shape: Value) -> list[int]:
    return [int(entry) for entry in materialize(shape)]


narrow("u55", why_not_u55)
narrow("u85", why_not_u85)

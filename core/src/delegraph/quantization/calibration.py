"""Calibration: batches go through the prepared program, whose observers see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..errors import InputError
from ..source import source_of

Progress = Callable[[int, int | None], None]
"""Called after each batch: how many are done, and how many there are, if that is known."""


def calibrate(
    prepared: torch.fx.GraphModule, batches: Iterator[tuple[Any, ...]], total: int | None, progress: Progress | None
) -> None:
    """Run every batch. Raises InputError if one cannot be run."""
    for number, batch in enumerate(batches):
        try:
            with torch.no_grad():
                prepared(*batch)
        except Exception as e:  # what operators and modules of the user raise
            text = f"calibration batch {number} does not fit the program: {type(e).__name__}: {e}"
            raise InputError("input-invalid", text.partition("\n")[0]) from e
        if progress is not None:
            progress(number + 1, total)
    _expect_observed(prepared)


def checked(batches: Iterable[Any], any_shape: bool) -> tuple[Iterator[tuple[Any, ...]], int | None]:
    """The batches as tuples of arguments, each checked when it comes, and their number if it is known.

    All are of the first one's form: the same structure, dtypes and, unless ``any_shape``, shapes; no NaN, no infinity.
    """
    if isinstance(batches, (torch.Tensor, str, bytes)) or not isinstance(batches, Iterable):
        text = f"calibration_batches is a series of batches, not {type(batches).__name__}"
        raise InputError("input-invalid", text, hint="[(x,), (y,)]: each is a tuple of the module's arguments")
    return _checked(batches, any_shape), len(batches) if isinstance(batches, Sized) else None


def _checked(batches: Iterable[Any], any_shape: bool) -> Iterator[tuple[Any, ...]]:
    """The batches as tuples. Raises InputError, with the batch that does not fit, when it is reached."""
    form = None
    for number, given in enumerate(batches):
        batch = given if isinstance(given, tuple) else tuple(given) if isinstance(given, list) else (given,)
        leaves, structure = pytree.tree_flatten(batch)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        kinds = [(t.dtype, None if any_shape else tuple(t.shape)) for t in tensors]
        form = form or (structure, kinds)
        if form != (structure, kinds):
            text = f"calibration batch {number} has {_said(kinds)}, and the first one {_said(form[1])}"
            raise InputError("input-invalid", text, hint="dynamic_shapes lets sizes vary, as for torch.export")
        for position, tensor in enumerate(tensors):
            _expect_numbers(tensor, f"tensor {position} of calibration batch {number}")
        yield batch
    if form is None:
        text = "there are no calibration batches, so no scale is known"
        raise InputError("input-invalid", text, hint="give some inputs as the model will see them; 8 to 100 as a rule")


def _expect_numbers(tensor: torch.Tensor, name: str) -> None:
    """Raise InputError for a tensor without data, or with NaN or infinity."""
    if tensor.is_meta:
        raise InputError("input-invalid", f"{name} has no data: it is on the device 'meta'")
    if tensor.is_floating_point() and not tensor.isfinite().all():
        hint = "no scale could be made of that; leave the batch out"
        raise InputError("input-invalid", f"{name} has NaN or infinity in it", hint=hint)


def _said(kinds: list[tuple[torch.dtype, tuple[int, ...] | None]]) -> str:
    shown = [str(dtype).removeprefix("torch.") + ("" if shape is None else str(list(shape))) for dtype, shape in kinds]
    return ", ".join(shown) or "no tensors"


def _expect_observed(prepared: torch.fx.GraphModule) -> None:
    """Raise InputError if an observer saw nothing, NaN or infinity, or a range that fp32 does not hold."""
    for node in prepared.graph.nodes:
        if node.op != "call_module":
            continue
        observer = prepared.get_submodule(str(node.target))
        observer = getattr(observer, "activation_post_process", observer)
        low, high = getattr(observer, "min_val", None), getattr(observer, "max_val", None)
        if not isinstance(low, torch.Tensor) or not isinstance(high, torch.Tensor):
            continue
        made = node.args[0]
        if low.numel() == 0 or (low > high).any():  # as it began
            text = f"calibration never showed a value of {made}"
            raise InputError("input-invalid", text, hint="batches without elements say nothing about scales")
        if not (high - low).isfinite().all():
            text = f"{made} was NaN or infinite during calibration, or spans more than fp32 has: that has no scale"
            raise InputError(
                "input-invalid", text, source=source_of(made), hint="set its module to None, which is floats"
            )

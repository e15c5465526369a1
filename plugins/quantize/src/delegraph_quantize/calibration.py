"""Calibration: runs batches through the prepared program, so that observers see values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError
from delegraph_programs.type_aliases import Program
from torch.utils import _pytree as pytree

from .unscaled import Unscaled, leave_in_floats, watched

Progress = Callable[[int, int | None], None]
"""Called after each batch with the number of batches done, and their total or None."""


class Batch(NamedTuple):
    """Arguments of one call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(given: Any, names: Sequence[str]) -> Batch:
        """Make a batch of several arguments, one argument, or a mapping by name."""
        if isinstance(given, Batch):
            return given
        if isinstance(given, Mapping) and given and set(given) <= set(names):
            return Batch((), {name: given[name] for name in names if name in given})
        return Batch(tuple(given) if isinstance(given, (tuple, list)) else (given,), {})


class FailsWithObservers(Exception):
    """The program runs a batch, but fails on it with observers; the cause is the error."""


def names_of(program: Program) -> list[str]:
    """Return the names of the arguments that a program takes by name."""
    if isinstance(program, torch.nn.Module):
        parameters = inspect.signature(program.forward).parameters.values()
        return [
            p.name
            for p in parameters
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        ]
    spec = getattr(getattr(program, "call_spec", None), "in_spec", None)
    return [] if spec is None else list(spec.child(1).context)


def calibrate(
    prepared: torch.fx.GraphModule,
    original: Callable[[], torch.nn.Module],
    batches: Iterator[Batch],
    total: int | None,
    progress: Progress | None,
) -> list[Unscaled]:
    """Run every batch, then leave in floats the values without a scale.

    Returns the first such values. ``original`` makes the program without observers.
    Raises InputError if a batch cannot be run, or if nothing is left that could be
    quantized. Raises FailsWithObservers if only the ``prepared`` program cannot run a
    batch.
    """
    with watched(prepared) as refused:
        for number, batch in enumerate(batches):
            try:
                with torch.no_grad():
                    prepared(*batch.args, **batch.kwargs)
            except Exception as e:
                # operators and modules of the user may raise anything
                if _runs(original(), batch):
                    raise FailsWithObservers from e
                text = (
                    f"calibration batch {number} does not fit the program:"
                    f" {type(e).__name__}: {e}"
                )
                raise InputError("input-invalid", text.partition("\n")[0]) from e
            if progress is not None:
                progress(number + 1, total)
    return leave_in_floats(prepared, refused)


def _runs(program: torch.nn.Module, batch: Batch) -> bool:
    """Return whether ``program`` runs a batch without an error."""
    try:
        with torch.no_grad():
            program(*batch.args, **batch.kwargs)
    except Exception:
        return False
    return True


def checked(
    program: Program, batches: Iterable[Any], any_shape: bool, *, finite: bool = True
) -> tuple[Iterator[Batch], int | None]:
    """Return the batches as arguments of ``program``, and their number if it is known.

    Each batch is checked when it is read. All have the form of the first one:
    structure, dtypes and, unless ``any_shape``, shapes. With ``finite``, they have no
    NaN or infinity.
    """
    if isinstance(batches, (torch.Tensor, str, bytes)) or not isinstance(
        batches, Iterable
    ):
        text = (
            "calibration_batches must be a series of batches, not"
            f" {type(batches).__name__}"
        )
        raise InputError(
            "input-invalid",
            text,
            hint="[(x,), (y,)]: each is a tuple of the module's arguments",
        )
    if isinstance(batches, Mapping):
        text = "calibration_batches must be a series of batches, not a single batch"
        raise InputError(
            "input-invalid",
            text,
            hint="[batch]: a list of dicts with the arguments' names",
        )
    total = len(batches) if isinstance(batches, Sized) else None
    return _checked(batches, any_shape, finite, names_of(program)), total


def _checked(
    batches: Iterable[Any], any_shape: bool, finite: bool, names: Sequence[str]
) -> Iterator[Batch]:
    """Yield the batches as arguments.

    Raises InputError when it reaches a batch that does not fit.
    """
    expected = None
    for number, given in enumerate(batches):
        batch = Batch.of(given, names)
        leaves, structure = pytree.tree_flatten(batch)
        _expect_torch(number, leaves)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        kinds = [(t.dtype, None if any_shape else tuple(t.shape)) for t in tensors]
        expected = expected or (structure, kinds)
        expected_structure, expected_kinds = expected
        if structure != expected_structure:
            text = (
                f"calibration batch {number} has other arguments than the first one, or"
                " in other containers"
            )
            raise InputError(
                "input-invalid",
                text,
                hint="the model is called in the same way with each batch",
            )
        if kinds != expected_kinds:
            text = (
                f"calibration batch {number} has {_describe(kinds)}, and the first one"
                f" {_describe(expected_kinds)}"
            )
            hint = (
                "dynamic_shapes lets sizes vary, as for torch.export; leave out a last,"
                " smaller batch (drop_last=True)"
            )
            raise InputError("input-invalid", text, hint=hint)
        for position, tensor in enumerate(tensors):
            _expect_numbers(
                tensor, f"tensor {position} of calibration batch {number}", finite
            )
        yield batch
    if expected is None:
        text = "there are no calibration batches, so no scale can be computed"
        raise InputError(
            "input-invalid",
            text,
            hint="give some typical inputs of the model; 8 to 100 are usual",
        )


def _expect_numbers(tensor: torch.Tensor, name: str, finite: bool) -> None:
    """Raise InputError for a tensor without data, or (``finite``) with NaN or infinity."""
    if tensor.is_meta:
        raise InputError(
            "input-invalid", f"{name} has no data: it is on the device 'meta'"
        )
    if finite and tensor.is_floating_point() and not tensor.isfinite().all():
        hint = "leave the batch out: no error can be measured with such values"
        raise InputError("input-invalid", f"{name} contains NaN or infinity", hint=hint)


def _expect_torch(number: int, leaves: Sequence[Any]) -> None:
    """Raise InputError for an array of another library."""
    for leaf in leaves:
        if hasattr(leaf, "__array__") and not isinstance(leaf, torch.Tensor):
            kind = f"{type(leaf).__module__}.{type(leaf).__name__}"
            text = (
                f"calibration batch {number} has a {kind}, where the model takes"
                " tensors"
            )
            raise InputError(
                "input-invalid", text, hint="torch.from_numpy(x), or torch.tensor(x)"
            )


def _describe(kinds: list[tuple[torch.dtype, tuple[int, ...] | None]]) -> str:
    """Return dtypes and shapes as text: ``float32[1, 3], int64[1]``."""
    shown = [
        str(dtype).removeprefix("torch.") + ("" if shape is None else str(list(shape)))
        for dtype, shape in kinds
    ]
    return ", ".join(shown) or "no tensors"

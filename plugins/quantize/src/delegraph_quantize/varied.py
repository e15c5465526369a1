"""Finds inputs that never vary during calibration; their scales may not fit others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .calibration import Batch


class _InputRecord:
    """The values of one tensor input in the batches.

    ``first``: a copy of the first one, because loaders reuse memory.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.first = tensor.detach().clone()
        self.has_one_value = tensor.numel() > 1 and _is_constant(tensor)
        self.is_repeated = True

    def compare(self, tensor: torch.Tensor) -> None:
        """Compare the tensor of another batch with the first one.

        This updates ``has_one_value`` and ``is_repeated``.
        """
        if self.is_repeated:
            self.is_repeated = _are_equal(tensor, self.first)
        if self.has_one_value:
            # all elements must also equal those of the first batch
            first_element = self.first.reshape(-1)[:1]
            elements = torch.cat([tensor.detach().reshape(-1), first_element])
            self.has_one_value = _is_constant(elements)


class CalibrationInputs:
    """Records the tensor inputs, by name, of the batches that ``watch`` yields."""

    def __init__(self, names: Sequence[str]) -> None:
        """Take the ``names`` of the inputs, in the order of the arguments."""
        self._names = names
        self._records: dict[str, _InputRecord] = {}
        self._batches = 0

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield each batch after comparing its tensors with those of the first one."""
        for batch in batches:
            for name, tensor in self._tensors(batch):
                if name in self._records:
                    self._records[name].compare(tensor)
                else:
                    self._records[name] = _InputRecord(tensor)
            self._batches += 1
            yield batch

    def notes(self) -> list[str]:
        """Return notes on float inputs with one value, and on equal batches."""
        counted = f"all {self._batches} calibration batches"
        if self._batches == 1:
            counted = "the calibration batch"
        notes = []
        constant = []
        for name, seen in self._records.items():
            if seen.has_one_value and seen.first.is_floating_point():
                constant.append(name)
                value = seen.first.reshape(-1)[0].item()
                notes.append(
                    f"input {name} is {value:g} in {counted}: its scale does not fit"
                    " other values"
                )
        if self._batches < 2 or not self._records:
            return notes
        same = []
        for name, seen in self._records.items():
            if seen.is_repeated and name not in constant:
                same.append(name)
        if same and len(same) + len(constant) == len(self._records):
            named = f"inputs {', '.join(same)} are"
            if len(same) == 1:
                named = f"input {same[0]} is"
            notes.append(
                f"{named} the same in {counted}: they show no more than one batch"
            )
        else:
            for name in same:
                if self._records[name].first.is_floating_point():
                    notes.append(
                        f"input {name} is the same in {counted}: its scale may not fit"
                        " other values"
                    )
        return notes

    def _tensors(self, batch: Batch) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of a batch with their names.

        A tensor in a container has a name such as ``images[0]``.
        """
        named: dict[str, Any] = {}
        for position, value in enumerate(batch.args):
            has_name = position < len(self._names)
            named[self._names[position] if has_name else str(position)] = value
        named |= batch.kwargs
        for name, value in named.items():
            for path, leaf in pytree.tree_flatten_with_path(value)[0]:
                if isinstance(leaf, torch.Tensor):
                    yield name + pytree.keystr(path), leaf


def _is_constant(tensor: torch.Tensor) -> bool:
    """Return whether all elements of a tensor are one number, which is not NaN."""
    return tensor.numel() > 0 and bool((tensor == tensor.reshape(-1)[0]).all())


def _are_equal(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have the same shape, type and elements."""
    return (
        tensor.shape == other.shape
        and tensor.dtype == other.dtype
        and torch.equal(tensor, other)
    )

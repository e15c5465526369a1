"""Programs for the task of a user, who calls them like the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from delegraph.errors import InputError
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from .calibration import Batch


@dataclass(frozen=True)
class Call:
    """How the program is called: the first batch, and the names of its arguments.

    ``any_shape``: whether other shapes than those of the first batch are allowed.
    """

    first: Batch
    names: Sequence[str]
    any_shape: bool

    def batch_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Batch:
        """Return the arguments of a call, by position or name as in the first batch.

        Raises InputError for other arguments, and for other shapes.
        """
        first = self.first
        batch = Batch(args, kwargs)
        if len(args) != len(first.args) or kwargs.keys() != first.kwargs.keys():
            values = dict(zip(self.names, args, strict=False)) | kwargs
            names = [*self.names[: len(first.args)], *first.kwargs]
            if len(values) == len(args) + len(kwargs) and values.keys() == {*names}:
                by_position = names[: len(first.args)]
                batch = Batch(tuple(values.pop(name) for name in by_position), values)
            else:
                raise self._error(batch, "other arguments than", "")
        hint = "pass dynamic_shapes=, as for torch.export, for calls with other shapes"
        if not self.any_shape and _shapes(batch) != _shapes(first):
            raise self._error(batch, "other shapes than", hint)
        return batch

    def _error(self, batch: Batch, which: str, hint: str) -> InputError:
        """Return the error for a call with ``which``, such as "other shapes than"."""
        text = (
            f"the task calls the program with {which} the calibration batches:"
            f" {_described(batch)}, not {_described(self.first)}"
        )
        return InputError("input-invalid", text, hint=hint)


def _shapes(batch: Batch) -> list[tuple[int, ...]]:
    leaves = pytree.tree_leaves((batch.args, batch.kwargs))
    return [tuple(leaf.shape) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _described(batch: Batch) -> str:
    """Return the arguments, with the shape of each tensor: ``([1, 64], mask=[64])``."""

    def shape(value: Any) -> Any:
        return list(value.shape) if isinstance(value, torch.Tensor) else value

    values = [str(pytree.tree_map(shape, value)) for value in batch.args]
    values += [f"{k}={pytree.tree_map(shape, v)}" for k, v in batch.kwargs.items()]
    return f"({', '.join(values)})"


class TaskProgram(torch.nn.Module):
    """A program that is called like the model, also after ``eval()``."""

    def __init__(self, program: GraphModule, call: Call) -> None:
        super().__init__()
        self.program = program
        self._call = call

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        batch = self._call.batch_of(args, kwargs)
        return self.program(*batch.args, **batch.kwargs)

    def train(self, mode: bool = True) -> TaskProgram:
        """Do nothing: torch refuses this for exported programs."""
        return self

"""Samples of a data set: the inputs of one call, and the label."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError
from delegraph_programs import flat_arguments, user_inputs
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

LABELS = ("label", "labels", "y")
"""Names of the label in a sample that is a mapping, unless an input has this name."""


@dataclass(frozen=True)
class Sample:
    """The inputs of one call, and its label; None without a label.

    ``index``: its place in the data, from 0.
    """

    index: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: Any = None


def series_of(data: Any) -> Iterable[Any]:
    """Return the samples of an iterable, or of a map-style data set of PyTorch.

    Raises InputError for anything else.
    """
    if not isinstance(data, (torch.Tensor, str, bytes, Mapping)):
        if isinstance(data, Iterable):
            return data
        # such a data set may accept any index, so that ``iter`` would not end
        if isinstance(data, Sized) and hasattr(data, "__getitem__"):
            return map(data.__getitem__, range(len(data)))
    text = f"the data must be a series of samples, not {type(data).__name__}"
    raise InputError("input-invalid", text, hint="[(x, label), ...]")


class Signature(NamedTuple):
    """The arguments of a method.

    ``positional``: the names of the positional ones; ``keywords``: those of the others.
    ``spec``: their structure. ``inputs``: the names of the tensors and numbers in it.
    ``recorded``: the values with which these were exported.
    """

    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    spec: pytree.TreeSpec
    inputs: tuple[str, ...]
    recorded: tuple[Any, ...]

    @classmethod
    def of(cls, program: ExportedProgram) -> Signature:
        """Return the arguments of a program."""
        spec = program.call_spec.in_spec
        assert spec is not None
        arguments, named = spec.children()
        nodes = user_inputs(program)
        inputs = tuple(node.name for node in nodes)
        called = program.module_call_graph[0].signature
        names = (called and called.forward_arg_names) or inputs
        return cls(
            positional=tuple(names[: arguments.num_children]),
            keywords=tuple(named.context),
            spec=spec,
            inputs=inputs,
            recorded=tuple(node.meta.get("val") for node in nodes),
        )

    def sample(self, given: Any, index: int) -> Sample:
        """Return one item of the data as a sample.

        A tensor is the only input. A tuple or list has the inputs in order; one more
        value is the label. A mapping has the arguments, or the tensors in them, by
        name, and maybe the label. Inputs without the size of the batch get a size of 1.
        Raises InputError for anything else.
        """
        label = None
        if isinstance(given, Mapping):
            values = dict(given)
            names = (*self.positional, *self.keywords, *self.inputs)
            for key in LABELS:
                if key in values and key not in names:
                    label = values.pop(key)
                    break
            args, kwargs = self._by_name(values)
        else:
            if isinstance(given, torch.Tensor):
                given = (given,)
            if not isinstance(given, (tuple, list)):
                raise self._misfit(f"it is a {type(given).__name__}")
            count = len(self.positional)
            if self.keywords or len(given) not in (count, count + 1):
                raise self._misfit(f"it has {len(given)} values")
            args = tuple(given[:count])
            kwargs = {}
            label = given[count] if len(given) > count else None
        args, kwargs = self._with_batch(args, kwargs)
        return Sample(index, args, kwargs, label)

    def named(self, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tensors and numbers in arguments of this structure, by name."""
        flat = flat_arguments(self.spec, args, kwargs, self.positional)
        return dict(zip(self.inputs, flat, strict=True))

    def _by_name(self, given: dict[str, Any]) -> Any:
        """Return (args, kwargs) for a mapping from all arguments, or all tensors in them.

        Raises InputError if other names are given.
        """
        if set(given) == {*self.positional, *self.keywords}:
            args = tuple(given[name] for name in self.positional)
            return args, {name: given[name] for name in self.keywords}
        if set(given) == {*self.inputs}:
            leaves = [given[name] for name in self.inputs]
            return pytree.tree_unflatten(leaves, self.spec)
        raise self._misfit(f"it has the keys {', '.join(map(str, given))}")

    def _with_batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return (args, kwargs); inputs without the size of the batch get a size of 1."""
        flat = flat_arguments(self.spec, args, kwargs, self.positional)
        for place, recorded in enumerate(self.recorded):
            value = flat[place]
            if (
                isinstance(value, torch.Tensor)
                and takes_one(recorded)
                and value.dim() == recorded.dim() - 1
            ):
                flat[place] = value.unsqueeze(0)
        return pytree.tree_unflatten(flat, self.spec)

    def _misfit(self, found: str) -> InputError:
        names = (*self.positional, *self.keywords)
        text = f"{found}; the model takes {len(names)} inputs ({', '.join(names)})"
        hint = (
            "a sample is a tuple of the inputs, with the label as one more value, or a"
            f" dict of the inputs by name, with the key {LABELS[0]!r}"
        )
        return InputError("input-invalid", text, hint=hint)


def takes_one(recorded: Any) -> bool:
    """Return whether an exported input is a tensor whose first size can be 1."""
    if not isinstance(recorded, torch.Tensor) or recorded.dim() == 0:
        return False
    size = recorded.shape[0]
    return isinstance(size, torch.SymInt) or size == 1

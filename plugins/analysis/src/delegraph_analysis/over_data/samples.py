"""Samples of a data set: the inputs of one call, and the label."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from delegraph.errors import InputError
from delegraph_programs import user_inputs
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

LABEL = "label"
"""Key of the label in a sample that is a mapping."""


class Sample(NamedTuple):
    """The inputs of one call, and its label; None without a label."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: Any = None

    def digest(self) -> str:
        """Return a hash of the inputs and the label, to find the sample again."""
        leaves, spec = pytree.tree_flatten(tuple(self))
        found = hashlib.sha256(str(spec).encode())
        for leaf in leaves:
            update_digest(found, leaf)
        return found.hexdigest()


def update_digest(digest: Any, value: Any) -> None:
    """Add a tensor with its type and shape, or the text of another value."""
    if not isinstance(value, torch.Tensor):
        digest.update(repr(value).encode())
        return
    digest.update(f"{value.dtype} {list(value.shape)}".encode())
    plain = value.detach().cpu().contiguous().reshape(-1)
    digest.update(plain.view(torch.uint8).numpy().tobytes())


class Signature(NamedTuple):
    """The arguments of a method: how many are positional, and the names of all.

    ``names`` has the positional ones, if each is one tensor; ``keywords`` the others.
    """

    positional: int
    names: tuple[str, ...]
    keywords: tuple[str, ...]

    @classmethod
    def of(cls, program: ExportedProgram) -> Signature:
        """Return the arguments of a program."""
        spec = program.call_spec.in_spec
        assert spec is not None
        arguments, named = spec.children()
        names: tuple[str, ...] = ()
        if all(child.is_leaf() for child in arguments.children()):
            inputs = [node.name for node in user_inputs(program)]
            names = tuple(inputs[: arguments.num_children])
        return cls(arguments.num_children, names, tuple(named.context))

    def sample(self, given: Any, index: int) -> Sample:
        """Return one item of the data as a sample.

        A tensor is the only input. A tuple or list has the inputs in order; one more
        value is the label. A mapping has the inputs by name, and maybe ``"label"``.
        Raises InputError for anything else.
        """
        if isinstance(given, Mapping):
            return self._by_name(dict(given), index)
        if isinstance(given, torch.Tensor):
            given = (given,)
        if not isinstance(given, (tuple, list)):
            raise self._misfit(index, f"is a {type(given).__name__}")
        values = tuple(given)
        if len(values) == self.positional and not self.keywords:
            return Sample(values, {})
        if len(values) == self.positional + 1 and not self.keywords:
            return Sample(values[:-1], {}, values[-1])
        raise self._misfit(index, f"has {len(values)} values")

    def _by_name(self, given: dict[str, Any], index: int) -> Sample:
        label = None
        if LABEL not in (*self.names, *self.keywords):
            label = given.pop(LABEL, None)
        wanted = {*self.names, *self.keywords}
        if set(given) != wanted or len(self.names) != self.positional:
            raise self._misfit(index, f"has the keys {', '.join(map(str, given))}")
        args = tuple(given.pop(name) for name in self.names)
        return Sample(args, given, label)

    def _misfit(self, index: int, found: str) -> InputError:
        names = ", ".join([*self.names, *self.keywords])
        count = self.positional + len(self.keywords)
        text = f"sample {index} {found}; the model takes {count} inputs ({names})"
        hint = (
            "a sample is a tuple of the inputs, with the label as one more value, or a"
            f" dict of the inputs by name, with the key {LABEL!r}"
        )
        return InputError("input-invalid", text, hint=hint)

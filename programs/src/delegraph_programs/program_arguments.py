"""Checks the arguments of a call and flattens them; packs the flat results.

A graph takes a flat list of inputs and returns a flat list of outputs. Callers pass and
get nested structures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from .call_names import INDEXED, WITHIN
from .errors import InputError
from .exported_program import flat_arguments, user_inputs
from .input_size_conditions import InputSizes, input_names
from .size_names import named
from .symbolic_sizes import SYMBOLS, are_static

VARYING = (torch.Tensor, *SYMBOLS)
"""Types of arguments that may change from call to call; the export fixes all others."""


class TensorCheck:
    """A prepared check of one tensor argument, which costs next to nothing in a call.

    ``sizes``: the recorded shape; symbolic sizes in it are not compared. ``device``:
    the type of the device ("cpu"). None accepts every device except ``meta``, where
    tensors have no elements. ``_shape``: the whole shape, compared in one step; None if
    a size is symbolic. ``_fixed``: (dimension, size) for each fixed size.
    """

    def __init__(
        self, dtype: torch.dtype, sizes: Sequence[Any], device: str | None = None
    ) -> None:
        """Prepare the check; the class describes the arguments."""
        self.dtype = dtype
        self.sizes = tuple(sizes)
        self.device = device
        self._shape = self.sizes if are_static(self.sizes) else None
        self._fixed = [(k, d) for k, d in enumerate(self.sizes) if isinstance(d, int)]

    def fits(self, value: Any) -> bool:
        """Return whether ``value`` is a dense tensor of this dtype, shape and device.

        A subclass of torch.Tensor is accepted if it computes as torch.Tensor does.
        """
        kind = type(value)
        # the usual case first, because it is quick to check
        if kind is not torch.Tensor:
            if not isinstance(value, torch.Tensor) or not _is_plain(kind):
                return False
        if (
            value.dtype is not self.dtype
            or value.layout is not torch.strided
            or value.is_nested
        ):
            return False
        device = value.device.type
        wrong_device = (
            device == "meta" if self.device is None else device != self.device
        )
        if wrong_device:
            return False
        if self._shape is not None:
            same: bool = value.shape == self._shape
            return same
        shape = value.shape
        return len(self.sizes) == len(shape) and all(
            shape[k] == d for k, d in self._fixed
        )


def _is_plain(kind: type[torch.Tensor]) -> bool:
    """Return whether tensors of the class ``kind`` compute as torch.Tensor does.

    A class with a ``__torch_dispatch__`` of its own may hold no memory at all.
    """
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


class Arguments:
    """Checks the arguments of a call and turns them into the program's flat list.

    One object serves all calls of a program. ``_leaves``: the recorded values of the
    flat arguments. ``_fits``: one check for each of them. ``_plain``: no argument
    contains other arguments, as a list or dict does; then a call has ``_count``
    positional arguments, and the keywords ``_names``. ``_ranges``: the ranges of
    integer inputs.
    """

    def __init__(self, program: ExportedProgram) -> None:
        """Read from ``program`` how it is called."""
        self._program = program
        self._spec = program.call_spec.in_spec
        signature: Any = program.module_call_graph[0].signature
        self._arguments = signature.forward_arg_names or ()
        self._leaves = [n.meta.get("val") for n in user_inputs(program)]
        self._fits = [_leaf_check(wanted) for wanted in self._leaves]
        # partitioners write ranges into the metadata of inputs
        self._ranges = [
            *_marked_ranges(program, WITHIN, expect_within),
            *_marked_ranges(program, INDEXED, expect_indices),
        ]
        # The spec has two children: the tuple of positional arguments, and the
        # dictionary of keyword arguments.
        containers = self._spec.children() if self._spec is not None else []
        arguments = [
            argument for container in containers for argument in container.children()
        ]
        self._plain = len(containers) == 2 and all(
            map(pytree.TreeSpec.is_leaf, arguments)
        )
        self._count = 0
        self._names: dict[str, None] = {}
        if self._plain:
            positional, keywords = containers
            self._count = positional.num_children
            # the context of a dictionary's spec is the list of its keys
            self._names = dict.fromkeys(keywords.context or ())

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the flat list of arguments, in the order of the program's inputs.

        Raises InputError if the structure, an argument or a size differs from the
        exported one.
        """
        same_names = len(args) == self._count and kwargs.keys() == self._names.keys()
        if self._plain and same_names:
            # the structure is right, so it need not be compared
            flat = [*args, *(kwargs[name] for name in self._names)]
        else:
            flat = flat_arguments(self._spec, args, kwargs, self._arguments)
        for fits, value in zip(self._fits, flat, strict=True):
            if not fits(value):
                raise self._wrong(args, kwargs)
        sizes = self._sizes
        # ``fits`` is None if the program has no condition on its sizes
        if sizes.fits is not None and not sizes.fits(flat):
            raise sizes.explain(flat, input_names(self._program))
        for k, low, high, check in self._ranges:
            check(flat[k], low, high, lambda: input_names(self._program), k)
        return flat

    def _wrong(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> InputError:
        """Return the error for a call with arguments that do not fit.

        The error describes a wrong structure, or else the first wrong argument.
        """
        flat = flat_arguments(self._spec, args, kwargs, self._arguments)
        pairs = zip(self._fits, flat, strict=True)
        position = [fits(value) for fits, value in pairs].index(False)
        wanted = self._leaves[position]
        shape = ""
        if isinstance(wanted, torch.Tensor):
            shape = named(list(wanted.shape), user_inputs(self._program))
        name = input_names(self._program)[position]
        return wrong_input(name, wanted, shape, flat[position])

    @cached_property
    def _sizes(self) -> InputSizes:
        """The conditions on symbolic sizes.

        They are compiled at the first call, and not before: it takes a while.
        """
        return InputSizes(self._program)


def _leaf_check(wanted: Any) -> Callable[[Any], bool]:
    """Return a function that checks a flat argument against the recorded ``wanted``.

    A dense tensor is checked by ``TensorCheck.fits``. Other tensors, such as sparse
    ones, need the same layout, dtype and shape. A symbolic number accepts any number.
    All other values were fixed by the export and are checked by ``is_fixed``.
    """
    if isinstance(wanted, torch.Tensor) and wanted.layout is torch.strided:
        return TensorCheck(wanted.dtype, wanted.shape, wanted.device.type).fits
    if isinstance(wanted, torch.Tensor):
        same = (wanted.layout, wanted.dtype, wanted.shape)

        def fits(value: Any) -> bool:
            """Return whether layout, dtype and shape agree."""
            if not isinstance(value, torch.Tensor) or value.is_nested:
                return False
            return (value.layout, value.dtype, value.shape) == same

        return fits
    if isinstance(wanted, SYMBOLS):
        return lambda value: isinstance(value, (int, float, *SYMBOLS))
    return partial(is_fixed, wanted)


class _Range(NamedTuple):
    """The range of an integer input, and the function that checks it."""

    position: int
    low: int
    high: int
    check: Callable[..., None]


def _marked_ranges(
    program: ExportedProgram, key: str, check: Callable[..., None]
) -> list[_Range]:
    """Return the ranges that input metadata has under ``key``."""
    ranges = []
    for position, node in enumerate(user_inputs(program)):
        if key in node.meta:
            low, high = node.meta[key]
            ranges.append(_Range(position, low, high, check))
    return ranges


def outside(value: Any, low: int, high: int) -> int | None:
    """Return the smallest element if it is below ``low``, else the largest if it is
    above ``high``, else None.
    """
    if not isinstance(value, torch.Tensor) or not value.numel():
        return None
    least, most = map(int, torch.aminmax(value))
    if least < low:
        return least
    return most if most > high else None


def expect_indices(
    value: Any, low: int, high: int, names: Callable[[], Sequence[str]], position: int
) -> None:
    """Raise InputError if a tensor of indices has one for which eager raises an error.

    Those are the indices below ``low`` or above ``high``. ``names`` and ``position``:
    as in ``expect_within``.
    """
    found = outside(value, low, high)
    if found is not None:
        name = names()[position]
        text = (
            f"an index is out of range: input {name} has an element {found}; {low} to"
            f" {high} are in range"
        )
        raise InputError("input-invalid", text)


def expect_within(
    value: Any, low: int, high: int, names: Callable[[], Sequence[str]], position: int
) -> None:
    """Raise InputError if an integer tensor has elements outside of ``low``..``high``.

    ``names`` returns the caller's names of the flat inputs, for the error; ``value`` is
    the input at ``position``.
    """
    found = outside(value, low, high)
    if found is not None:
        name = names()[position]
        text = (
            f"input {name} has an element {found}; it was lowered for {low} to {high}"
        )
        hint = "lower the program for a wider range, or without one"
        raise InputError("input-invalid", text, hint=hint)


def is_fixed(wanted: Any, value: Any) -> bool:
    """Return whether the argument ``value`` equals the exported value ``wanted``.

    A number, text or None must be equal, and no tensor or array equals one. NaN equals
    NaN, and 0.0 does not equal -0.0. Other types of ``wanted`` are not compared, and
    the result is True.
    """
    if not isinstance(wanted, (int, float, complex, str, type(None))):
        return True
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return False
    if isinstance(wanted, float) and isinstance(value, float):
        if math.isnan(wanted):
            return math.isnan(value)
        # the program may divide by zero, and then the sign of the zero matters
        same_sign = math.copysign(1, value) == math.copysign(1, wanted)
        return value == wanted and same_sign
    return bool(value == wanted)


def wrong_input(name: str, wanted: Any, shape: str, value: Any) -> InputError:
    """Return the error for an argument ``value`` that does not fit ``wanted``.

    ``name``: that of the input. ``wanted``: its recorded value. ``shape``: the shape of
    ``wanted`` as text; "" if it is no tensor.
    """
    if isinstance(wanted, torch.Tensor):
        device = f" on {wanted.device}" if wanted.device.type != "cpu" else ""
        requirement = f"must be {wanted.dtype} of shape {shape}{device}"
    elif isinstance(wanted, torch.SymInt):
        requirement = "must be a number"
    else:
        requirement = f"was exported as {wanted!r}"
    hint = None
    # a frequent mistake
    if isinstance(value, np.ndarray) and isinstance(wanted, torch.Tensor):
        hint = "torch.from_numpy(array)"
    elif isinstance(value, torch.Tensor) and value.is_nested:
        hint = "torch.nested.to_padded_tensor(nested, 0.0) makes a dense tensor of it"
    return InputError(
        "input-invalid",
        f"input {name} {requirement}; it is {_describe(value)}",
        hint=hint,
    )


def _describe(value: Any) -> str:
    """Describe an argument in an error message."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, (int, float, str, type(None))):
            return repr(value)
        return f"of type {type(value).__name__}"
    if value.is_nested:  # its sizes are no list of numbers
        return f"a nested tensor of {value.dtype} with {value.dim()} dimensions"
    kind = "" if _is_plain(type(value)) else f"{type(value).__name__} of "
    layout = ""
    if value.layout is not torch.strided:
        layout = f"{str(value.layout).removeprefix('torch.')} "
    where = "" if value.device.type == "cpu" else f" on {value.device}"
    return f"{kind}{layout}{value.dtype} of shape {list(value.shape)}{where}"


def packer(spec: pytree.TreeSpec) -> Callable[[list[Any]], Any]:
    """Return a function that packs a list of results into the structure ``spec``.

    One value and plain tuples need no slow walk through the structure.
    """
    if spec.is_leaf():
        return lambda values: values[0]
    if spec.type is tuple and all(child.is_leaf() for child in spec.children()):
        return tuple
    return partial(pytree.tree_unflatten, treespec=spec)

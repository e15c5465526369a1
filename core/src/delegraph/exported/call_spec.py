"""How a program is called: arguments as the flat list that its graph takes, results in the structure it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..errors import InputError
from ..exported_program import (
    CALL_DELEGATE,
    MUTATIONS,
    STATE_WRITES,
    constant_tensor,
    flat_arguments,
    output_values,
    placeholders,
    user_inputs,
)
from .input_sizes import InputSizes, input_names
from .size_names import named

_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
VARYING = (torch.Tensor, *_SYMBOLS)
"""What a leaf of the arguments may be that is not the same in every call."""


class TensorCheck:
    """What a tensor has to be, prepared so that looking at one costs next to nothing."""

    def __init__(self, dtype: torch.dtype, sizes: Sequence[Any], device: str | None = None) -> None:
        self.dtype, self.sizes, self.device = dtype, tuple(sizes), device
        self._shape = self.sizes if all(isinstance(d, int) for d in self.sizes) else None
        # symbolic sizes are not compared: that would fix them in the program
        self._fixed = [(k, d) for k, d in enumerate(self.sizes) if isinstance(d, int)]

    def fits(self, value: Any) -> bool:
        """Dense, of the dtype, with the sizes that are fixed, in memory of the device (None: in any memory)."""
        kind = type(value)
        if kind is not torch.Tensor and not (isinstance(value, torch.Tensor) and _is_plain(kind)):
            return False
        if value.dtype is not self.dtype or value.layout is not torch.strided:
            return False
        device = value.device.type
        if device == "meta" if self.device is None else device != self.device:
            return False
        if self._shape is not None:
            same: bool = value.shape == self._shape
            return same
        given = value.shape
        return len(self.sizes) == len(given) and all(given[k] == d for k, d in self._fixed)


def _is_plain(kind: type[torch.Tensor]) -> bool:
    """Whether it computes as a tensor does; subclasses with a dispatch of their own may hold no memory at all."""
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__


class Arguments:
    """A call's arguments as the flat list that a program takes, checked; prepared once a program."""

    def __init__(self, program: ExportedProgram) -> None:
        self._program, self._spec = program, program.call_spec.in_spec
        signature: Any = program.module_call_graph[0].signature
        self._arguments = signature.forward_arg_names or ()
        self._leaves = [n.meta.get("val") for n in user_inputs(program)]
        self._fits = [_leaf_check(wanted) for wanted in self._leaves]
        parts = self._spec.children() if self._spec is not None else []
        self._plain = len(parts) == 2 and all(leaf.is_leaf() for part in parts for leaf in part.children())
        self._count = parts[0].num_children if self._plain else 0
        self._names = dict.fromkeys(parts[1].context or ()) if self._plain else {}

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Raises InputError if the structure, a leaf, or a size is not as the program was exported for it."""
        if self._plain and len(args) == self._count and (kwargs.keys() == self._names.keys()):
            # no leaf contains anything, so there is no structure to look at
            flat = [*args, *(kwargs[name] for name in self._names)]
        else:
            flat = flat_arguments(self._spec, args, kwargs, self._arguments)
        for fits, value in zip(self._fits, flat, strict=True):
            if not fits(value):
                raise self._wrong(args, kwargs)
        sizes = self._sizes
        if sizes.fits is not None and not sizes.fits(flat):
            raise sizes.explain(flat, input_names(self._program))
        return flat

    def _wrong(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> InputError:
        """What is wrong: the structure, if a leaf contains something, or the first leaf that does not fit."""
        flat = flat_arguments(self._spec, args, kwargs, self._arguments)
        rows = zip(input_names(self._program), self._leaves, self._fits, flat, strict=True)
        name, wanted, value = next((name, wanted, value) for name, wanted, fits, value in rows if not fits(value))
        shape = named(list(wanted.shape), user_inputs(self._program)) if isinstance(wanted, torch.Tensor) else ""
        return _wrong_input(name, wanted, shape, value)

    @cached_property
    def _sizes(self) -> InputSizes:
        return InputSizes(self._program)


def _leaf_check(wanted: Any) -> Callable[[Any], bool]:
    """Whether a leaf of a call's arguments is what the program was exported for, as a function of the leaf."""
    if isinstance(wanted, torch.Tensor) and wanted.layout is torch.strided:
        return TensorCheck(wanted.dtype, wanted.shape, wanted.device.type).fits
    if isinstance(wanted, torch.Tensor):
        sparse = (wanted.layout, wanted.dtype, wanted.shape)
        return lambda value: isinstance(value, torch.Tensor) and (value.layout, value.dtype, value.shape) == sparse
    if isinstance(wanted, _SYMBOLS):
        return lambda value: isinstance(value, (int, float, *_SYMBOLS))
    return partial(_is_fixed, wanted)


def _is_fixed(wanted: Any, value: Any) -> bool:
    """Whether ``value`` is the constant that the program was exported for; objects of other kinds are not compared."""
    if not isinstance(wanted, (int, float, bool, str, type(None))):
        return True
    return not isinstance(value, torch.Tensor) and bool(value == wanted)


def _wrong_input(name: str, wanted: Any, shape: str, value: Any) -> InputError:
    what = "is to be a number" if isinstance(wanted, torch.SymInt) else f"was exported as {wanted!r}"
    if isinstance(wanted, torch.Tensor):
        where = f" on {wanted.device}" if wanted.device.type != "cpu" else ""
        what = f"is to be {wanted.dtype} of shape {shape}{where}"
    hint = "torch.from_numpy(array)" if isinstance(value, np.ndarray) and isinstance(wanted, torch.Tensor) else None
    return InputError("input-invalid", f"input {name} {what}; it is {_given(value)}", hint=hint)


def _given(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value) if isinstance(value, (int, float, str, type(None))) else f"of type {type(value).__name__}"
    kind = "" if _is_plain(type(value)) else f"{type(value).__name__} of "
    layout = "" if value.layout is torch.strided else f"{str(value.layout).removeprefix('torch.')} "
    where = "" if value.device.type == "cpu" else f" on {value.device}"
    return f"{kind}{layout}{value.dtype} of shape {list(value.shape)}{where}"


def packer(spec: pytree.TreeSpec) -> Callable[[list[Any]], Any]:
    """How results become what the program returns. A single value and a plain tuple do without torch's walk."""
    if spec.is_leaf():
        return lambda values: values[0]
    if spec.type is tuple and all(child.is_leaf() for child in spec.children()):
        return tuple
    return partial(pytree.tree_unflatten, treespec=spec)


class ValueOrigin(NamedTuple):
    """Where a value comes from: the delegate's k-th result, the k-th leaf of the caller's arguments, or it is fixed."""

    kind: Literal["result", "input", "fixed"]
    at: Any


@dataclass(frozen=True)
class WholeCall:
    """How a program is called that is one delegate and nothing else.

    ``takes``: where the delegate's inputs come from; leaves that are no tensors and no sizes are not there.
    ``returns``: where the leaves of what is returned come from. ``writes``: positions of the leaves that are written in
    place, and where their new values come from. ``fixed``: name and value of those that are no tensors, by position.
    """

    in_spec: pytree.TreeSpec | None
    out_spec: pytree.TreeSpec
    takes: tuple[ValueOrigin, ...]
    returns: tuple[ValueOrigin, ...]
    writes: tuple[tuple[int, ValueOrigin], ...]
    fixed: Mapping[int, tuple[str, Any]]

    def call(self, delegate: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``delegate`` with the caller's arguments; the results in the program's own structure."""
        flat = flat_arguments(self.in_spec, args, kwargs)
        for position, (name, wanted) in self.fixed.items():
            if not _is_fixed(wanted, flat[position]):
                raise _wrong_input(name, wanted, "", flat[position])
        results = delegate(*(_value(o, (), flat) for o in self.takes))
        for position, origin in self.writes:
            flat[position].copy_(_value(origin, results, flat))
        return pytree.tree_unflatten([_value(o, results, flat) for o in self.returns], self.out_spec)


def _value(origin: ValueOrigin, results: Sequence[Any], flat: Sequence[Any]) -> Any:
    places: dict[str, Sequence[Any]] = {"result": results, "input": flat}
    return places[origin.kind][origin.at] if origin.kind in places else origin.at


def whole_call(program: ExportedProgram) -> WholeCall:
    """Read the call off a program in which one delegate computes everything.

    Raises InputError if there is no such delegate, or a buffer that it cannot keep.
    """
    calls: list[Node] = [n for n in program.graph.nodes if n.target is CALL_DELEGATE]
    if len(calls) != 1:
        text = f"the program makes {len(calls)} calls of delegates: nothing is computed that one could stand for"
        raise InputError("input-invalid", text, hint="give the module something to compute, or do not lower it")
    for target in (s.target for s in program.graph_signature.output_specs if s.kind in STATE_WRITES):
        text = f"the program writes {target}, but no delegate computes its new value, so none can keep it"
        raise InputError("input-invalid", text, hint="to_backend(program, partitioner) leaves it to the program")
    leaves = {n: k for k, n in enumerate(user_inputs(program))}
    position = {n.name: k for n, k in leaves.items()}
    specs = dict(placeholders(program))

    def origin(value: Any) -> ValueOrigin:
        if not isinstance(value, Node):
            return ValueOrigin("fixed", value)
        if value in leaves:
            return ValueOrigin("input", leaves[value])
        if value.op == "placeholder":
            return ValueOrigin("fixed", constant_tensor(program, specs[value]))
        return ValueOrigin("result", value.args[1])  # a getitem of the one call

    returned = zip(program.graph_signature.output_specs, output_values(program), strict=True)
    sources = [(s, origin(v)) for s, v in returned]
    return WholeCall(
        program.call_spec.in_spec,
        program.call_spec.out_spec,
        takes=tuple(origin(n) for n in calls[0].args[1:]),
        returns=tuple(o for s, o in sources if s.kind not in MUTATIONS),
        writes=tuple((position[str(s.target)], o) for s, o in sources if s.kind is OutputKind.USER_INPUT_MUTATION),
        fixed={k: (n.name, v) for n, k in leaves.items() if not isinstance(v := n.meta.get("val"), VARYING)},
    )

"""How callers call a program: their arguments as a flat list, and the call of a delegate that is a whole program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputSpec, OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from .errors import InputError
from .signature import MUTATIONS, STATE_WRITES, constant_tensor, output_values, placeholders, user_inputs

_CALL_DELEGATE = torch.ops.higher_order.executorch_call_delegate


def flat_arguments(spec: pytree.TreeSpec | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The leaves of a call's arguments. Raises InputError, with both forms, if they are not of the form ``spec``."""
    ordered = _ordered(kwargs, spec)
    flat, given = pytree.tree_flatten((tuple(args), ordered))
    if spec is not None and given != spec:
        text = f"the program takes {_described(spec)}; it was given {_described(given)}"
        raise InputError("input-invalid", text)
    return flat


def _ordered(kwargs: Mapping[str, Any], spec: pytree.TreeSpec | None) -> dict[str, Any]:
    """Keyword arguments in the order in which the program was exported with them."""
    known = list(spec.child(1).context or []) if spec is not None else []
    unknown = [k for k in kwargs if k not in known]
    if unknown:
        raise InputError("input-invalid", f"unknown keyword argument {unknown[0]!r}; the program takes {known}")
    return {k: kwargs[k] for k in known if k in kwargs}


def _described(spec: pytree.TreeSpec) -> str:
    args, kwargs = spec.child(0), spec.child(1)
    named = f" and the keywords {', '.join(kwargs.context)}" if kwargs.num_children else ""
    leaves = f" of {args.num_leaves} values" if args.num_leaves != args.num_children else ""
    return f"{args.num_children} positional inputs{leaves}{named}"


def check_fixed(name: str, wanted: Any, value: Any) -> None:
    """Raise InputError if an argument that is no tensor is not what the program was exported for."""
    if isinstance(wanted, (int, float, bool, str, type(None))) and value != wanted:
        raise InputError("input-invalid", f"input {name} was exported as {wanted!r}; it is {value!r}")


class Origin(NamedTuple):
    """Where a value comes from: the delegate's k-th result, the k-th leaf of the caller's arguments, or it is fixed."""

    kind: Literal["result", "input", "fixed"]
    at: Any


@dataclass(frozen=True)
class WholeCall:
    """How a program is called that is one delegate and nothing else.

    ``takes``: where the delegate's inputs come from; leaves of the caller's arguments that nothing uses are not there.
    ``returns``: where the leaves of what is returned come from. ``writes``: positions of the leaves that are written in
    place, and where their new values come from. ``fixed``: name and value of those that are no tensors, by position.
    """

    in_spec: pytree.TreeSpec | None
    out_spec: pytree.TreeSpec
    takes: tuple[Origin, ...]
    returns: tuple[Origin, ...]
    writes: tuple[tuple[int, Origin], ...]
    fixed: Mapping[int, tuple[str, Any]]

    def call(self, delegate: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call ``delegate`` with the caller's arguments; the results in the program's own structure."""
        flat = flat_arguments(self.in_spec, args, kwargs)
        for position, (name, wanted) in self.fixed.items():
            check_fixed(name, wanted, flat[position])
        results = delegate(*(_value(o, (), flat) for o in self.takes))
        for position, origin in self.writes:
            flat[position].copy_(_value(origin, results, flat))
        return pytree.tree_unflatten([_value(o, results, flat) for o in self.returns], self.out_spec)


def _value(origin: Origin, results: Sequence[Any], flat: Sequence[Any]) -> Any:
    places: dict[str, Sequence[Any]] = {"result": results, "input": flat}
    return places[origin.kind][origin.at] if origin.kind in places else origin.at


def whole_call(program: ExportedProgram) -> WholeCall:
    """Read the call off a program in which one delegate computes everything.

    Raises InputError if there is no such delegate, or a buffer that it cannot keep.
    """
    call = _only_call(program)
    _check_state(program)
    leaves = {n: k for k, n in enumerate(user_inputs(program))}
    position = {n.name: k for n, k in leaves.items()}
    origin = partial(_origin, program, leaves, dict(placeholders(program)))
    specs = program.graph_signature.output_specs
    sources = [(s, origin(v)) for s, v in zip(specs, output_values(program), strict=True)]
    return WholeCall(
        program.call_spec.in_spec,
        program.call_spec.out_spec,
        takes=tuple(origin(n) for n in call.args[1:]),
        returns=tuple(o for s, o in sources if s.kind not in MUTATIONS),
        writes=tuple((position[str(s.target)], o) for s, o in sources if s.kind is OutputKind.USER_INPUT_MUTATION),
        fixed={k: (n.name, n.meta.get("val")) for n, k in leaves.items() if not _varies(n)},
    )


def _only_call(program: ExportedProgram) -> Node:
    calls: list[Node] = [n for n in program.graph.nodes if n.target is _CALL_DELEGATE]
    if len(calls) != 1:
        text = f"the program makes {len(calls)} calls of delegates: nothing is computed that one could stand for"
        raise InputError("input-invalid", text, hint="give the module something to compute, or do not lower it")
    return calls[0]


def _check_state(program: ExportedProgram) -> None:
    for target in (s.target for s in program.graph_signature.output_specs if s.kind in STATE_WRITES):
        text = f"the program writes {target}, but no delegate computes its new value, so none can keep it"
        raise InputError("input-invalid", text, hint="to_backend(program, partitioner) leaves it to the program")


def _origin(
    program: ExportedProgram, leaves: Mapping[Node, int], specs: Mapping[Node, InputSpec], value: Any
) -> Origin:
    if not isinstance(value, Node):
        return Origin("fixed", value)
    if value in leaves:
        return Origin("input", leaves[value])
    if value.op == "placeholder":
        return Origin("fixed", constant_tensor(program, specs[value]))
    return Origin("result", value.args[1])  # a getitem of the one call


def _varies(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool))

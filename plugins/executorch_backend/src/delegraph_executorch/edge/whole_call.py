"""Calling a program that consists of one delegate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from delegraph.errors import InputError
from delegraph_programs import (
    constant_tensor,
    flat_arguments,
    output_values,
    placeholders,
    user_inputs,
)
from delegraph_programs.call_arguments import VARYING, is_fixed, wrong_input
from delegraph_programs.exported_program import CALL_DELEGATE, MUTATIONS, STATE_WRITES
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree


class ValueOrigin(NamedTuple):
    """Where a value of a call comes from.

    ``at`` is a position among the delegate's results ("result") or among the flat
    arguments ("input"), or the value itself ("fixed").
    """

    kind: Literal["result", "input", "fixed"]
    at: Any


@dataclass(frozen=True)
class WholeCall:
    """How to call a program that consists of one delegate.

    ``takes``: origins of the delegate's inputs. ``returns``: origins of the flat
    results. ``writes``: position of an argument that is written in place, and the
    origin of its new value. ``fixed``: position of an argument that the export fixed ->
    its name and value.
    """

    in_spec: pytree.TreeSpec | None
    out_spec: pytree.TreeSpec
    takes: tuple[ValueOrigin, ...]
    returns: tuple[ValueOrigin, ...]
    writes: tuple[tuple[int, ValueOrigin], ...]
    fixed: Mapping[int, tuple[str, Any]]

    def __call__(
        self,
        delegate: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call ``delegate`` with the caller's arguments; returns the results in the
        program's structure.

        Raises InputError if an argument that the export fixed has another value.
        """
        flat = flat_arguments(self.in_spec, args, kwargs)
        for position, (name, wanted) in self.fixed.items():
            if not is_fixed(wanted, flat[position]):
                raise wrong_input(name, wanted, "", flat[position])
        results = delegate(*(_value(o, (), flat) for o in self.takes))
        for position, origin in self.writes:
            flat[position].copy_(_value(origin, results, flat))
        return pytree.tree_unflatten(
            [_value(o, results, flat) for o in self.returns], self.out_spec
        )


def _value(origin: ValueOrigin, results: Sequence[Any], flat: Sequence[Any]) -> Any:
    """The value that ``origin`` refers to, among these results and flat arguments."""
    sources: dict[str, Sequence[Any]] = {"result": results, "input": flat}
    return sources[origin.kind][origin.at] if origin.kind in sources else origin.at


def whole_call(program: ExportedProgram) -> WholeCall:
    """How to call ``program``, in which one delegate computes everything.

    Raises InputError if there is no such delegate, or if a buffer is written that it
    cannot keep.
    """
    calls: list[Node] = [n for n in program.graph.nodes if n.target is CALL_DELEGATE]
    if len(calls) != 1:
        text = (
            f"the program makes {len(calls)} calls of delegates: nothing is computed"
            " that one could stand for"
        )
        raise InputError(
            "input-invalid",
            text,
            hint="give the module something to compute, or do not lower it",
        )
    for target in (
        s.target for s in program.graph_signature.output_specs if s.kind in STATE_WRITES
    ):
        text = (
            f"the program writes {target}, but no delegate computes its new value, so"
            " none can keep it"
        )
        raise InputError(
            "input-invalid",
            text,
            hint="to_backend(program, partitioner) leaves it to the program",
        )
    leaves = {n: k for k, n in enumerate(user_inputs(program))}
    index = {n.name: k for n, k in leaves.items()}
    specs = dict(placeholders(program))

    def origin(value: Any) -> ValueOrigin:
        """The origin of the value of a node, or of a literal."""
        if not isinstance(value, Node):
            return ValueOrigin("fixed", value)
        if value in leaves:
            return ValueOrigin("input", leaves[value])
        if value.op == "placeholder":
            return ValueOrigin("fixed", constant_tensor(program, specs[value]))
        return ValueOrigin("result", value.args[1])  # a getitem of the one call

    returned = zip(
        program.graph_signature.output_specs, output_values(program), strict=True
    )
    sources = [(s, origin(v)) for s, v in returned]
    return WholeCall(
        program.call_spec.in_spec,
        program.call_spec.out_spec,
        takes=tuple(origin(n) for n in calls[0].args[1:]),
        returns=tuple(o for s, o in sources if s.kind not in MUTATIONS),
        writes=tuple(
            (index[str(s.target)], o)
            for s, o in sources
            if s.kind is OutputKind.USER_INPUT_MUTATION
        ),
        fixed={
            k: (n.name, v)
            for n, k in leaves.items()
            if not isinstance(v := n.meta.get("val"), VARYING)
        },
    )

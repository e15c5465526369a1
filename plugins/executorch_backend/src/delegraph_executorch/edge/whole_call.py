"""Call a program that consists of one delegate."""

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
from delegraph_programs.exported_program import CALL_DELEGATE, MUTATIONS, STATE_WRITES
from delegraph_programs.program_arguments import VARYING, is_fixed, wrong_input
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputKind
from torch.fx import Node
from torch.utils import _pytree as pytree


class ValueOrigin(NamedTuple):
    """The source of a value in a call.

    ``at`` is a position in the delegate's results ("result") or in the flat arguments
    ("input"), or the value itself ("fixed").
    """

    kind: Literal["result", "input", "fixed"]
    at: Any


@dataclass(frozen=True)
class WholeCall:
    """Calls a program that consists of one delegate.

    ``takes``: origins of the delegate's inputs. ``returns``: origins of the flat
    results. ``writes``: positions of arguments that are written in place, and the
    origins of their new values. ``fixed``: position of an argument that is constant
    since export -> its name and value.
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
        """Call ``delegate`` with the caller's arguments; return structured results.

        Raises InputError if an argument that is constant since export has another
        value.
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
    """Return the value of an origin in results and flat arguments."""
    sources: dict[str, Sequence[Any]] = {"result": results, "input": flat}
    return sources[origin.kind][origin.at] if origin.kind in sources else origin.at


def whole_call(program: ExportedProgram) -> WholeCall:
    """Return the way to call ``program``, in which one delegate computes everything.

    Raises InputError if there is no such delegate, or if it cannot keep a written
    buffer.
    """
    calls: list[Node] = [n for n in program.graph.nodes if n.target is CALL_DELEGATE]
    if len(calls) != 1:
        text = f"the program calls {len(calls)} delegates instead of one"
        hint = "give the module something to compute, or do not lower it"
        raise InputError("input-invalid", text, hint=hint)
    for spec in program.graph_signature.output_specs:
        if spec.kind in STATE_WRITES:
            text = (
                f"the program writes {spec.target}, but the delegate does not compute"
                " its new value, so it cannot keep it"
            )
            hint = "use to_backend(program, partitioner): the program keeps the buffer"
            raise InputError("input-invalid", text, hint=hint)
    leaves = {n: k for k, n in enumerate(user_inputs(program))}
    index = {n.name: k for n, k in leaves.items()}
    specs = dict(placeholders(program))

    def origin(value: Any) -> ValueOrigin:
        """Return the origin of a node's value, or of a literal."""
        if not isinstance(value, Node):
            return ValueOrigin("fixed", value)
        if value in leaves:
            return ValueOrigin("input", leaves[value])
        if value.op == "placeholder":
            return ValueOrigin("fixed", constant_tensor(program, specs[value]))
        # It is a getitem of the only call.
        return ValueOrigin("result", value.args[1])

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

"""Call a program that consists of one delegate.

The delegate's inputs and results may be in another order than the program's, and some of
the program's results may be inputs or constants.
"""

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


class ValueSource(NamedTuple):
    """The source of a value in a call.

    ``key`` is a position among the delegate's results ("result") or among the flat
    arguments ("input"), or the value itself ("constant").
    """

    kind: Literal["result", "input", "constant"]
    key: Any


@dataclass(frozen=True)
class WholeCall:
    """Calls a program that consists of one delegate.

    ``takes``: sources of the delegate's inputs. ``returns``: sources of the flat
    results. ``writes``: positions of arguments that are written in place, and the
    sources of their new values. ``fixed``: position of an argument that is constant
    since export -> its name and value.
    """

    in_spec: pytree.TreeSpec | None
    out_spec: pytree.TreeSpec
    takes: tuple[ValueSource, ...]
    returns: tuple[ValueSource, ...]
    writes: tuple[tuple[int, ValueSource], ...]
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
        results = delegate(*(_value(source, (), flat) for source in self.takes))
        for position, source in self.writes:
            flat[position].copy_(_value(source, results, flat))
        returned = [_value(source, results, flat) for source in self.returns]
        return pytree.tree_unflatten(returned, self.out_spec)


def _value(source: ValueSource, results: Sequence[Any], flat: Sequence[Any]) -> Any:
    """Return the value of a source in the delegate's results and flat arguments."""
    if source.kind == "result":
        return results[source.key]
    if source.kind == "input":
        return flat[source.key]
    return source.key


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
    inputs = user_inputs(program)
    position_of = {node: k for k, node in enumerate(inputs)}
    position_by_name = {node.name: k for k, node in enumerate(inputs)}
    specs = dict(placeholders(program))

    def source_of(value: Any) -> ValueSource:
        """Return the source of a node's value, or of a literal."""
        if not isinstance(value, Node):
            return ValueSource("constant", value)
        if value in position_of:
            return ValueSource("input", position_of[value])
        if value.op == "placeholder":
            return ValueSource("constant", constant_tensor(program, specs[value]))
        # a getitem of the only call
        return ValueSource("result", value.args[1])

    returns = []
    writes = []
    for spec, value in zip(
        program.graph_signature.output_specs, output_values(program), strict=True
    ):
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            writes.append((position_by_name[str(spec.target)], source_of(value)))
        elif spec.kind not in MUTATIONS:
            returns.append(source_of(value))
    fixed = {}
    for k, node in enumerate(inputs):
        val = node.meta.get("val")
        if not isinstance(val, VARYING):
            fixed[k] = (node.name, val)
    return WholeCall(
        program.call_spec.in_spec,
        program.call_spec.out_spec,
        takes=tuple(source_of(node) for node in calls[0].args[1:]),
        returns=tuple(returns),
        writes=tuple(writes),
        fixed=fixed,
    )

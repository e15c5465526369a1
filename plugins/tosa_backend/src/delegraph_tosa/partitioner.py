"""``TOSAPartitioner``: gives TOSA what its rules lower. The check is a dry run of them, so both agree."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from delegraph.errors import Unsupported
from delegraph.exported_program import constant_placeholders
from delegraph.partitioner import CapabilityPartitioner
from torch.export import ExportedProgram
from torch.fx import Node

from .ir.graph import Array, Deferred, Value
from .ir.types import Type
from .lowering.builder import Tosa
from .lowering.interpreter import Interpreter
from .lowering.registry import Result, apply, bind, is_unpacking, rule_of
from .lowering.torch_types import refused, type_of, why_not_static
from .options import Options
from .spec import TosaSpec

_CALL_DELEGATE = torch.ops.higher_order.executorch_call_delegate


def _nothing() -> Array:
    raise refused("a dry run read the elements of a constant")


ABSENT = Deferred(_nothing)
"""Stands for a constant in a dry run, which knows types only."""


class DryRun(Interpreter):
    """Lowers on types only. What was lowered once, with the same types and arguments, is not lowered again."""

    def __init__(self, t: Tosa, constants: set[Node], memo: dict[Hashable, Any]) -> None:
        super().__init__(t, self._constant)
        self.constants, self.memo = constants, memo

    def _constant(self, node: Node) -> Value | None:
        if node not in self.constants:
            return None
        return Value(type_of(node.meta["val"], f"the constant {node.name}"), ABSENT)

    def run(self, node: Node) -> Result:
        if is_unpacking(node):
            return super().run(node)
        rule = rule_of(node)
        arguments = bind(rule, node, self.value_of)
        key = (node.target, *map(_key, arguments))
        try:
            kept = self.memo[key]
        except KeyError:
            kept = self.memo[key] = self._tried(node, arguments)
        if isinstance(kept, str):
            raise refused(kept)
        result: Result = _revived(kept)
        self.values[node] = result
        return result

    def _tried(self, node: Node, arguments: list[Any]) -> Any:
        """The refusal, or the results' types."""
        try:
            return _summary(apply(self.t, rule_of(node), node, arguments))
        except Unsupported as refusal:
            return refusal.message
        finally:
            self.t.operators.clear()

    def why_not(self, node: Node) -> str | None:
        try:
            self.run(node)
        except Unsupported as refusal:
            return refusal.message
        return None


def _key(argument: Any) -> Hashable:
    """What a rule may see of an argument. Python compares 1, 1.0 and True equal, rules do not."""
    if isinstance(argument, Value):
        return argument.type, argument.constant is None
    if isinstance(argument, (list, tuple)):
        return tuple([_key(a) for a in argument])
    return type(argument), argument


Summary = tuple[Type, bool]
"""A value's type, and whether it is constant."""


def _summary(result: Result) -> Any:
    if isinstance(result, tuple):
        return [_summary(value) for value in result]
    return None if result is None else (result.type, result.constant is not None)


def _revived(kept: Any) -> Any:
    if isinstance(kept, list):
        return tuple([_revived(one) for one in kept])
    return None if kept is None else Value(kept[0], ABSENT if kept[1] else None)


class TOSASupport:
    """What the capability partitioner asks: one interpretation of the program, and one of each finished partition."""

    def __init__(self, spec: TosaSpec) -> None:
        self._t = Tosa(spec)
        self._memo: dict[Hashable, Any] = {}
        self._constants: set[Node] = set()
        self._accepted: set[Node] = set()
        self._copied: set[Node] = set()
        self._run = self._fresh()

    def _fresh(self) -> DryRun:
        return DryRun(self._t, self._constants, self._memo)

    def begin(self, exported_program: ExportedProgram) -> None:
        """A new program: forget the last one."""
        self._constants = constant_placeholders(exported_program)
        self._accepted, self._copied = set(), set()
        self._run = self._fresh()

    def why_not(self, node: Node) -> str | None:
        """Why ``node`` is not lowered for this target; None if it is. Asked in graph order."""
        why = self._run.why_not(node)
        if why is None:
            self._accepted.add(node)
        return why

    def is_constant(self, node: Node) -> bool:
        """Whether an accepted node folds to a constant, and takes nothing that has to be computed before it."""
        made_of = (_call(i) for i in node.all_input_nodes if i.op == "call_function")
        known = _all_constant(self._run.values.get(node)) and all(i in self._copied for i in made_of)
        if known:
            self._copied.add(node)
        return known

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        """Refusals of what shows only in a whole partition; {} if ``TOSABackend`` compiles it."""
        run, inside = self._fresh(), set(nodes)
        found: dict[Node, str] = {}
        for node in nodes:
            why = run.why_not(node) or self._why_not_result(run, node, inside)
            if why is not None:
                found[node] = why
                run.values.pop(node, None)
        self._accepted.difference_update(found)
        return found

    def _why_not_result(self, run: DryRun, node: Node, inside: set[Node]) -> str | None:
        """Why a value that others use cannot leave the partition."""
        if not any(u not in inside for u in node.users) or isinstance(node.meta["val"], (list, tuple)):
            return None
        try:
            value = run.value_of(node)
        except Unsupported as refusal:
            return refusal.message
        why = self._t.spec.why_not_tensor(value.type) if self._leaves(node, value, inside) else None
        return why and f"the result leaves the delegate: {why}"

    def _leaves(self, node: Node, value: Value, inside: set[Node]) -> bool:
        """Whether somebody outside needs the value. Who else uses a constant that a partition uses has its own."""
        if value.constant is None or _call(node) not in self._copied:
            return any(u not in inside for u in node.users)
        return not any(u.op == "call_function" and not self._is_refused(u) for u in node.users)

    def _is_refused(self, node: Node) -> bool:
        """Or another backend's, which is not asked about."""
        return node.target is _CALL_DELEGATE or _call(node) not in self._accepted


def _call(node: Node) -> Node:
    """The call that ``node`` takes one of several results of, or itself."""
    return _call(node.args[0]) if is_unpacking(node) else node  # type: ignore[arg-type]


def _all_constant(result: Result) -> bool:
    """Whether every result that is there is constant."""
    values = result if isinstance(result, tuple) else (result,)
    there = [value for value in values if value is not None]
    return bool(there) and all(value.constant is not None for value in there)


class TOSAPartitioner(CapabilityPartitioner):
    """Hands to ``TOSABackend`` every operator that the target ``spec`` takes.

    ``debug_artifact_path`` is a folder that gets a .tosa file of every partition, ``input_order`` a comma-separated
    permutation of a delegate's inputs. OptionError if one of them is wrong.
    """

    def __init__(
        self,
        spec: str | TosaSpec = "TOSA-1.0+FP+INT",
        debug_artifact_path: str | None = None,
        input_order: str | None = None,
    ) -> None:
        options = Options.of(str(spec), debug_artifact_path, input_order)
        super().__init__(
            TOSASupport(options.spec),
            "TOSABackend",
            options.compile_specs(),
            additional_checks=(why_not_dynamic,),
            spec={"spec": options.spec},
        )


def why_not_dynamic(node: Node) -> str | None:
    """Refuses calls on sizes that are known at run time only, for good: their pieces have the same sizes."""
    named = [*((i, f"the input {i.name}") for i in node.all_input_nodes), (node, "the result")]
    found = (why_not_static(n.meta["val"], what) for n, what in named if isinstance(n.meta.get("val"), torch.Tensor))
    return next((why for why in found if why is not None), None)

"""``TrialCompilation``: a support check for compilers that know what they take only by compiling
it.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from delegraph.errors import DelegraphError, Unsupported
from delegraph.partitioner import Support, WhyNot
from delegraph_programs import (
    argument_of,
    build_program,
    constant_placeholders,
    copy_node,
    flat_call,
    placeholder_of,
)
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

REMEMBERED = 10_000
"""How many answers are kept. One may take milliseconds, and the calls of a network
repeat.
"""


class TrialCompilation:
    """A ``why_not`` that asks a compiler about each call by itself.

    ``compile`` gets a program of that one call, whose operands are inputs, and raises
    Unsupported with the reason if it cannot compile it; other exceptions are refusals
    as well. What it returns is not used. It has to decide by operator, literals, types
    and shapes: calls that are alike in these are asked about once in the life of this
    object. ``for_all(node, reason)``: whether a refusal is one of the operator,
    whatever the types and shapes, so that it is asked about no more. ``is_sure(node)``:
    whether a call is taken without asking.

    ``after`` gives a support check that needs fewer programs: all calls of one operator
    are in one, side by side, and only if that is refused each has one of its own.
    """

    def __init__(
        self,
        compile: Callable[[ExportedProgram], object],
        for_all: Callable[[Node, str], bool] = lambda *_: False,
        is_sure: Callable[[Node], bool] = lambda _: False,
    ) -> None:
        self.compile = compile
        self._for_all = for_all
        self._is_sure = is_sure
        self._refused: dict[Any, str] = {}
        self._answers: OrderedDict[str, str | None] = OrderedDict()

    def __call__(self, node: Node) -> str | None:
        """Why ``node`` is not taken; None if it is."""
        return self.about([node])[node]

    def after(self, check: WhyNot) -> Support:
        """A support check that asks ``check`` first, and then about the other calls of
        a program together.
        """
        return _Together(check, self)

    def about(self, nodes: Collection[Node]) -> dict[Node, str | None]:
        """Why each of ``nodes`` is not taken; None if it is."""
        keys = {
            n: _described(n)
            for n in nodes
            if n.target not in self._refused and not self._is_sure(n)
        }
        # operator -> description -> one of the calls
        alike: dict[Any, dict[str, Node]] = {}
        for node, key in keys.items():
            if key not in self._answers:
                alike.setdefault(node.target, {}).setdefault(key, node)
        for unknown in alike.values():
            self._ask(unknown)
        answers = {
            n: self._refused.get(n.target, self._answers.get(keys.get(n, "")))
            for n in nodes
        }
        while len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return answers

    def _ask(self, calls: Mapping[str, Node]) -> None:
        """Compile these calls of one operator, by their descriptions; each alone if
        they are refused together.
        """
        why = None
        node = next(iter(calls.values()))
        for_all = False
        try:
            self.compile(program_of(calls.values()))
        except Unsupported as refusal:
            why = refusal.message
            for_all = self._for_all(node, why)
        except (DelegraphError, MemoryError):
            raise
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            why = f"its compiler failed: {type(error).__name__}" + (
                f": {text}" if text else ""
            )
        if for_all:
            self._refused[node.target] = why or ""
        elif why is not None and len(calls) > 1:
            for key, call in calls.items():
                self._ask({key: call})
            return
        self._answers.update(dict.fromkeys(calls, why))


class _Together(Support):
    """A support check that asks about all calls of a program when it begins; about
    others when they come.
    """

    def __init__(self, check: WhyNot, trial: TrialCompilation) -> None:
        self._check = check
        self._trial = trial
        self._answers: dict[Node, str | None] = {}
        self._constants: set[Node] = set()

    def begin(self, exported_program: ExportedProgram) -> None:
        self._constants = constant_placeholders(exported_program)
        calls = [
            node
            for node in exported_program.graph.nodes
            if isinstance(node.target, OpOverload)
        ]
        self._answers = {node: self._check(node) for node in calls}
        self._answers |= self._trial.about(
            [node for node, why in self._answers.items() if why is None]
        )

    def why_not(self, node: Node) -> str | None:
        if node in self._answers:
            # once: a call that is asked about again may have changed
            return self._answers.pop(node)
        why = self._check(node)
        return self._trial(node) if why is None else why

    def is_constant(self, node: Node) -> bool:
        # calls that draw random numbers are refused before
        if all(operand in self._constants for operand in node.all_input_nodes):
            self._constants.add(node)
        return node in self._constants

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        return {}


def program_of(nodes: Iterable[Node]) -> ExportedProgram:
    """A program of these calls side by side: their operands are inputs, their results,
    as far as used, outputs.
    """
    graph = Graph()
    operands = list[Node]()
    results = list[Node]()
    calls = list(nodes)
    copies = [
        {operand: placeholder_of(graph, operand) for operand in node.all_input_nodes}
        for node in calls
    ]
    for node, own in zip(calls, copies, strict=True):
        operands += own.values()
        made = [own.setdefault(node, copy_node(graph, node, own.__getitem__))]
        if isinstance(node.meta.get("val"), (tuple, list)):
            made = [copy_node(graph, user, own.__getitem__) for user in _used(node)]
        results += made
    graph.output(tuple(results))
    inputs = [InputSpec(InputKind.USER_INPUT, argument_of(n), None) for n in operands]
    outputs = [
        OutputSpec(OutputKind.USER_OUTPUT, argument_of(n), None) for n in results
    ]
    like: Any = SimpleNamespace(
        state_dict={}, constants={}, range_constraints={}, _guards_code=[]
    )
    call = flat_call(len(operands), len(results))
    return build_program(
        torch.nn.Module(), graph, inputs, outputs, like, call, check=False
    )


def _used(node: Node) -> list[Node]:
    return [user for user in node.users if user.target is operator.getitem]


def _described(node: Node) -> str:
    """A text that calls have in common of which a compiler says the same."""
    operands = {
        operand: f"%{k} {_types(operand)}"
        for k, operand in enumerate(node.all_input_nodes)
    }
    arguments = torch.fx.map_arg((node.args, node.kwargs), operands.__getitem__)
    return (
        f"{node.target} {arguments} {[user.args[1] for user in _used(node)]}"
        f" {_types(node)}"
    )


def _types(node: Node) -> str:
    val = node.meta.get("val")
    # walking a tree takes far longer
    values = [val] if isinstance(val, torch.Tensor) else pytree.tree_leaves(val)
    return str(
        [
            (
                f"{v.dtype}{list(v.shape)}"
                if isinstance(v, torch.Tensor)
                else type(v).__name__
            )
            for v in values
        ]
    )

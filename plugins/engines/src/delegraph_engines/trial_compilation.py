"""``TrialCompilation``: a support check that compiles each call on its own.

It is for compilers that know their limits only by compiling.
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
from delegraph_programs.higher_order_subgraphs import graphs
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind, OutputSpec
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from .numbered_calls import EngineError
from .support import body_of

REMEMBERED = 10_000
"""The number of results that are kept: calls repeat, and each takes milliseconds."""


class TrialCompilation:
    """A ``why_not`` that compiles each call by itself.

    ``compile`` gets a program of that call, with its operands as inputs. It raises
    Unsupported with the reason if it cannot compile the program; other exceptions are
    refusals as well. Its result is not used. It must decide by operator, literals,
    types and shapes: calls that agree in these are compiled once in the life of this
    object. ``for_all(node, reason)``: whether the operator is refused for all types and
    shapes, so that it is not compiled again. ``is_sure(node)``: whether a call is
    accepted without a trial.

    ``after`` makes a support check with fewer programs. It compiles all calls of one
    operator in one program. Only if that is refused, each call gets its own program.
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
        """Return why ``node`` is refused, or None if it is not."""
        return self.reasons([node])[node]

    def after(self, check: WhyNot) -> Support:
        """Return a support check that calls ``check``, and then compiles other calls."""
        return _BatchedSupport(check, self)

    def reasons(self, nodes: Collection[Node]) -> dict[Node, str | None]:
        """Return why each of ``nodes`` is refused, or None.

        Compiles those that no earlier answer covers.
        """
        keys: dict[Node, str] = {}
        # operator -> key -> one of the calls with that key
        untried: dict[Any, dict[str, Node]] = {}
        for node in nodes:
            if node.target in self._refused or self._is_sure(node):
                continue
            key = _key_of(node)
            keys[node] = key
            if key not in self._answers:
                untried.setdefault(node.target, {}).setdefault(key, node)
        for calls in untried.values():
            self._compile_together(calls)
        answers: dict[Node, str | None] = {}
        for node in nodes:
            answer = self._answers.get(keys.get(node, ""))
            answers[node] = self._refused.get(node.target, answer)
        while len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        return answers

    def _compile_together(self, calls: Mapping[str, Node]) -> None:
        """Compile these calls of one operator, by their keys; record the answers.

        If they are refused together, each is compiled on its own.
        """
        why = None
        node = next(iter(calls.values()))
        for_all = False
        try:
            self.compile(program_of(calls.values()))
        except (Unsupported, EngineError) as refusal:
            why = refusal.message
            for_all = self._for_all(node, why)
        except (DelegraphError, MemoryError):
            raise
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            why = f"its compiler failed: {type(error).__name__}"
            if text:
                why += f": {text}"
        if for_all:
            self._refused[node.target] = why or ""
        elif why is not None and len(calls) > 1:
            for key, call in calls.items():
                self._compile_together({key: call})
            return
        self._answers.update(dict.fromkeys(calls, why))


class _BatchedSupport(Support):
    """A support check that compiles all calls of a program before the first answer.

    Calls that are inserted later are compiled when they are asked about. ``check`` is
    asked first, and refuses calls that need no trial.
    """

    def __init__(self, check: WhyNot, trial: TrialCompilation) -> None:
        self._check = check
        self._trial = trial
        self._answers: dict[Node, str | None] = {}
        self._constants: set[Node] = set()

    def begin(self, exported_program: ExportedProgram) -> None:
        """Check all calls of the program, and compile those that the check accepts."""
        self._constants = constant_placeholders(exported_program)
        self._answers = {}
        for node in exported_program.graph.nodes:
            if isinstance(node.target, OpOverload):
                self._answers[node] = self._check(node)
        unrefused = [node for node, why in self._answers.items() if why is None]
        self._answers |= self._trial.reasons(unrefused)

    def why_not(self, node: Node) -> str | None:
        """Return why ``node`` is refused, or None.

        The first time, this is the answer of ``begin``.
        """
        if node in self._answers:
            # removed, because a call that is checked again may have changed
            return self._answers.pop(node)
        why = self._check(node)
        return self._trial(node) if why is None else why

    def is_constant(self, node: Node) -> bool:
        """Return whether all operands of ``node`` are constant, and remember it if so."""
        # calls that draw random numbers are refused before
        if all(operand in self._constants for operand in node.all_input_nodes):
            self._constants.add(node)
        return node in self._constants

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        return {}


def program_of(nodes: Iterable[Node]) -> ExportedProgram:
    """Return a program of these calls with all operands as inputs.

    Its outputs are the used results. The subgraphs of a call stay its subgraphs.
    """
    graph = Graph()
    root = torch.nn.Module()
    operands: list[Node] = []
    results: list[Node] = []
    calls = list(nodes)
    copies_of_call: list[dict[Node, Node]] = []
    # all placeholders come first in a graph, then the nodes that fetch subgraphs
    for node in calls:
        copies = {}
        for operand in node.all_input_nodes:
            if body_of(operand) is None:
                copies[operand] = placeholder_of(graph, operand)
                operands.append(copies[operand])
        copies_of_call.append(copies)
    for node, copies in zip(calls, copies_of_call, strict=True):
        for operand in node.all_input_nodes:
            if (body := body_of(operand)) is not None:
                copies[operand] = _fetch(root, graph, operand, body)
    for node, copies in zip(calls, copies_of_call, strict=True):
        copies[node] = copy_node(graph, node, copies.__getitem__)
        if isinstance(node.meta.get("val"), (tuple, list)):
            for user in _used_results(node):
                results.append(copy_node(graph, user, copies.__getitem__))
        else:
            results.append(copies[node])
    graph.output(tuple(results))
    inputs = [InputSpec(InputKind.USER_INPUT, argument_of(n), None) for n in operands]
    outputs = [
        OutputSpec(OutputKind.USER_OUTPUT, argument_of(n), None) for n in results
    ]
    # ``build_program`` reads only these fields of the original program
    like: Any = SimpleNamespace(
        state_dict={}, constants={}, range_constraints={}, _guards_code=[]
    )
    call = flat_call(len(operands), len(results))
    return build_program(root, graph, inputs, outputs, like, call, check=False)


def _fetch(root: torch.nn.Module, graph: Graph, node: Node, body: GraphModule) -> Node:
    """Append a copy of ``node``, which fetches ``body``, to a graph of ``root``."""
    copy = copy_node(graph, node, lambda operand: operand)
    copy.target = f"body_{len(list(root.children()))}"
    root.add_module(copy.target, body)
    return copy


def _used_results(node: Node) -> list[Node]:
    """Return the nodes that unpack results of a call."""
    return [user for user in node.users if user.target is operator.getitem]


def _key_of(node: Node) -> str:
    """Return a text that is equal for calls with the same result of a trial."""
    operands = {
        operand: f"%{k} {_text_of_body(operand) or _types(operand)}"
        for k, operand in enumerate(node.all_input_nodes)
    }
    arguments = torch.fx.map_arg((node.args, node.kwargs), operands.__getitem__)
    used = [user.args[1] for user in _used_results(node)]
    return f"{node.target} {arguments} {used} {_types(node)}"


def _text_of_body(operand: Node) -> str | None:
    """Return the calls and types of a branch or loop body; None for a value."""
    body = body_of(operand)
    if body is None:
        return None
    lines = []
    for graph in graphs(body):
        for node in graph.nodes:
            lines.append(f"{node.name} = {node.target} {node.args} {node.kwargs}")
            lines.append(_types(node))
    return "\n".join(lines)


def _types(node: Node) -> str:
    """Return the types and shapes of the recorded values of a node, as text."""
    val = node.meta.get("val")
    # walking a tree takes far longer
    values = [val] if isinstance(val, torch.Tensor) else pytree.tree_leaves(val)
    return ", ".join(map(_type, values))


def _type(value: Any) -> str:
    """Return type and shape of a tensor as text, or the class of another value."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}"
    return type(value).__name__

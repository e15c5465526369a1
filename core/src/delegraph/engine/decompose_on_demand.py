"""Decomposes operators on demand.

A backend *keeps* a call if it takes the call whole. Every other call that has a
decomposition is traced by itself, with fake tensors. The decomposition replaces the
call, and the backend is asked about the new calls, the *parts*. If no backend takes any
part, the call stays whole, and the host runs it as eager PyTorch does. The program is
never retraced as a whole. If a backend refuses nothing, nothing is done.

There are two kinds of decompositions. ``to_core`` finds those of operators outside of
core ATen, and ``beyond_core`` those of core ATen operators. Both return None for an
operator without a decomposition.

For program files that need core ATen, ``in_core_aten`` decomposes the host's calls
afterwards.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from delegraph_programs import (
    TRACING,
    copy_program,
    decompose_calls,
    exported_program,
    operator_name,
    to_core,
)
from delegraph_programs.call_names import LEFT, handle_of
from delegraph_programs.decompose.decomposition_tables import beyond_core
from delegraph_programs.decompose.inline import Inlining
from delegraph_programs.decompose.trace import LINEAR, Decomposition, Tracer
from delegraph_programs.operator_schema import is_view
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from ..discovery.plugin_call import PluginCall
from ..errors import PluginFailed
from ..partitioner import Partitioner, Support
from .ask_partitioner import Answer, ask, make_plan
from .compiler_interface import Session
from .failures_to_refusals import log, may_be_refusal
from .partition_records import ON_HOST, Plan
from .undo_decompositions import Composites

Keeps = Callable[[Node], bool]
"""A function that returns whether some backend takes a call whole."""


class _Kept(NamedTuple):
    """The calls and operators that some partitioners keep.

    ``keeps`` returns whether one of them keeps a call. ``operators``: the operators
    that traces must not decompose, because the partitioners are asked about them.
    """

    keeps: Keeps
    operators: frozenset[Any]


class Decomposer:
    """Decomposes calls in the programs of one lowering.

    Remembers traces, and which decompositions were of no use. Changes the graphs of the
    programs that it gets, so these must be private to the lowering. ``session``: calls
    the partitioners; None: they are called directly. ``may_fail``: if a partitioner
    raises an exception, the calls that the exception is about are refused. Without it,
    the exception ends the lowering.
    """

    def __init__(self, session: Session | None = None, may_fail: bool = False) -> None:
        self.tracer = Tracer()
        self._session = session
        self._may_fail = may_fail
        # keys of calls that were decomposed without use
        self._useless: set[Any] = set()

    @property
    def notes(self) -> list[str]:
        """Return notes about decompositions that could not be traced, each once."""
        return list(dict.fromkeys(self.tracer.failures))

    def plan(
        self,
        program: ExportedProgram,
        partitioner: Partitioner,
        later: Sequence[Partitioner] = (),
    ) -> Plan:
        """Return the plan of ``partitioner``; calls that no backend keeps are
        decomposed.

        ``later``: the partitioners of the next backends. A call that one of these keeps
        stays whole. A decomposed call without a delegated part is restored.
        """
        composites = Composites()
        answer = self.ask(program, partitioner, later, composites)
        # restored calls get refusals instead of their parts
        refusals = composites.restore(
            answer.tags, answer.result.boundary_types, answer.result.refusals
        )
        result = replace(answer.result, refusals=refusals)
        plan = make_plan(answer._replace(result=result))
        # kept for ``give_back``: a compiler may refuse parts of decomposed calls
        plan.composites = composites
        return plan

    def ask(
        self,
        program: ExportedProgram,
        partitioner: Partitioner,
        later: Sequence[Partitioner] = (),
        composites: Composites | None = None,
    ) -> Answer:
        """Return the answer of ``partitioner``; refused calls are decomposed if that
        helps.

        ``later``: the partitioners of the next backends. A call that one of these keeps
        stays whole. ``composites`` gets the calls that are decomposed; None: no record
        is kept.
        """
        composites = composites or Composites()
        self.tracer.begin(program)
        program = self._decompose_for_tags(program, partitioner, later, composites)
        # Each round asks the partitioner about the whole graph, because the partitions
        # depend on all calls. The round then decomposes calls that the partitioner left
        # to the host. Each call is ``attempted`` once. Never attempted are final
        # refusals, calls without a decomposition, and checks that the host computes
        # (``ON_HOST``). The partitioner may leave parts of decomposed calls, too, so
        # rounds follow until nothing was decomposed.
        attempted: set[Node] = set()
        while True:
            answer = ask(program, partitioner, self._session, self._may_fail)
            final = {r.node for r in answer.result.refusals if r.final}
            left = [
                n
                for n in _calls(program)
                if n not in answer.tags and ON_HOST not in n.meta
            ]
            left = [n for n in left if to_core(n.target) or beyond_core(n.target)]
            new = [n for n in left if n not in attempted and n not in final]
            attempted.update(new)
            if not new:
                return answer
            is_changed = self._decompose_left(
                program, partitioner, later, new, composites
            )
            if not is_changed:
                return answer
            program = rebuild(program)

    def _decompose_for_tags(
        self,
        program: ExportedProgram,
        partitioner: Partitioner,
        later: Sequence[Partitioner],
        composites: Composites,
    ) -> ExportedProgram:
        """Return ``program``, decomposed for a partitioner without a support check.

        Such a partitioner is asked about core ATen, and about the other operators that
        ``partitioner`` or one of ``later`` keeps. If ``partitioner`` has a support
        check, the program does not change. ``composites`` gets the calls that are
        decomposed.
        """
        if support_of(partitioner):
            return program
        decomposable = [n for n in _calls(program) if to_core(n.target)]
        if not decomposable:
            return program
        kept = self._kept(program, [partitioner, *later])
        reducer = _Reducer(self.tracer, kept)
        is_changed = False
        for node in decomposable:
            if not kept.keeps(node):
                is_changed |= reducer.decompose(node, composites)
        return rebuild(program) if is_changed else program

    def _decompose_left(
        self,
        program: ExportedProgram,
        partitioner: Partitioner,
        later: Sequence[Partitioner],
        refused: Sequence[Node],
        composites: Composites,
    ) -> bool:
        """Decompose calls that ``partitioner`` refused; return whether there are any.

        A call that one of ``later`` keeps stays whole. If ``partitioner`` has a support
        check, a call also stays whole if the backend would take no useful part of it.
        ``composites`` gets the calls that are decomposed.
        """
        kept_later = self._kept(program, later).keeps
        unwanted = [n for n in refused if not kept_later(n)]
        support = support_of(partitioner)
        decomposing: _Reducer | _Attempts
        if support is None:
            kept = self._kept(program, [partitioner, *later])
            decomposing = _Reducer(self.tracer, kept)
        else:
            keeps = self._guarded(partitioner, _KeepsByAsking(support))
            decomposing = _Attempts(
                self.tracer, lambda node: keeps(node) or kept_later(node), self._useless
            )
        is_changed = False
        for node in unwanted:
            is_changed |= decomposing.decompose(node, composites)
        return is_changed

    def _kept(
        self, program: ExportedProgram, partitioners: Sequence[Partitioner]
    ) -> _Kept:
        """Return the calls and operators that ``partitioners`` keep in ``program``.

        Calls ``begin(program)`` of each support check. If partitioners may fail, a
        partitioner that raises an exception keeps nothing.
        """
        keeps_by_partitioner: list[Keeps] = []
        operators: frozenset[Any] = frozenset()
        for partitioner in partitioners:
            try:
                kept = self._kept_by(program, partitioner)
            except PluginFailed as failure:
                if not self._may_fail or not may_be_refusal(failure):
                    raise
                log(failure)
                continue
            keeps_by_partitioner.append(kept.keeps)
            operators |= kept.operators

        def is_kept(node: Node) -> bool:
            """Return whether a partitioner keeps the call ``node``."""
            return any(keeps(node) for keeps in keeps_by_partitioner)

        return _Kept(is_kept, operators)

    def _kept_by(self, program: ExportedProgram, partitioner: Partitioner) -> _Kept:
        """Return the calls and operators that one partitioner keeps.

        A partitioner without a support check lists its operators. A support check does
        not: it gets the program, and then answers for each call.
        """
        support = support_of(partitioner)
        work = PluginCall(partitioner, "support check")
        if support is None:
            with work:
                operators, wanted = partitioner.ops_to_not_decompose(program)
            listed = frozenset(operators)

            def is_listed(node: Node) -> bool:
                """Return whether the call is kept.

                If ``wanted`` is None, each call of a listed operator is kept.
                """
                return node.target in listed and (wanted is None or wanted(node))

            return _Kept(self._guarded(partitioner, is_listed), listed)
        with work:
            support.begin(program)
        keeps = self._guarded(partitioner, _KeepsByAsking(support))
        # the contract of ``Support``: every call is asked about, in graph order;
        # ``keeps`` remembers the answers
        for node in _calls(program):
            keeps(node)
        # traces keep ``linear``, so that the check is asked about it
        return _Kept(keeps, LINEAR)

    def _guarded(self, partitioner: Partitioner, keeps: Keeps) -> Keeps:
        """Return a function like ``keeps``, with errors that name ``partitioner``.

        If partitioners may fail, the function returns False for a call about which
        ``keeps`` raises an exception.
        """
        attributed = PluginCall(partitioner, "support check").around(keeps)
        if not self._may_fail:
            return attributed

        def kept(node: Node) -> bool:
            """Return the answer of ``keeps``; log an exception and return False."""
            try:
                return attributed(node)
            except PluginFailed as failure:
                if not may_be_refusal(failure):
                    raise
                log(failure)
                return False

        return kept


def in_core_aten(
    program: ExportedProgram, keep: Collection[Any] = ()
) -> ExportedProgram:
    """Return a copy of ``program`` with the host's calls in core ATen.

    Subgraphs are included, and operators in ``keep`` stay whole. A call that torch
    cannot decompose for its arguments stays whole, too.
    """

    def keeps_or_marks(node: Node) -> bool:
        """Return whether a call stays whole; mark it otherwise.

        The parts of a marked call inherit the mark. By it, the report counts them as
        the one call that the user wrote.
        """
        if node.target not in keep and LEFT not in node.meta:
            node.meta[LEFT] = (handle_of(node), node.name, operator_name(node))
        return node.target in keep

    with TRACING:
        return decompose_calls(copy_program(program), keeps_or_marks, keep)


def _calls(program: ExportedProgram) -> list[Node]:
    """Return the calls of operators, without control flow and delegates."""
    return [
        n
        for n in program.graph.nodes
        if n.op == "call_function" and isinstance(n.target, OpOverload)
    ]


def rebuild(program: ExportedProgram) -> ExportedProgram:
    """Return the program with a signature for its changed graph, and without tags."""
    for node in program.graph.nodes:
        node.meta.pop("delegation_tag", None)
    return exported_program.rebuild(program)


def support_of(partitioner: Partitioner) -> Support | None:
    """Return the support check of a partitioner; None if it can only tag."""
    support = getattr(partitioner, "support", None)
    return support if isinstance(support, Support) else None


class _KeepsByAsking:
    """A function that returns whether a backend takes a call.

    It asks the backend's support check, and remembers the answers. The support check
    must have begun with the program that has the call.
    """

    def __init__(self, support: Support) -> None:
        self._support = support
        self._known: dict[Node, bool] = {}

    def __call__(self, node: Node) -> bool:
        """Return whether the backend takes the call ``node``.

        A call that unpacks results has the answer of the call that returns them.
        """
        if node.target is operator.getitem:
            return self(node.args[0])  # type: ignore[arg-type]
        if node not in self._known:
            # if the check raises an exception, the answer False remains
            self._known[node] = False
            self._known[node] = self._support.why_not(node) is None
            if self._known[node]:
                # The result is not needed here. The check may remember it, and use it
                # when it is asked about the users of ``node``.
                self._support.is_constant(node)
        return self._known[node]


class _Reducer:
    """Decomposes calls until each is kept or is core ATen.

    For partitioners without a support check.
    """

    def __init__(self, tracer: Tracer, kept: _Kept) -> None:
        self.tracer = tracer
        self.kept = kept

    def decompose(self, node: Node, composites: Composites | None = None) -> bool:
        """Decompose ``node``, and in turn the new calls that are not kept.

        ``composites`` gets ``node``; None: no record is kept. Returns False, without a
        change, if ``node`` has no decomposition.
        """
        decomposition = self.tracer.decompose(
            node, to_core(node.target), self.kept.operators
        )
        if decomposition is None:
            return False
        inlining = Inlining(node, decomposition)
        for call in inlining.calls:
            if not self.kept.keeps(call):
                # without ``composites``, since the new calls are parts of ``node``
                self.decompose(call)
        if composites is not None:
            composites.add(inlining)
        inlining.commit()
        return True


class _Attempts:
    """Decomposes calls if a backend with a support check then takes some of the parts.

    A core ATen operator is decomposed only if the backend takes all parts. ``keeps``
    returns whether the backend takes a call. ``useless``: keys of calls that were
    decomposed without use in this lowering. More keys are added to it.
    """

    def __init__(self, tracer: Tracer, keeps: Keeps, useless: set[Any]) -> None:
        self.tracer = tracer
        self.keeps = keeps
        self._useless = useless

    def decompose(self, node: Node, composites: Composites) -> bool:
        """Decompose ``node`` if the backend then takes more of the program.

        ``composites`` gets ``node`` if it is decomposed. Returns whether it is.
        """
        # The key has the operators that compute the operands, because answers may
        # depend on them. For example, a backend may need a constant operand.
        producers = (
            (i.op, i.target) for i in node.all_input_nodes if i.op != "placeholder"
        )
        key = (self.tracer.signature(node), *producers)
        attempt = None if key in self._useless else self.attempt(node)
        if attempt is not None and attempt.is_worthwhile:
            composites.add(attempt)
            attempt.commit()
            return True
        self._useless.add(key)
        if attempt is not None:
            attempt.undo()
        return False

    def attempt(self, node: Node) -> _Attempt | None:
        """Insert the decomposition of ``node`` before ``node``, and ask the backend
        about the inserted calls.

        The caller must ``commit`` or ``undo`` the result. Returns None, without a
        change, if there is no decomposition.
        """
        decomposition = self.tracer.decompose(
            node, to_core(node.target) or beyond_core(node.target)
        )
        return None if decomposition is None else _Attempt(node, decomposition, self)


class _Attempt(Inlining):
    """A decomposition that is inserted before its call, with the backend's answers.

    ``complete``: the backend takes all parts. ``gains``: it takes at least one part
    that is neither a view nor a constant. ``_constant``: the parts that compute
    constants. These have no operands, or only operands that are such parts.
    """

    def __init__(
        self, node: Node, decomposition: Decomposition, attempts: _Attempts
    ) -> None:
        """Insert ``decomposition`` before ``node``, and ask about each of its calls."""
        super().__init__(node, decomposition)
        self.complete = True
        self.gains = False
        self._constant: set[Node] = set()
        for call in self.calls:
            self._ask(call, attempts)

    @property
    def is_worthwhile(self) -> bool:
        """Return whether the decomposition should replace the call.

        It should if the backend takes all parts. If the backend takes only some, there
        must be a gain, and the operator must be outside of core ATen. The host runs a
        core ATen operator whole just as well.
        """
        return self.complete or (self.gains and to_core(self.node.target) is not None)

    def _ask(self, call: Node, attempts: _Attempts) -> None:
        """Ask the backend about the part ``call``; update ``complete`` and ``gains``.

        A part that the backend refuses is decomposed in turn, if that is worthwhile.
        """
        if all(i in self._constant for i in call.all_input_nodes):
            self._constant.add(call)
        if attempts.keeps(call):
            # a delegate that holds only views, or constants, is no gain
            self.gains |= call not in self._constant and not is_view(call)
            return
        inner = attempts.attempt(call)
        if inner is not None and inner.is_worthwhile:
            self.complete &= inner.complete
            self.gains |= inner.gains
            inner.commit()
            return
        self.complete = False
        if inner is not None:
            inner.undo()

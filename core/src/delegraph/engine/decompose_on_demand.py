"""Decomposes operators on demand.

An operator that a backend keeps stays whole. Every other call that has a decomposition
is traced by itself, with fake tensors. The decomposition replaces the call, and the
backend is asked about the new calls. If no backend takes any of the new calls, the call
stays whole, and the host runs the call as eager PyTorch does. For program files that
need core ATen, ``in_core_aten`` decomposes the host's calls afterwards. The program is
never retraced as a whole. If a backend refuses nothing, nothing is done.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

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


class Decomposer:
    """The decompositions of one lowering.

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
        """Return notes about decompositions that could not be traced."""
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
        stays whole for it. Calls of which no part is delegated are restored.
        """
        composites = Composites()
        answer = self.ask(program, partitioner, later, composites)
        result = answer.result
        refusals = composites.restore(
            answer.tags, result.boundary_types, result.refusals
        )
        plan = make_plan(answer._replace(result=replace(result, refusals=refusals)))
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
        stays whole for it. ``composites`` gets the calls that are decomposed; None: no
        record is kept.
        """
        composites = composites or Composites()
        self.tracer.begin(program)
        program = self._decompose_for_tags(program, partitioner, later, composites)
        # Each turn asks the partitioner about the whole graph, because calls have to
        # form partitions, so an answer depends on the whole graph. The turn then
        # decomposes calls that the partitioner left. Exceptions are calls that were
        # ``attempted`` before, final refusals, calls that torch cannot decompose, and
        # calls that only check something (``ON_HOST``). The partitioner may leave some
        # of the new calls. So the loop ends when there is no new call to attempt, or
        # when no call was decomposed.
        attempted: set[Node] = set()
        while True:
            answer = ask(program, partitioner, self._session, self._may_fail)
            not_decomposed = {r.node for r in answer.result.refusals if r.final}
            left = [
                n
                for n in _calls(program)
                if n not in answer.tags and ON_HOST not in n.meta
            ]
            left = [n for n in left if to_core(n.target) or beyond_core(n.target)]
            new = [n for n in left if n not in attempted and n not in not_decomposed]
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
        ``partitioner`` or one of ``later`` keeps whole. If ``partitioner`` has a
        support check, the program does not change. ``composites`` gets the calls that
        are decomposed.
        """
        if support_of(partitioner):
            return program
        decomposable = [n for n in _calls(program) if to_core(n.target)]
        if not decomposable:
            return program
        reducer = _Reducer(self.tracer, *self._kept(program, [partitioner, *later]))
        # ``decompose`` replaces a call, and returns whether it did
        changed = [
            n
            for n in decomposable
            if not reducer.keeps(n) and reducer.decompose(n, composites)
        ]
        return rebuild(program) if changed else program

    def _decompose_left(
        self,
        program: ExportedProgram,
        partitioner: Partitioner,
        later: Sequence[Partitioner],
        refused: Sequence[Node],
        composites: Composites,
    ) -> bool:
        """Decompose calls of ``refused``, those that ``partitioner`` refuses.

        A call that one of ``later`` keeps is not decomposed. If ``partitioner`` has a
        support check, neither is a call of which it takes no useful part.
        ``composites`` gets the calls that are decomposed. Returns whether there are
        any.
        """
        kept_later, _ = self._kept(program, later)
        unwanted = [n for n in refused if not kept_later(n)]
        support = support_of(partitioner)
        if support is None:
            reducer = _Reducer(self.tracer, *self._kept(program, [partitioner, *later]))
            # a list, since ``any`` of a generator would stop after the first success
            return any([reducer.decompose(n, composites) for n in unwanted])
        keeps = self._guarded(partitioner, _KeepsByAsking(support))
        attempts = _Attempts(
            self.tracer, lambda node: keeps(node) or kept_later(node), self._useless
        )
        return any([attempts.decompose(n, composites) for n in unwanted])

    def _kept(
        self, program: ExportedProgram, partitioners: Sequence[Partitioner]
    ) -> tuple[Keeps, frozenset[Any]]:
        """Return a function and a set of operators.

        The function returns whether one of ``partitioners`` keeps a call whole. Traces
        must not decompose the operators, because the partitioners are asked about them.
        They are the operators that partitioners without a support check list, and
        ``LINEAR`` if one has a support check. Each support check begins with
        ``program`` here. If partitioners may fail, one that raises an exception keeps
        nothing.
        """
        keeps_by_partitioner: list[Keeps] = []
        whole: set[Any] = set()
        for partitioner in partitioners:
            try:
                keeps, operators = self._kept_by(program, partitioner)
            except PluginFailed as failure:
                if not self._may_fail or not may_be_refusal(failure):
                    raise
                log(failure)
                continue
            keeps_by_partitioner.append(keeps)
            whole.update(operators)

        def is_kept(node: Node) -> bool:
            """Return whether a partitioner keeps the call ``node`` whole."""
            return any(keeps(node) for keeps in keeps_by_partitioner)

        return is_kept, frozenset(whole)

    def _kept_by(
        self, program: ExportedProgram, partitioner: Partitioner
    ) -> tuple[Keeps, Collection[Any]]:
        """Return a function and operators, as ``_kept`` does for several partitioners.

        If ``partitioner`` has a support check, the check begins with ``program``, and
        is asked about each call.
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

            return self._guarded(partitioner, is_listed), listed
        with work:
            support.begin(program)
        keeps = self._guarded(partitioner, _KeepsByAsking(support))
        # the contract of ``Support``: every call is asked about, in graph order;
        # ``keeps`` remembers the answers
        for node in _calls(program):
            keeps(node)
        return keeps, LINEAR

    def _guarded(self, partitioner: Partitioner, keeps: Keeps) -> Keeps:
        """Return ``keeps``, a function of ``partitioner``, with errors that name the
        partitioner.

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

    def keeps(node: Node) -> bool:
        """Return whether a call stays whole; mark it otherwise.

        The report counts the user's call by this mark, which the calls that replace it
        inherit.
        """
        if node.target not in keep and LEFT not in node.meta:
            node.meta[LEFT] = (handle_of(node), node.name, operator_name(node))
        return node.target in keep

    with TRACING:
        return decompose_calls(copy_program(program), keeps, keep)


def _calls(program: ExportedProgram) -> list[Node]:
    """Return the calls of operators, without control flow and delegates."""
    return [
        n
        for n in program.graph.nodes
        if n.op == "call_function" and isinstance(n.target, OpOverload)
    ]


def rebuild(program: ExportedProgram) -> ExportedProgram:
    """Return the program with a signature for its changed graph.

    The tags of the last answer are removed.
    """
    for node in program.graph.nodes:
        node.meta.pop("delegation_tag", None)
    return exported_program.rebuild(program)


def support_of(partitioner: Partitioner) -> Support | None:
    """Return the support check of a partitioner; None if it can only tag."""
    support = getattr(partitioner, "support", None)
    return support if isinstance(support, Support) else None


class _KeepsByAsking:
    """A function that asks a support check whether the backend takes a call.

    Remembers the answers. Before, the support check must begin with the program that
    has the call, or into which the call is inserted.
    """

    def __init__(self, support: Support) -> None:
        self._support = support
        self._known: dict[Node, bool] = {}

    def __call__(self, node: Node) -> bool:
        """Return whether the backend takes the call ``node``.

        A call that unpacks results has the answer about the call that returns them.
        """
        if node.target is operator.getitem:
            return self(node.args[0])  # type: ignore[arg-type]
        if node not in self._known:
            # this answer stays if the check raises an exception
            self._known[node] = False
            self._known[node] = self._support.why_not(node) is None
            if self._known[node]:
                # also the contract of ``Support``: the check may need its own answer
                # when it is asked about the users of ``node``
                self._support.is_constant(node)
        return self._known[node]


class _Reducer:
    """Decomposes calls until each is kept or is core ATen.

    ``keeps`` returns whether a call is kept. ``whole``: operators that traces leave
    whole, so that ``keeps`` is asked about them.
    """

    def __init__(self, tracer: Tracer, keeps: Keeps, whole: frozenset[Any]) -> None:
        self.tracer = tracer
        self.keeps = keeps
        self.whole = whole

    def decompose(self, node: Node, composites: Composites | None = None) -> bool:
        """Decompose ``node``, and in turn the new calls that are not kept.

        ``composites`` gets ``node``; None: no record is kept. Returns False, without a
        change, if ``node`` has no decomposition.
        """
        decomposition = self.tracer.decompose(node, to_core(node.target), self.whole)
        if decomposition is None:
            return False
        inlining = Inlining(node, decomposition)
        for call in inlining.calls:
            if not self.keeps(call):
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
    decomposed without use; it belongs to the lowering, and gets more keys.
    """

    def __init__(self, tracer: Tracer, keeps: Keeps, useless: set[Any]) -> None:
        self.tracer = tracer
        self.keeps = keeps
        self._useless = useless

    def decompose(self, node: Node, composites: Composites) -> bool:
        """Decompose ``node`` if the backend then takes more of the program.

        ``composites`` gets ``node`` if it is decomposed. Returns whether it is.
        """
        # The key has the operators of the operands, because answers may depend on them,
        # for example on constants.
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
    constants: parts without operands, and parts with operands that are such parts.
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

        If the backend takes only some parts, that is so for an operator outside of core
        ATen, and if one of them is a gain. For a core ATen operator, such parts gain
        nothing, since the host runs the whole operator just as well.
        """
        return self.complete or (self.gains and to_core(self.node.target) is not None)

    def _ask(self, call: Node, attempts: _Attempts) -> None:
        """Ask the backend about the part ``call``, and update the attributes.

        If the backend refuses the part, the part is decomposed in turn, if that is
        worthwhile.
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

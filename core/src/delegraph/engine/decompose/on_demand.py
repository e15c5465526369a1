"""Step 2: decomposition on demand.

What a backend keeps stays whole. Anything else that has a decomposition is traced alone, under fake tensors, its pieces
take its place, and the backend is asked about them; finally what is left reaches core ATen, for the host. The program
is never retraced as a whole, and where nothing is refused nothing is done.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import OutputSpec
from torch.fx import Node

from ...discovery.attribution import AtWork
from ...exported_program import argument_of, build_program, output_node, root_call
from ...partitioner import Partitioner, Support
from ..delegate.partition import Plan
from ..delegate.plan import make_plan
from ..subgraphs import rewrite_subgraphs
from .inline import Splice
from .tables import beyond_core, to_core
from .trace import LINEAR, Pieces, Tracer

Keeps = Callable[[Node], bool]
"""Whether some backend takes a call as it is."""


class Decomposer:
    """The decompositions of one lowering: what was traced and what was tried in vain.

    Programs that it is given are the lowering's own; their graphs change.
    """

    def __init__(self) -> None:
        self.tracer = Tracer()
        self._in_vain: set[Any] = set()

    @property
    def notes(self) -> list[str]:
        """What could not be decomposed although it has a decomposition, and why."""
        return list(dict.fromkeys(self.tracer.failures))

    def plan(self, program: ExportedProgram, partitioner: Partitioner, later: Sequence[Partitioner] = ()) -> Plan:
        """The plan of ``partitioner`` once everything that neither it nor one of ``later`` keeps was decomposed."""
        program = self._for_tags(program, partitioner, later)
        tried: set[Node] = set()
        while True:
            plan = make_plan(program, partitioner)
            whole = tried.union(r.node for r in plan.refusals if r.final)
            left = [n for n in _calls(program) if n not in plan.tags and n not in whole and _decomposes(n)]
            tried.update(left)
            if not left or not self._reduce_left(program, partitioner, later, left):
                return plan
            program = _rebuilt(program)

    def finish(self, program: ExportedProgram, keep: Collection[Any] = ()) -> ExportedProgram:
        """``program`` with what no backend took in core ATen, bodies too; operators in ``keep`` stay as they are."""
        rewrite_subgraphs(program, lambda body: self.finish(body, keep))
        nodes = [n for n in _calls(program) if n.target not in keep and to_core(n.target)]
        reducer = _Finisher(self.tracer, frozenset(keep))
        changed = [n for n in nodes if reducer.open(n)]
        return _rebuilt(program) if changed else program

    def _for_tags(self, program: ExportedProgram, who: Partitioner, later: Sequence[Partitioner]) -> ExportedProgram:
        """A partitioner that only tags sees core ATen, except for what it, or a later one, asked to keep."""
        if _support(who):
            return program
        composites = [n for n in _calls(program) if to_core(n.target)]
        if not composites:
            return program
        reducer = _Reducer(self.tracer, *_kept(program, [who, *later]))
        changed = [n for n in composites if reducer.open_unless_kept(n)]
        return _rebuilt(program) if changed else program

    def _reduce_left(
        self, program: ExportedProgram, who: Partitioner, later: Sequence[Partitioner], left: Sequence[Node]
    ) -> bool:
        """Decompose what ``who`` left behind and no later one keeps; whether anything changed."""
        others, _ = _kept(program, later)
        mine = [n for n in left if not others(n)]
        support = _support(who)
        if support is None:
            reducer = _Reducer(self.tracer, *_kept(program, [who, *later]))
            return any([reducer.open(n) for n in mine])
        asked = AtWork(who, "support check").around(_Asked(support))
        trial = _Trial(self.tracer, _either(asked, others), self._in_vain)
        return any([trial.reduce(n) for n in mine])


def _calls(program: ExportedProgram) -> list[Node]:
    return [n for n in program.graph.nodes if n.op == "call_function" and isinstance(n.target, OpOverload)]


def _decomposes(node: Node) -> bool:
    return bool(to_core(node.target) or beyond_core(node.target))


def _rebuilt(program: ExportedProgram) -> ExportedProgram:
    """The program after its graph changed, with a signature that says so and without tags."""
    graph, signature = program.graph, program.graph_signature
    for node in graph.nodes:
        node.meta.pop("delegation_tag", None)
    values: Any = output_node(graph).args[0]
    outputs = [
        OutputSpec(s.kind, argument_of(v), s.target) for s, v in zip(signature.output_specs, values, strict=True)
    ]
    call = root_call(program)
    return build_program(program.graph_module, graph, signature.input_specs, outputs, program, call)


def _kept(program: ExportedProgram, partitioners: Sequence[Partitioner]) -> tuple[Keeps, frozenset[Any]]:
    """Which calls one of ``partitioners`` keeps, and the operators that a trace is to leave whole to be asked about."""
    asked = [_keeps(program, p) for p in partitioners]
    operators = frozenset(op for _, kept in asked for op in kept)
    return lambda node: any(keeps(node) for keeps, _ in asked), operators


def _keeps(program: ExportedProgram, who: Partitioner) -> tuple[Keeps, frozenset[Any]]:
    work = AtWork(who, "support check")
    with work:
        answer, operators = _answers(program, who)
    return work.around(answer), operators


def _answers(program: ExportedProgram, who: Partitioner) -> tuple[Keeps, frozenset[Any]]:
    support = _support(who)
    if support:
        return _Asked.about(program, support), LINEAR
    operators, wanted = who.ops_to_not_decompose(program)
    kept = frozenset(operators)
    return lambda node: node.target in kept and (wanted is None or wanted(node)), kept


def _support(who: Partitioner) -> Support | None:
    """What can be asked about single nodes, where a partitioner has it; the others only tag."""
    support = getattr(who, "support", None)
    return support if isinstance(support, Support) else None


def _either(first: Keeps, second: Keeps) -> Keeps:
    return lambda node: first(node) or second(node)


class _Asked:
    """A backend's word on the calls of the program that its ``support`` went through last, and on pieces of them."""

    def __init__(self, support: Support) -> None:
        self._support = support
        self._answers: dict[Node, bool] = {}

    @classmethod
    def about(cls, program: ExportedProgram, support: Support) -> _Asked:
        """With every call of ``program`` asked about."""
        made = cls(support)
        support.begin(program)
        for node in _calls(program):
            made(node)
        return made

    def __call__(self, node: Node) -> bool:
        if node.target is operator.getitem:
            return self(node.args[0])  # type: ignore[arg-type]
        if node not in self._answers:
            self._answers[node] = self._support.why_not(node) is None
            if self._answers[node]:
                self._support.is_constant(node)
        return self._answers[node]


class _Reducer:
    """Opens calls, and the pieces of calls, until each is kept or is core ATen."""

    def __init__(self, tracer: Tracer, keeps: Keeps, kept: frozenset[Any]) -> None:
        self.tracer, self.keeps, self.kept = tracer, keeps, kept

    def open_unless_kept(self, node: Node) -> bool:
        return not self.keeps(node) and self.open(node)

    def open(self, node: Node) -> bool:
        """Put the pieces of ``node`` in its place; False if it cannot be decomposed."""
        pieces = self._pieces(node)
        if pieces is None:
            return False
        splice = Splice(node, pieces)
        for piece in splice.work:
            self.open_unless_kept(piece)
        splice.commit()
        return True

    def _pieces(self, node: Node) -> Pieces | None:
        return self.tracer.pieces(node, to_core(node.target), self.kept)


class _Finisher(_Reducer):
    """Opens calls down to core ATen in one step where a trace can: nobody is asked about what lies between."""

    def __init__(self, tracer: Tracer, kept: frozenset[Any]) -> None:
        super().__init__(tracer, lambda node: node.target in kept, kept)

    def _pieces(self, node: Node) -> Pieces | None:
        return self.tracer.core_pieces(node, self.kept) or super()._pieces(node)


class _Trial:
    """Opens calls for a backend that can be asked: only where it takes some of the pieces.

    Operators of core ATen, which the host runs as well as their pieces, are opened only where it takes all of them.
    """

    def __init__(self, tracer: Tracer, keeps: Keeps, in_vain: set[Any]) -> None:
        self.tracer, self.keeps, self._in_vain = tracer, keeps, in_vain

    def reduce(self, node: Node) -> bool:
        """Decompose ``node`` if a backend gains by it; whether it did."""
        producers = ((i.op, i.target) for i in node.all_input_nodes if i.op != "placeholder")
        key = (self.tracer.signature(node), *producers)
        splice = None if key in self._in_vain else self._opened(node)
        if splice is None or not splice.worthwhile:
            self._in_vain.add(key)
            if splice is not None:
                splice.undo()
            return False
        splice.commit()
        return True

    def _opened(self, node: Node) -> _Tried | None:
        pieces = self.tracer.pieces(node, to_core(node.target) or beyond_core(node.target))
        return None if pieces is None else _Tried(node, pieces, self)


class _Tried(Splice):
    """A splice with what the backend says of it: it takes all (``complete``), or some of the work (``gains``)."""

    def __init__(self, node: Node, pieces: Pieces, trial: _Trial) -> None:
        super().__init__(node, pieces)
        self.complete, self.gains = True, False
        self._constant: set[Node] = set()
        for piece in self.work:
            self._ask(piece, trial)

    @property
    def worthwhile(self) -> bool:
        return self.complete or (self.gains and to_core(self.node.target) is not None)

    def _ask(self, piece: Node, trial: _Trial) -> None:
        if all(i in self._constant for i in piece.all_input_nodes):
            self._constant.add(piece)
        if trial.keeps(piece):
            self.gains |= piece not in self._constant and not _views(piece)
            return
        opened = trial._opened(piece)
        if opened is None:
            self.complete = False
        elif opened.worthwhile:
            self.complete &= opened.complete
            self.gains |= opened.gains
            opened.commit()
        else:
            self.complete = False
            opened.undo()


def _views(node: Node) -> bool:
    """Whether a call only shows its argument anew: a delegate of views alone, or of constants, is no gain."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(a.alias_info is not None for a in schema.arguments)

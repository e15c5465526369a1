"""Pictures of a lowered program: the host's graph with its delegates, the inside of
each, branches and loops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from delegraph.delegates import DelegateInfo, LoweredBackendModule
from delegraph.report import (
    NOT_TAGGED,
    Cause,
    DelegateRow,
    format_size,
    host_calls,
    most_frequent,
    pluralize,
    refused_by,
)
from delegraph_programs import (
    constant_placeholders,
    is_operator,
    operator_name,
    placeholders,
)
from delegraph_programs.call_names import LEFT, unpacked
from delegraph_programs.exported_program import CALL_DELEGATE
from torch.fx import GraphModule, Node

from ..accuracy.operators import OperatorVerification
from ..drawing import Box, Picture, Wire, box_id, condense, overview
from ..profiling import ProgramProfile
from .heat import Errors, Heat, Times
from .labels import Labels, stem

if TYPE_CHECKING:
    from delegraph.report import Report

_LISTED = 6
"""Kinds of operators that the box of a delegate lists."""


@dataclass(frozen=True)
class Drawn:
    """A picture of a method, of a subgraph of its control flow, or of a delegate.

    ``note`` names the parts that were left out to make it small enough.
    """

    title: str
    picture: Picture
    id: str
    note: str = ""

    @staticmethod
    def of(title: str, picture: Picture, id: str) -> Drawn:
        """The picture, condensed if it is large."""
        small, note = condense(picture)
        return Drawn(title, small, id, note)


@dataclass(frozen=True)
class MethodPictures:
    """The method's own graph and its subgraphs, and the inside of each delegate by its
    name.

    ``overview`` is the graph with little but its delegates, if that is smaller.
    """

    graphs: list[Drawn]
    delegates: dict[str, Drawn]
    overview: Drawn | None = None


@dataclass(frozen=True)
class Links:
    """Rows of the page that pictures lead to: those of causes, and those of values that
    were compared with eager.

    Each is by its id; of a cause that, of a value where it is computed and its name.
    """

    causes: Mapping[str, Cause] = field(default_factory=dict)
    values: Mapping[tuple[str, str], str] = field(default_factory=dict)


def boxes_about(pictures: Iterable[Drawn]) -> dict[str, list[str]]:
    """Id of a row -> the ids of the boxes that it is about."""
    found: dict[str, list[str]] = {}
    for drawn in pictures:
        for k, box in enumerate(drawn.picture.boxes):
            for row in box.about:
                found.setdefault(row, []).append(box_id(drawn.id, k))
    return found


def tones(report: Report) -> dict[str, int]:
    """Backend -> number of its colour, for the backends that have delegates."""
    return {
        name: k
        for k, name in enumerate(dict.fromkeys(row.backend for row in report.delegates))
    }


def method_pictures(
    report: Report,
    method: str,
    prefix: str,
    found: OperatorVerification | None = None,
    links: Links | None = None,
    profile: ProgramProfile | None = None,
) -> MethodPictures | None:
    """The pictures of one method, with ids that begin with ``prefix``; None if there is
    no program to draw.

    ``profile`` colours the operators by their times; without it ``found`` does by their
    errors.
    """
    if method not in report.origin.programs:
        return None
    heat: Heat = Errors(found) if profile is None else Times(profile)
    return _MethodDrawing(report, method, prefix, heat, links or Links()).pictures()


class _MethodDrawing:
    """The shared facts of the pictures of one method: delegates, refusals and errors."""

    def __init__(
        self, report: Report, method: str, prefix: str, heat: Heat, links: Links
    ) -> None:
        self.origin = report.origin
        self.heat = heat
        self.links = links
        self.method = method
        self.prefix = prefix
        self.tones = tones(report)
        self.labels = Labels(report.origin.notation(method))
        rows = {(row.method, row.name): row for row in report.delegates}
        mine = [
            d
            for d in self.origin.delegates
            if d.method == method and (method, d.name) in rows
        ]
        self.delegates = [(rows[method, d.name], d) for d in mine]
        self.numbers = {id(d.module): k for k, (_, d) in enumerate(self.delegates)}
        self.graphs: list[Drawn] = []
        self.causes: dict[int, list[str]] = {}
        for row_id, cause in links.causes.items():
            for handle in dict.fromkeys(cause.handles):
                self.causes.setdefault(handle, []).append(row_id)

    def pictures(self) -> MethodPictures:
        program = self.origin.programs[self.method]
        hidden = constant_placeholders(program)
        names = _output_names(program.graph_signature.output_specs)
        whole = self.draw(
            f"method {self.method}",
            program.graph_module,
            hidden,
            names,
            dict(placeholders(program)),
        )
        rough = overview(whole)
        first = (
            Drawn.of(f"overview of method {self.method}", rough, f"{self.prefix}o")
            if rough
            else None
        )
        inside = {
            row.name: self._inside(row, info, self.id(k))
            for k, (row, info) in enumerate(self.delegates)
        }
        return MethodPictures(self.graphs, inside, first)

    def _inside(self, row: DelegateRow, info: DelegateInfo, id: str) -> Drawn:
        picture = _inside(row, info.nodes, self)
        return Drawn.of(f"inside of {row.name}", picture, id)

    def about(self, node: Node, where: str) -> tuple[str, ...]:
        """The rows of the page that tell about an operator of the host, or a cast at
        the border of a delegate.
        """
        causes = self.causes.get(node.meta.get("debug_handle", 0), ())
        causes = (
            causes
            if causes and is_operator(node) and "boundary" not in node.meta
            else ()
        )
        return (*causes, *filter(None, [self.links.values.get((where, node.name))]))

    def id(self, delegate: int) -> str:
        """Return the id of a delegate's element on the page."""
        return f"{self.prefix}d{delegate}"

    def draw(
        self,
        title: str,
        root: GraphModule,
        hidden: Iterable[Node] = (),
        names: Sequence[str] = (),
        specs: Mapping[Node, Any] | None = None,
        path: str = "",
    ) -> Picture:
        """Draw a graph, then the graphs of its control flow; return the first picture.

        ``path`` leads to a subgraph.
        """
        place = len(self.graphs)
        name = f"{self.prefix}g{place}"
        # its subgraphs come later in the list
        self.graphs.append(Drawn(title, Picture((), ()), name))
        picture = _Host(self, root, set(hidden), specs, path).picture(names)
        self.graphs[place] = Drawn.of(title, picture, name)
        return picture


class _Graph:
    """Boxes and wires of one graph while it is read."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.boxes: list[Box] = []
        self.box_of: dict[Node, int] = {}
        self.uses: dict[Node, dict[int, None]] = {}

    def add(self, box: Box, *makes: Node) -> int:
        self.boxes.append(box)
        self.box_of.update(dict.fromkeys(makes, len(self.boxes) - 1))
        return len(self.boxes) - 1

    def unpack(self, node: Node) -> bool:
        """Whether ``node`` takes one of several results; then it is no box, but a value
        of the box that made them.
        """
        maker = unpacked(node)
        if maker not in self.box_of:
            return False
        self.box_of[node] = self.box_of[maker]
        return True

    def connect(self, values: Iterable[Node], user: int) -> None:
        for value in values:
            if value in self.box_of and self.box_of[value] != user:
                self.uses.setdefault(value, {})[user] = None

    def to_picture(self) -> Picture:
        wires = [
            Wire(self.box_of[v], tuple(users), partial(self.label, v))
            for v, users in self.uses.items()
        ]
        return Picture(self.boxes, wires)

    def label(self, value: Node) -> str:
        return self.labels.value(value)

    def more(self, node: Node, where: str, heat: Heat) -> Iterator[str]:
        """Yield the lines below the name in an operator's box.

        These are the type of its result, and its error or its time.
        """
        yield self.labels.value(node, named=False)
        yield from heat.shown(where, node.name)

    def border(self, kind: str, title: str, node: Node) -> Box:
        """The box of an input or output of the graph."""
        shown = self.labels.value(node, named=False)
        return Box(
            (title, shown),
            lambda: (title, self.labels.value(node)),
            "border",
            owner=kind,
        )


class _Host(_Graph):
    """A graph that the host runs.

    ``specs``: signature of the method's own graph; None for a subgraph.
    """

    def __init__(
        self,
        method: _MethodDrawing,
        root: GraphModule,
        hidden: set[Node],
        specs: Mapping[Node, Any] | None,
        path: str,
    ) -> None:
        super().__init__(method.labels)
        self.path = path
        self.where = f"host, in {path}" if path else "host"
        self.method = method
        self.root = root
        self.hidden = hidden
        self.specs = specs or {}
        self.is_subgraph = specs is None
        self.rows: dict[Node, DelegateRow] = {}
        self.firsts: dict[Any, Node] = {}
        self.host = set(host_calls(root.graph.nodes))

    def picture(self, names: Sequence[str]) -> Picture:
        for node in self.root.graph.nodes:
            if node.op == "placeholder" and node not in self.hidden:
                target = getattr(self.specs.get(node), "target", None)
                holds = f"buffer {target}" if target else node.name
                self.add(self.border("input", f"input {holds}", node), node)
            elif node.op == "call_function":
                self._call(node)
            elif node.op == "output":
                self._outputs(node, names)
        return self.to_picture()

    def label(self, value: Node) -> str:
        """With the name that a delegate's output has in the report."""
        call, index = (*value.args, None, None)[:2]
        row = self.rows.get(call) if isinstance(call, Node) else None
        of = (
            f", output {row.outputs[index].name} of {row.name}"
            if row and isinstance(index, int)
            else ""
        )
        return self.labels.value(value) + of

    def _call(self, node: Node) -> None:
        if self.unpack(node):
            return
        if node.target is CALL_DELEGATE:
            box = self._delegate(node)
        elif node in self.host:
            box = self._operator(node)
        else:
            title = f"cast of {node.all_input_nodes[0].name}"
            shown = (title, self.labels.value(node))
            box = Box(
                shown,
                kind="border",
                owner="cast",
                about=self.method.about(node, self.where),
            )
        self.connect(node.all_input_nodes, self.add(box, node))

    def _delegate(self, node: Node) -> Box:
        module = _fetch(self.root, node.args[0])
        method = self.method
        number = method.numbers.get(id(module))
        if number is None:
            return Box((node.name, "delegate"), (node.name,), owner="delegate")
        row = method.delegates[number][0]
        self.rows[node] = row
        name = row.name.removeprefix(f"{self.path}.")
        link = method.id(number)
        box = _delegate_box(row, name, method.tones[row.backend], link)
        return replace(
            box,
            heat=method.heat.heat(row.name),
            about=(link,),
            more=partial(method.heat.shown, row.name, ""),
        )

    def _operator(self, node: Node) -> Box:
        method = self.method
        first_body = ""
        for owner in node.all_input_nodes:
            if owner.op != "get_attr":
                continue
            module = _fetch(self.root, owner)
            if not isinstance(module, GraphModule):
                continue
            first_body = first_body or f"{method.prefix}g{len(method.graphs)}"
            path = f"{self.path}.{owner.target}" if self.path else str(owner.target)
            method.draw(f"{path}, a body of {node.name}", module, path=path)
        return Box(
            (stem(operator_name(node)),),
            partial(self._tooltip, node),
            marked=self._is_refused(node),
            link=first_body,
            owner=self._owner(node),
            heat=method.heat.heat(self.where, node.name),
            about=method.about(node, self.where),
            more=partial(self.more, node, self.where, method.heat),
        )

    def _owner(self, node: Node) -> str:
        """Return the kind under which a call counts.

        With it, pictures and tables count the same number of operators on the host.
        """
        if not is_operator(node):
            return "size computation"
        whole = node.meta.get(LEFT)
        if whole is None or self.firsts.setdefault(whole, node) is node:
            return "host operator"
        return "further call"  # of an operator that the host decomposes

    def _is_refused(self, node: Node) -> bool:
        if self.is_subgraph:
            return bool(self._refusals(node))
        return is_operator(node) and bool(self.method.origin.backends)

    def _refusals(self, node: Node) -> list[tuple[str, str]]:
        """Who refused an operator of the host, and why: every backend; of a subgraph's
        none may have been asked.
        """
        if not is_operator(node):
            return []
        origin = self.method.origin
        refusals = refused_by(
            node, origin.reasons.get(self.method.method, {}), origin.backends
        )
        return (
            [r for r in refusals if r[1] != NOT_TAGGED]
            if self.is_subgraph
            else refusals
        )

    def _tooltip(self, node: Node) -> Iterator[str]:
        yield from self.labels.call(node, self.hidden)
        yield from (
            f"refused by {who}: {self.labels.notation.text(why)}"
            for who, why in self._refusals(node)
        )
        yield from self.method.heat.lines(self.where, node.name)

    def _outputs(self, node: Node, names: Sequence[str]) -> None:
        values = (
            node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
        )
        for k, value in enumerate(values):
            if isinstance(value, Node):
                name = names[k] if k < len(names) else f"output_{k}"
                self.connect([value], self.add(self.border("output", name, value)))


def _inside(
    row: DelegateRow, operators: Sequence[Node], method: _MethodDrawing
) -> Picture:
    """The operators of a delegate between its inputs and its outputs."""
    nodes = [n for op in operators for n in (op, *(u for u in op.users if unpacked(u)))]
    labels = method.labels
    heat = method.heat
    graph = _Graph(labels)
    mine = set(nodes)
    names = {a.name for a in row.inputs}
    around = dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in mine)
    for node in (n for n in around if n.name in names):
        graph.add(graph.border("input", f"input {node.name}", node), node)
    hidden = {n for n in around if n.name not in names}

    def tooltip(node: Node) -> tuple[str, ...]:
        return (*labels.call(node, hidden), *heat.lines(row.name, node.name))

    for node in nodes:
        if not graph.unpack(node):
            box = Box(
                (stem(operator_name(node)),),
                partial(tooltip, node),
                "backend",
                method.tones[row.backend],
                heat=heat.heat(row.name, node.name),
                about=tuple(
                    filter(None, [method.links.values.get((row.name, node.name))])
                ),
                more=partial(graph.more, node, row.name, heat),
            )
            graph.connect(node.all_input_nodes, graph.add(box, node))
    leaving = {a.name for a in row.outputs}
    for node in (n for n in nodes if n.name in leaving):
        graph.connect(
            [node], graph.add(graph.border("output", f"output {node.name}", node))
        )
    return graph.to_picture()


def _delegate_box(row: DelegateRow, name: str, tone: int, link: str) -> Box:
    """``name``: the part of the delegate's that the title of the picture does not say."""
    kinds = most_frequent(row.operators)
    listed = [f"{n} x {stem(op)}" for op, n in kinds[:_LISTED]]
    listed += [f"and {len(kinds) - _LISTED} more kinds"] if len(kinds) > _LISTED else []
    size = f"{pluralize(row.operator_count, 'operator')}, {format_size(row.bytes)}"
    tooltip = (f"{row.name}: {row.backend} ({row.producer})", size, *row.details())
    shown = (name, row.backend, size, *listed)
    return Box(
        shown, tooltip, "backend", tone, link=link, owner=f"{row.backend} delegate"
    )


def _output_names(specs: Iterable[Any]) -> list[str]:
    """Return ``output_0`` and so on, in the numbering of ``verify``.

    Outputs that are stored, not returned, have the name of their place.
    """
    numbers = count()
    return [
        f"new value of {s.target}" if s.target else f"output_{next(numbers)}"
        for s in specs
    ]


def _fetch(root: GraphModule, node: Any) -> LoweredBackendModule | GraphModule | None:
    """The module that a ``get_attr`` node names."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    held: Any = root
    for part in str(node.target).split("."):
        held = getattr(held, part, None)
    return held if isinstance(held, (LoweredBackendModule, GraphModule)) else None

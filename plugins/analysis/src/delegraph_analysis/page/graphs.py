"""Make the pictures of a lowered program.

These are the host's graph with its delegates, the graphs of branches and loop bodies,
and the inside of each delegate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

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
"""The most kinds of operators that the box of a delegate lists."""


@dataclass(frozen=True)
class Drawn:
    """A picture of a method, of a branch or loop body, or of the inside of a delegate.

    ``id``: the id of its element on the page. ``note`` names the parts that were left
    out to make it small enough.
    """

    title: str
    picture: Picture
    id: str
    note: str = ""

    @staticmethod
    def of(title: str, picture: Picture, id: str) -> Drawn:
        """Return the picture, condensed if it is large."""
        small, note = condense(picture)
        return Drawn(title, small, id, note)


@dataclass(frozen=True)
class MethodPictures:
    """The pictures of a method.

    ``graphs``: the method's own graph, then those of branches and loop bodies.
    ``delegates``: name of a delegate -> its inside. ``overview`` joins the host's boxes
    between delegates; None if that would not be smaller.
    """

    graphs: list[Drawn]
    delegates: dict[str, Drawn]
    overview: Drawn | None = None


@dataclass(frozen=True)
class Links:
    """Rows of the page's tables to which boxes of pictures link.

    ``causes``: id of a row -> its cause of refusals. ``values``: (place, node) of a value
    that was compared with eager -> id of its row.
    """

    causes: Mapping[str, Cause] = field(default_factory=dict)
    values: Mapping[tuple[str, str], str] = field(default_factory=dict)


def boxes_about(pictures: Iterable[Drawn]) -> dict[str, list[str]]:
    """Return id of a row -> ids of the boxes that link to it."""
    found: dict[str, list[str]] = {}
    for drawn in pictures:
        for k, box in enumerate(drawn.picture.boxes):
            for row in box.about:
                found.setdefault(row, []).append(box_id(drawn.id, k))
    return found


def tones(report: Report) -> dict[str, int]:
    """Return backend -> number of its colour, for the backends that have delegates."""
    backends = dict.fromkeys(row.backend for row in report.delegates)
    return {name: number for number, name in enumerate(backends)}


def method_pictures(
    report: Report,
    method: str,
    prefix: str,
    found: OperatorVerification | None = None,
    links: Links | None = None,
    profile: ProgramProfile | None = None,
) -> MethodPictures | None:
    """Return the pictures of one method; None if the report has no program of it.

    Ids begin with ``prefix``. Operators are coloured by their times in ``profile``, or
    without it by their errors in ``found``.
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
        rows = {row.name: row for row in report.delegates if row.method == method}
        self.delegates: list[_Delegate] = []
        for info in self.origin.delegates:
            if info.method == method and info.name in rows:
                self.delegates.append(_Delegate(rows[info.name], info))
        self.numbers = {
            id(delegate.info.module): k for k, delegate in enumerate(self.delegates)
        }
        """``id`` of a delegate's module -> its position in ``delegates``."""
        self.graphs: list[Drawn] = []
        self.causes: dict[int, list[str]] = {}
        """Debug handle -> ids of the rows of its causes."""
        for row_id, cause in links.causes.items():
            for handle in dict.fromkeys(cause.handles):
                self.causes.setdefault(handle, []).append(row_id)

    def pictures(self) -> MethodPictures:
        """Draw the method's graph, the graphs in it, and the inside of delegates."""
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
        drawn_overview = None
        joined = overview(whole)
        if joined is not None:
            title = f"overview of method {self.method}"
            drawn_overview = Drawn.of(title, joined, f"{self.prefix}o")
        insides = {}
        for k, (row, info) in enumerate(self.delegates):
            picture = _inside(row, info.nodes, self)
            insides[row.name] = Drawn.of(f"inside of {row.name}", picture, self.id(k))
        return MethodPictures(self.graphs, insides, drawn_overview)

    def about(self, node: Node, where: str) -> tuple[str, ...]:
        """Return the ids of the page's rows about a node.

        ``where``: the place that runs it, see ``Part``. The rows are those of the causes
        of its refusals, and of its value.
        """
        rows: list[str] = []
        # a cast at the border of a delegate was not refused
        if is_operator(node) and "boundary" not in node.meta:
            rows += self.causes.get(node.meta.get("debug_handle", 0), ())
        value = self.links.values.get((where, node.name))
        if value:
            rows.append(value)
        return tuple(rows)

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
        """Draw a graph, and the graphs of branches and loop bodies in it.

        ``hidden``: placeholders that are not drawn. ``names``: the names of outputs.
        ``specs`` and ``path``: see ``_Host``. Returns the picture of the graph itself;
        all of them are added to ``graphs``.
        """
        place = len(self.graphs)
        name = f"{self.prefix}g{place}"
        # keep its place: drawing appends the graphs in it
        self.graphs.append(Drawn(title, Picture((), ()), name))
        picture = _Host(self, root, set(hidden), specs, path).picture(names)
        self.graphs[place] = Drawn.of(title, picture, name)
        return picture


class _Delegate(NamedTuple):
    """A delegate: its row in the report, and its nodes."""

    row: DelegateRow
    info: DelegateInfo


class _Graph:
    """Boxes and wires of one graph while it is read. Boxes are numbered from 0."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.boxes: list[Box] = []
        self.box_of: dict[Node, int] = {}
        """Node -> the box that makes its value."""
        self.uses: dict[Node, dict[int, None]] = {}
        """Node -> the boxes that use its value."""

    def add(self, box: Box, node: Node | None = None) -> int:
        """Add the box of a node, or of an output; return its number."""
        number = len(self.boxes)
        self.boxes.append(box)
        if node is not None:
            self.box_of[node] = number
        return number

    def unpack(self, node: Node) -> bool:
        """Return whether ``node`` unpacks one of several results, as ``getitem`` does.

        Such a node has no box: its value is one of the box that made the results.
        """
        maker = unpacked(node)
        if maker not in self.box_of:
            return False
        self.box_of[node] = self.box_of[maker]
        return True

    def connect(self, values: Iterable[Node], user: int) -> None:
        """Add wires from ``values`` to the box that uses them."""
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
        """Return the box of an input or output of the graph."""
        shown = self.labels.value(node, named=False)
        return Box(
            (title, shown),
            lambda: (title, self.labels.value(node)),
            "border",
            owner=kind,
        )


class _Host(_Graph):
    """A graph that the host runs.

    ``specs``: the input specs of the method's own graph; None for a branch or loop body.
    ``path``: the attributes that lead to a branch or loop body; "" for the method.
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
        """Decomposed operator -> the first of its calls; see ``_owner``."""
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
        """Return the label of a value.

        The output of a delegate also has the name that it has in the report.
        """
        label = self.labels.value(value)
        if len(value.args) < 2:
            return label
        call, index = value.args[:2]
        row = self.rows.get(call) if isinstance(call, Node) else None
        if row is None or not isinstance(index, int):
            return label
        return f"{label}, output {row.outputs[index].name} of {row.name}"

    def _call(self, node: Node) -> None:
        """Add the box of a call, and the wires to it."""
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
        """Return the box of a call of a delegate."""
        module = _fetch(self.root, node.args[0])
        method = self.method
        number = method.numbers.get(id(module))
        if number is None:
            return Box((node.name, "delegate"), (node.name,), owner="delegate")
        row = method.delegates[number].row
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
        """Return the box of an operator, and draw its branches or loop bodies."""
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
        """Return the noun under which a call counts in joined boxes.

        Of an operator that the host decomposes into several calls, only the first is a
        "host operator". So pictures and tables count the same number of them.
        """
        if not is_operator(node):
            return "size computation"
        whole = node.meta.get(LEFT)
        if whole is None or self.firsts.setdefault(whole, node) is node:
            return "host operator"
        return "further call"

    def _is_refused(self, node: Node) -> bool:
        if self.is_subgraph:
            return bool(self._refusals(node))
        return is_operator(node) and bool(self.method.origin.backends)

    def _refusals(self, node: Node) -> list[tuple[str, str]]:
        """Return the backends that refused an operator of the host, with reasons.

        In a branch or loop body, a backend may not have checked the operator at all:
        then it is left out.
        """
        if not is_operator(node):
            return []
        origin = self.method.origin
        refusals = refused_by(
            node, origin.reasons.get(self.method.method, {}), origin.backends
        )
        if self.is_subgraph:
            return [refusal for refusal in refusals if refusal[1] != NOT_TAGGED]
        return refusals

    def _tooltip(self, node: Node) -> Iterator[str]:
        yield from self.labels.call(node, self.hidden)
        yield from (
            f"refused by {who}: {self.labels.notation.text(why)}"
            for who, why in self._refusals(node)
        )
        yield from self.method.heat.lines(self.where, node.name)

    def _outputs(self, node: Node, names: Sequence[str]) -> None:
        values = node.args[0]
        if not isinstance(values, (list, tuple)):
            values = [values]
        for k, value in enumerate(values):
            if isinstance(value, Node):
                name = names[k] if k < len(names) else f"output_{k}"
                self.connect([value], self.add(self.border("output", name, value)))


def _inside(
    row: DelegateRow, operators: Sequence[Node], method: _MethodDrawing
) -> Picture:
    """Draw the operators of a delegate between its inputs and its outputs."""
    nodes: list[Node] = []
    for operator in operators:
        nodes.append(operator)
        nodes += [user for user in operator.users if unpacked(user)]
    labels = method.labels
    heat = method.heat
    graph = _Graph(labels)
    inside = set(nodes)
    input_names = {argument.name for argument in row.inputs}
    constants: set[Node] = set()
    for node in nodes:
        for operand in node.all_input_nodes:
            if operand in inside or operand in graph.box_of:
                continue
            if operand.name in input_names:
                box = graph.border("input", f"input {operand.name}", operand)
                graph.add(box, operand)
            else:
                constants.add(operand)

    def tooltip(node: Node) -> tuple[str, ...]:
        return (*labels.call(node, constants), *heat.lines(row.name, node.name))

    for node in nodes:
        if graph.unpack(node):
            continue
        value_row = method.links.values.get((row.name, node.name))
        box = Box(
            (stem(operator_name(node)),),
            partial(tooltip, node),
            "backend",
            method.tones[row.backend],
            heat=heat.heat(row.name, node.name),
            about=(value_row,) if value_row else (),
            more=partial(graph.more, node, row.name, heat),
        )
        graph.connect(node.all_input_nodes, graph.add(box, node))
    output_names = {argument.name for argument in row.outputs}
    for node in nodes:
        if node.name in output_names:
            box = graph.border("output", f"output {node.name}", node)
            graph.connect([node], graph.add(box))
    return graph.to_picture()


def _delegate_box(row: DelegateRow, name: str, tone: int, link: str) -> Box:
    """Return the box of a delegate.

    ``name``: the delegate's name without the path in the title of the picture.
    """
    kinds = most_frequent(row.operators)
    listed = [f"{n} x {stem(op)}" for op, n in kinds[:_LISTED]]
    if len(kinds) > _LISTED:
        listed.append(f"and {len(kinds) - _LISTED} more kinds")
    size = f"{pluralize(row.operator_count, 'operator')}, {format_size(row.bytes)}"
    tooltip = (f"{row.name}: {row.backend} ({row.producer})", size, *row.details())
    shown = (name, row.backend, size, *listed)
    return Box(
        shown, tooltip, "backend", tone, link=link, owner=f"{row.backend} delegate"
    )


def _output_names(specs: Iterable[Any]) -> list[str]:
    """Return ``output_0`` and so on, in the numbering of ``verify``.

    New values of buffers and inputs are not returned, and so have no number.
    """
    names = []
    returned = 0
    for spec in specs:
        if spec.target:
            names.append(f"new value of {spec.target}")
        else:
            names.append(f"output_{returned}")
            returned += 1
    return names


def _fetch(root: GraphModule, node: Any) -> LoweredBackendModule | GraphModule | None:
    """Return the delegate or graph that a ``get_attr`` node names; None for others."""
    if not isinstance(node, Node) or node.op != "get_attr":
        return None
    held: Any = root
    for part in str(node.target).split("."):
        held = getattr(held, part, None)
    return held if isinstance(held, (LoweredBackendModule, GraphModule)) else None

"""Equal layers are lowered once: rules and passes run on the first, the second and the last; the others are copies.

The passes go over the operators in order, and what they know when a layer begins is how they left the layer before. So
where the operators of the last layer are those of the second, with its own constants and with operands from the layer
before, the passes knew the same before both, and do the same for all layers in between. This is compared operator by
operator. Where it does not hold, or where something read elements of the second layer's constants that other layers
have not, the program is lowered whole. See docs/decisions/0033.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, repeat
from operator import itemgetter
from typing import Any

from torch.export import ExportedProgram
from torch.fx import Node

from .ir.graph import Array, Deferred, Folded, Graph, Literal, Operator, Value
from .lowering import Constants, Layers, Origin, Tosa, constants_of_layers, layers_of, lower_program
from .passes import NOT_SEEN, Layouts, Sources, sources_of
from .passes.dce import STATEFUL
from .spec import TosaSpec


def with_copied_layers(
    program: ExportedProgram, spec: TosaSpec, passes: Callable[[Graph, Layouts], Graph]
) -> Graph | None:
    """The graph of ``program`` after ``passes``, with copies of its second layer; None if it has no equal layers.

    Raises as ``lower_program``, and Unsupported where layers cannot be told to be equal.
    """
    # passes for devices join operators at any distance
    layers = None if spec.devices else layers_of(program)
    constants = constants_of_layers(program, layers) if layers else None
    if layers is None or constants is None:
        return None
    left_out = layers.left_out()
    with _watched(constants.own[1]) as read:
        graph = lower_program(program, Tosa(spec), constants.value, left_out)
        # what the second layer and the last pass on
        passed = [(left_out.value(layers.layer(1)[k]), left_out.value(layers.layer(-1)[k])) for k in layers.passed]
        layouts = dict.fromkeys((value for pair in passed for value in pair), NOT_SEEN)
        graph = passes(graph, layouts)
    if not all(_has_equal_elements(value, constants.own[1:]) for value in read):
        return None
    # where they alternate, what follows would read another layout than that of the three layers
    if any(layouts[mine] is NOT_SEEN or layouts[mine] != layouts[its] for mine, its in passed):
        return None
    return _Copies(layers, left_out.stand_ins, constants, graph).graph()


def _has_equal_elements(value: Value, own: Iterable[dict[Value, Value]]) -> bool:
    """Whether the constants that layers have in the place of ``value`` have its elements."""
    wanted = _elements(value)
    return all(_elements(constants[value]) == wanted for constants in own)


def _elements(value: Value) -> bytes:
    return value.constant.materialize().tobytes()  # type: ignore[union-attr]


@contextmanager
def _watched(constants: Iterable[Value]) -> Iterator[list[Value]]:
    """A list to which each of ``constants`` is added whose elements are read."""
    read: list[Value] = []

    def watch(value: Value, load: Callable[[], Array]) -> Callable[[], Array]:
        def watched() -> Array:
            read.append(value)
            return load()

        return watched

    loads = [
        (value.constant, value.constant.load, value) for value in constants if isinstance(value.constant, Deferred)
    ]
    for constant, load, value in loads:
        constant.load = watch(value, load)
    try:
        yield read
    finally:
        for constant, load, _ in loads:
            constant.load = load


class _Copies:
    """Puts copies of the second layer into the graph of a program of which most layers were left out."""

    def __init__(self, layers: Layers, left_out: Collection[Node], constants: Constants, graph: Graph) -> None:
        named = {value.name: value for value in graph.inputs}
        self._own = [
            {**own, **{named[name]: named[its] for name, its in inputs.items()}}
            for own, inputs in zip(constants.own, constants.inputs, strict=True)
        ]
        """For each layer, the constants and inputs that only the second one reads -> those of this layer."""
        self._layers, self._graph = layers, graph
        self._last = layers.times - 1
        self._places = {n.name: (k, i) for k in (0, 1, self._last) for i, n in enumerate(self._calls_of(k))}
        """Name of a call -> the number of its layer, and position there."""
        kept = [node for node in layers.returned if node not in left_out]
        self._returned = dict(zip(kept, graph.outputs, strict=True))
        """What the program returns, without the layers that were left out -> its value."""

    def _calls_of(self, number: int) -> list[Node]:
        """The calls of a layer, and those before all layers that only this one reads."""
        return [*self._layers.layer(number), *self._layers.before[number]]

    def graph(self) -> Graph | None:
        """The whole graph; None if the operators of the second layer are not those of the last layer."""
        operators = self._graph.operators
        tags = [self._layers_of(operator) for operator in operators]
        merged = {op for op, tag in zip(operators, tags, strict=True) if self._last in tag and self._is_merged(op)}
        runs = self._runs(tags, merged)
        if runs is None:
            return None
        second = [operator for pending, _, _ in runs for operator in pending]
        last = [operator for _, begin, end in runs for operator in operators[begin:end]]
        results = {v: (i, j) for i, operator in enumerate(second) for j, v in enumerate(operator.outputs)}
        passed = self._passed(second, last, results)
        of_first = self._of_first(tags, {*second, *last}, merged)
        if passed is None or of_first is None or not self._returns_alike(results, last, of_first):
            return None
        plan = _Plan(second, passed, self._own[1], [self._places_of(operator.source) for operator in second])
        # of each layer, its origins, its results, and its operators
        origins = [[Origin(node) for node in self._calls_of(number)] for number in range(1, self._last)]
        values, made = [[], list(results)], list[list[Operator]]()
        for number in range(2, self._last):
            copies, new = plan.copy(values[-1], self._own[number], origins[number - 2], origins[number - 1])
            values.append(new)
            made.append(copies)
        for operator in merged:
            # equal operators of all layers that were merged to one
            operator.source = self._source_of_all(operator.source, origins)
        of_last_copy = dict(zip(results, values[-1], strict=True))
        begin = runs[0][1]
        kept = {*second, *merged}
        for operator, tag in zip(operators[begin:], tags[begin:], strict=True):
            if operator in kept:
                continue
            if not results.keys().isdisjoint(operator.inputs):
                operator.inputs = tuple([of_last_copy.get(v, v) for v in operator.inputs])
            if 1 in tag:
                operator.source = _source_at(self._places_of(operator.source), [*origins[-2], *origins[-1]])
        whole, done, copied = [], 0, 0
        for pending, begin, _ in runs:
            # of each layer, the copies of this run, before that of the last layer
            part = slice(copied, copied + len(pending))
            whole += operators[done:begin]
            for copies in made:
                whole += copies[part]
            done, copied = begin, part.stop
        return Graph(self._graph.inputs, self._outputs(list(results), values), [*whole, *operators[done:]])

    def _runs(self, tags: list[set[int]], merged: set[Operator]) -> list[tuple[list[Operator], int, int]] | None:
        """The operators of the last layer as rows (operators of the second layer, begin, end).

        Each row of operators has as many of the second layer somewhere before it, which are in no row yet. What is left
        of the last layer behind all rows belongs to what follows. None if there are no rows, or if a merged operator
        comes after the first one.
        """
        operators = self._graph.operators
        runs: list[tuple[list[Operator], int, int]] = []
        pending: list[Operator] = []
        place = 0
        while place < len(operators):
            operator, tag = operators[place], tags[place]
            if operator in merged:
                if runs:
                    return None
            elif self._last in tag and not (runs and not pending):
                end = place + len(pending)
                row = operators[place:end]
                if not pending or len(row) != len(pending) or not merged.isdisjoint(row) or not all(tags[place:end]):
                    return None
                runs.append((pending, place, end))
                pending, place = [], end - 1
            elif 1 in tag:
                pending.append(operator)
            place += 1
        return runs if runs and not pending else None

    def _is_merged(self, operator: Operator) -> bool:
        """Whether ``operator`` stands for equal ones of all layers."""
        places: dict[int, set[int]] = {0: set(), 1: set(), self._last: set()}
        for origin in sources_of(operator.source):
            if origin.node in self._places:
                number, place = self._places[origin.node]
                places[number].add(place)
        # of the first layer, what comes before all layers is not known
        inside = {place for place in places[1] if place < self._layers.period}
        return bool(places[1]) and places[1] == places[self._last] and places[0] == inside

    def _of_first(self, tags: list[set[int]], others: set[Operator], merged: set[Operator]) -> set[Value] | None:
        """The results of operators of the first layer alone; None if what comes after the last layer reads one of them.

        It would read them two layers back. ``others`` are the operators of the second layer and the last one.
        """
        values: set[Value] = set()
        inside = {node.name for node in self._layers.layer(1)}
        is_behind = False
        for operator, tag in zip(self._graph.operators, tags, strict=True):
            is_reading = not values.isdisjoint(operator.inputs)
            is_behind |= operator in others and any(o.node in inside for o in sources_of(operator.source))
            if is_reading and is_behind and operator not in others and tag != {0}:
                return None
            if 0 in tag and operator not in merged and self._last not in tag and (is_reading or not is_behind):
                values.update(operator.outputs)
        return values

    def _returns_alike(self, results: dict[Value, tuple[int, int]], last: list[Operator], of_first: set[Value]) -> bool:
        """Whether what is returned of the second layer is a result of its operators, and of the last layer the same."""
        second, names = (
            self._layers.layer(1),
            {v.name for v in self._graph.inputs} | {n.name for n in self._returned},
        )
        counterparts = dict(zip(second, self._layers.layer(self._last), strict=True))
        for node, value in self._returned.items():
            if node not in counterparts:
                number, _ = self._places.get(node.name, (None, 0))
                if value in results or (number != 0 and value in of_first):
                    return False
            elif value not in results or value.name != node.name:
                return False
            else:
                i, j = results[value]
                if self._returned[counterparts[node]] is not last[i].outputs[j]:
                    return False
        return len(self._returned) == len(self._graph.outputs) and len(names) == len(self._graph.inputs) + len(
            self._returned
        )

    def _outputs(self, results: list[Value], values: list[list[Value]]) -> list[Value]:
        """All that the program returns; ``values`` are for each layer what ``results`` are of the second."""
        if len(self._returned) == len(self._layers.returned):
            return self._graph.outputs
        first, period = self._layers.start, self._layers.period
        places = {n: divmod(k, period) for k, n in enumerate(self._layers.calls[first : first + len(values) * period])}
        second = self._layers.layer(1)
        outputs = []
        for node in self._layers.returned:
            value = self._returned.get(node)
            if value is None:
                number, position = places[node]
                value = values[number][results.index(self._returned[second[position]])]
                value.name = node.name
            outputs.append(value)
        return outputs

    def _layers_of(self, operator: Operator) -> set[int]:
        """The numbers of the layers from which ``operator`` comes."""
        places = [self._places[o.node] for o in sources_of(operator.source) if o.node in self._places]
        return {number for number, _ in places}

    def _passed(
        self, second: list[Operator], last: list[Operator], results: dict[Value, tuple[int, int]]
    ) -> dict[Value, Value] | None:
        """What the second layer reads of the layer before -> what the next layer reads there, a result of the second.

        None if the last layer has other operators than the second.
        """
        passed: dict[Value, Value] = {}
        for mine, its in zip(second, last, strict=True):
            if not _are_alike(mine, its) or self._marks(mine, 1) != self._marks(its, self._last):
                return None
            for x, y in zip(mine.inputs, its.inputs, strict=True):
                if x in results:
                    i, j = results[x]
                    is_same = y is last[i].outputs[j]
                elif x is y or x.constant is not None or x in self._own[1]:
                    is_same = self._is_moved(x, y)
                else:
                    is_same = y in results and passed.setdefault(x, y) is y
                if not is_same:
                    return None
        return passed if len(set(passed.values())) == len(passed) else None

    def _is_moved(self, mine: Value, its: Value) -> bool:
        """Whether a constant of the last layer is that of the second, or the last layer's own in its place."""
        moved = self._own[-1].get(mine)
        if mine is its or moved is not None:
            return moved is None if mine is its else moved is its
        a, b = mine.constant, its.constant
        if mine.type != its.type:
            return False
        if isinstance(a, Folded) and isinstance(b, Folded):
            pairs = zip(a.operator.inputs, b.operator.inputs, strict=False)
            is_alike = a.index == b.index and _are_alike(a.operator, b.operator)
            return is_alike and all(self._is_moved(x, y) for x, y in pairs)
        if not isinstance(a, Literal) or not isinstance(b, Literal):
            return False
        return a.array.dtype == b.array.dtype and a.array.tobytes() == b.array.tobytes()

    def _marks(self, operator: Operator, number: int) -> list[Any]:
        """Where ``operator`` of layer ``number`` comes from: positions in this layer and the one before, or origins."""
        before = 0 if number == 1 else 1
        marks: list[Any] = []
        for origin in sources_of(operator.source):
            layer, position = self._places.get(origin.node, (None, 0))
            marks.append((layer == number, position) if layer in (before, number) else origin)
        return marks

    def _places_of(self, source: Any) -> list[int | Origin | None]:
        """Where ``source`` of an operator of the second layer comes from.

        Positions among the calls of the layer before and its own, or what all layers have.
        """
        places: list[int | Origin | None] = []
        for origin in sources_of(source) or [None]:
            layer, position = self._places.get(origin.node, (self._last, 0)) if origin else (self._last, 0)
            is_moved = layer in (0, 1)
            places.append(position + layer * len(self._calls_of(1)) if is_moved else origin)
        return places

    def _source_of_all(self, source: Sources, origins: list[list[Origin]]) -> Sources:
        """``source`` of an operator that all layers share, with those that were left out."""
        of_second = [o for o in source if self._places.get(o.node, (None,))[0] == 1]
        place = source.index(of_second[-1]) + 1
        positions = [self._places[o.node][1] for o in of_second]
        more = [of_layer[position] for of_layer in origins[1:] for position in positions]
        return Sources([*source[:place], *more, *source[place:]])


def _source_at(places: list[int | Origin | None], origins: list[Origin]) -> Any:
    """The source of a copy; ``origins`` are those of the calls of the layer before and of its own."""
    sources = [origins[place] if isinstance(place, int) else place for place in places]
    return Sources(sources) if len(sources) > 1 else sources[0]


class _Plan:
    """How operators are copied, those of a layer at once, and what can be by functions that take all of them.

    Values have numbers, so that a copy picks its operands from a list: what is passed from the layer before, the
    layer's own constants, what all layers share, what is folded from the layer's own constants, and the results.
    """

    def __init__(
        self,
        operators: list[Operator],
        passed: dict[Value, Value],
        own: dict[Value, Value],
        sources: list[list[int | Origin | None]],
    ) -> None:
        results = [v for operator in operators for v in operator.outputs]
        folded = _Folded([*passed, *own])
        for operator in operators:
            folded.add_operands(operator)
        known = {*passed, *own, *folded.results, *results}
        read = (v for operator in (*folded.operators, *operators) for v in operator.inputs)
        self._own, self._shared = list(own), list(dict.fromkeys(v for v in read if v not in known))
        made = set(folded.operators)
        assert not any(isinstance(v.constant, Folded) and v.constant.operator in made for v in self._shared), (
            "a constant is a result of the operator that it is folded from"
        )
        values = [*passed, *own, *self._shared, *folded.results, *results]
        number_of = {v: number for number, v in enumerate(values)}
        position = {v: k for k, v in enumerate(results)}
        self._passed = [position[y] for y in passed.values()]
        """Of each value that is passed from the layer before, its position among the results of that layer."""
        self._folded = [(op, _picked([number_of[v] for v in op.inputs])) for op in folded.operators]
        self._classes = [type(operator) for operator in operators]
        self._types = [v.type for v in results]
        self._ranges = [(k, v.range) for k, v in enumerate(results) if v.range is not None]
        self._producers = [k for k, operator in enumerate(operators) for _ in operator.outputs]
        ends = [0, *accumulate(len(operator.outputs) for operator in operators)]
        self._outputs = [*map(slice, ends, ends[1:])]
        self._operands = [_picked([number_of[v] for v in operator.inputs]) for operator in operators]
        self._attributes = [
            (k, name, value)
            for k, operator in enumerate(operators)
            for name, value in vars(operator).items()
            if name not in ("inputs", "outputs", "source")
        ]
        self._sources = sources

    def copy(
        self, before: list[Value], own: dict[Value, Value], origins_before: list[Origin], origins: list[Origin]
    ) -> tuple[list[Operator], list[Value]]:
        """The operators of a layer, and their results.

        ``before`` are the results of the layer before, ``own`` the constants of this layer, and the origins are those
        of the calls of both.
        """
        values = [before[k] for k in self._passed]
        values += [own[v] for v in self._own]
        values += self._shared
        for operator, operands in self._folded:
            values += _folded(operator, operands(values))
        # not by __init__: there are thousands
        operators: list[Operator] = [*map(object.__new__, self._classes)]
        producers = map(operators.__getitem__, self._producers)
        results = [*map(Value, self._types, repeat(None), repeat(""), producers)]
        for k, range_ in self._ranges:
            results[k].range = range_
        values += results
        all_outputs = map(tuple, map(results.__getitem__, self._outputs))
        both = origins_before + origins
        for new, operands, outputs, places in zip(operators, self._operands, all_outputs, self._sources, strict=True):
            new.inputs, new.outputs, new.source = operands(values), outputs, _source_at(places, both)
        for k, name, value in self._attributes:
            setattr(operators[k], name, value)
        return operators, results


class _Folded:
    """Operators on constants alone whose results are other ones for each layer."""

    def __init__(self, changing: Iterable[Value]) -> None:
        """``changing`` are values that each layer has for itself."""
        self._changing = set(changing)
        self.operators: list[Operator] = []
        self.results: list[Value] = []

    def add_operands(self, operator: Operator) -> None:
        """Add what the constants among the operands of ``operator`` are folded from."""
        for value in operator.inputs:
            if isinstance(value.constant, Folded) and value not in self._changing:
                self._add(value.constant.operator)

    def _add(self, operator: Operator) -> None:
        self.add_operands(operator)
        if not self._changing.isdisjoint(operator.inputs):
            self.operators.append(operator)
            self.results += operator.outputs
            self._changing.update(operator.outputs)


def _folded(operator: Operator, operands: tuple[Value, ...]) -> tuple[Value, ...]:
    """The results of ``operator`` on other constants, as constants."""
    new = object.__new__(type(operator))
    new.__dict__.update(operator.__dict__, inputs=operands)
    new.outputs = tuple([Value(v.type, Folded(new, i), v.name) for i, v in enumerate(operator.outputs)])
    for value, old in zip(new.outputs, operator.outputs, strict=True):
        value.range = old.range
    return new.outputs


def _picked(numbers: list[int]) -> Callable[[list[Value]], tuple[Value, ...]]:
    """A function that picks the elements with these numbers from a list, as a tuple."""
    if len(numbers) > 1:
        return itemgetter(*numbers)
    return lambda values: tuple([values[number] for number in numbers])


def _are_alike(mine: Operator, its: Operator) -> bool:
    """Whether two operators have the same class, attributes, and types of operands and results."""
    if type(mine) is not type(its) or mine.has_graphs or type(mine) in STATEFUL or len(mine.inputs) != len(its.inputs):
        return False
    # as text: 0.0 and -0.0 are equal numbers
    if repr(mine.attribute_values()) != repr(its.attribute_values()):
        return False
    types = [v.type for v in (*mine.inputs, *mine.outputs)]
    return types == [v.type for v in (*its.inputs, *its.outputs)]

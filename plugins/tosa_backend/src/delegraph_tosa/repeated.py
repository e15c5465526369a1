"""Equal layers are lowered once: rules and passes run on the first, the second and the last; the others are copies.

The passes go over the operators in order, and what they know when a layer begins is how they left the layer before. So
where the operators of the last layer are those of the second, with its own constants and with operands from the layer
before, the passes knew the same before both, and do the same for all layers in between. This is compared operator by
operator. Where it does not hold, or where something read the elements of the second layer's constants, the program is
lowered whole. See docs/decisions/0033.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.export import ExportedProgram

from .ir.graph import Array, Deferred, Folded, Graph, Literal, Operator, Value
from .lowering import Constants, Layers, Origin, Tosa, constants_of_layers, layers_of, lower_program
from .passes import Sources, sources_of
from .passes.dce import STATEFUL
from .spec import TosaSpec


def with_copied_layers(program: ExportedProgram, spec: TosaSpec, passes: Callable[[Graph], Graph]) -> Graph | None:
    """The graph of ``program`` after ``passes``, with copies of its second layer; None if it has no equal layers.

    Raises as ``lower_program``.
    """
    # passes for devices join operators at any distance
    layers = None if spec.devices else layers_of(program)
    constants = constants_of_layers(program, layers) if layers else None
    if layers is None or constants is None:
        return None
    with _watched(constants.own[1]) as was_read:
        graph = passes(lower_program(program, Tosa(spec), constants.value, layers.left_out()))
    return None if was_read else _Copies(layers, constants, graph).graph()


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

    def __init__(self, layers: Layers, constants: Constants, graph: Graph) -> None:
        named = {value.name: value for value in graph.inputs}
        self._own = [
            {**own, **{named[name]: named[its] for name, its in inputs.items()}}
            for own, inputs in zip(constants.own, constants.inputs, strict=True)
        ]
        """For each layer, the constants and inputs that only the second one reads -> those of this layer."""
        self._layers, self._graph = layers, graph
        lowered = (0, 1, layers.times - 1)
        self._places = {n.name: (k, i) for k in lowered for i, n in enumerate(layers.layer(k))}
        """Name of a call -> the number of its layer, and its position there."""
        left_out = layers.left_out()
        kept = [node for node in layers.returned if node not in left_out]
        self._returned = dict(zip(kept, graph.outputs, strict=True))
        """What the program returns, without the layers that were left out -> its value."""
        self._origins: dict[tuple[int, int], Origin] = {}
        """Number of a layer, and position there -> the origin of this call, if an operator has it."""

    def graph(self) -> Graph | None:
        """The whole graph; None if the operators of the second layer are not those of the last one."""
        operators, last_number = self._graph.operators, self._layers.times - 1
        tags = [self._layers_of(operator) for operator in operators]
        runs = _runs([1 in tag and last_number not in tag for tag in tags])
        second = [operator for begin, end in runs for operator in operators[begin:end]]
        last = [operator for begin, end in runs for operator in operators[end : 2 * end - begin]]
        if not second or len(second) != len(last) or len({*second, *last}) != 2 * len(second):
            return None
        results = {v: (i, j) for i, operator in enumerate(second) for j, v in enumerate(operator.outputs)}
        passed = self._passed(second, last, results)
        of_first = self._of_first(tags, runs[0][1], {*second, *last})
        if passed is None or of_first is None or not self._returns_alike(results, last, of_first):
            return None
        values: list[dict[Value, Value]] = [{}, {v: v for v in results}]
        made: list[list[Operator]] = []
        plan = _Plan(second, passed, self._own[1])
        for number in range(2, last_number):
            copies: list[Operator] = []
            sources = [self._source(operator.source, number) for operator in second]
            values.append(plan.copy(values[-1], self._own[number], sources, copies))
            made.append(copies)
        for place, (operator, tag) in enumerate(zip(operators, tags, strict=True)):
            if {1, last_number} <= tag and place < runs[0][0]:
                # equal operators of all layers that were merged to one
                operator.source = self._source_of_all(operator.source)
        own = set(second)
        for operator in operators[runs[0][1] :]:
            if operator in own:
                continue
            if not results.keys().isdisjoint(operator.inputs):
                operator.inputs = tuple([values[-1][v] if v in results else v for v in operator.inputs])
            if 1 in self._layers_of(operator):
                operator.source = self._source(operator.source, last_number - 1)
        whole, done, of_second = [], 0, 0
        for begin, end in runs:
            # of each layer, the copies of this run
            part = slice(of_second, of_second + end - begin)
            whole += operators[done:end]
            whole += [operator for copies in made for operator in copies[part]]
            done, of_second = end, part.stop
        return Graph(self._graph.inputs, self._outputs(values), [*whole, *operators[done:]])

    def _of_first(self, tags: list[set[int]], end: int, others: set[Operator]) -> set[Value] | None:
        """The results of operators of the first layer alone; None if what comes after the last layer reads one of them.

        It would read them two layers back. ``end`` is where the second layer ends, ``others`` are the operators of the
        second and the last one.
        """
        last_number = self._layers.times - 1
        values: set[Value] = set()
        for place, (operator, tag) in enumerate(zip(self._graph.operators, tags, strict=True)):
            is_reading = not values.isdisjoint(operator.inputs)
            if is_reading and place >= end and operator not in others and tag != {0}:
                return None
            if 0 in tag and last_number not in tag and (is_reading or place < end):
                values.update(operator.outputs)
        return values

    def _returns_alike(self, results: dict[Value, tuple[int, int]], last: list[Operator], of_first: set[Value]) -> bool:
        """Whether what is returned of the second layer is a result of its operators, and of the last layer the same."""
        second, names = self._layers.layer(1), {v.name for v in self._graph.inputs} | {n.name for n in self._returned}
        counterparts = dict(zip(second, self._layers.layer(self._layers.times - 1), strict=True))
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

    def _outputs(self, values: list[dict[Value, Value]]) -> list[Value]:
        """All that the program returns; ``values`` are those of the second layer -> those of each layer."""
        first, period = self._layers.start, self._layers.period
        places = {n: divmod(k, period) for k, n in enumerate(self._layers.calls[first : first + len(values) * period])}
        outputs = []
        for node in self._layers.returned:
            value = self._returned.get(node)
            if value is None:
                number, position = places[node]
                value = values[number][self._returned[self._layers.layer(1)[position]]]
                value.name = node.name
            outputs.append(value)
        return outputs

    def _layers_of(self, operator: Operator) -> set[int]:
        """The numbers of the layers from which ``operator`` comes."""
        return {self._places[o.node][0] for o in sources_of(operator.source) if o.node in self._places}

    def _passed(
        self, second: list[Operator], last: list[Operator], results: dict[Value, tuple[int, int]]
    ) -> dict[Value, Value] | None:
        """What the second layer reads of the one before -> what the next layer reads there, a result of the second.

        None if the last layer has other operators than the second.
        """
        passed: dict[Value, Value] = {}
        for mine, its in zip(second, last, strict=True):
            if not _are_alike(mine, its) or self._marks(mine, 1) != self._marks(its, self._layers.times - 1):
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

    def _source(self, source: Any, number: int) -> Any:
        """``source`` of an operator of the second layer, for that of layer ``number``."""
        if isinstance(source, Sources):
            return Sources([self._source(origin, number) for origin in source])
        layer, position = self._places.get(source.node, (None, 0)) if source else (None, 0)
        if layer not in (0, 1):
            return source
        key = number - 1 + layer, position
        origin = self._origins.get(key)
        if origin is None:
            origin = self._origins[key] = source.moved(self._layers.layer(key[0])[position])
        return origin

    def _source_of_all(self, source: Sources) -> Sources:
        """``source`` of an operator that all layers share, with those that were left out."""
        of_second = [o for o in source if self._places.get(o.node, (None,))[0] == 1]
        place = source.index(of_second[-1]) + 1
        more = [self._source(o, number) for number in range(2, self._layers.times - 1) for o in of_second]
        return Sources([*source[:place], *more, *source[place:]])


class _Plan:
    """How operators are copied: values are numbered, so that a copy takes its operands from a list."""

    def __init__(self, operators: list[Operator], passed: dict[Value, Value], own: dict[Value, Value]) -> None:
        self._passed, self._own = list(passed.items()), list(own)
        self._values: list[Value] = [*passed, *own]
        """What operands are before copies are made, in the order of their numbers."""
        self._numbers = {v: number for number, v in enumerate(self._values)}
        self._changing = set(self._values)
        self._steps: list[tuple[Operator, dict[str, Any], list[int], list[int], bool]] = []
        """Operator, its attributes, numbers of operands and results, and whether it is folded."""
        for operator in operators:
            for value in operator.inputs:
                self._add_constant(value)
            self._add(operator, is_folded=False)

    def _number(self, value: Value) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._values)
            self._values.append(value)
        return number

    def _add(self, operator: Operator, is_folded: bool) -> None:
        attributes = {k: v for k, v in operator.__dict__.items() if k not in ("inputs", "outputs", "source")}
        numbers = [[self._number(v) for v in values] for values in (operator.inputs, operator.outputs)]
        self._changing.update(operator.outputs)
        self._steps.append((operator, attributes, *numbers, is_folded))  # type: ignore[arg-type]

    def _add_constant(self, value: Value) -> None:
        """Let copies compute ``value`` anew if it is folded from the second layer's own constants."""
        if isinstance(value.constant, Folded) and value not in self._changing:
            operator = value.constant.operator
            for operand in operator.inputs:
                self._add_constant(operand)
            if not self._changing.isdisjoint(operator.inputs):
                self._add(operator, is_folded=True)

    def copy(
        self, before: dict[Value, Value], own: dict[Value, Value], sources: Iterable[Any], made: list[Operator]
    ) -> dict[Value, Value]:
        """Append the operators of a layer to ``made``; returns value of the second layer -> that of this one.

        ``before`` is what the layer before returned, ``own`` are the constants of this layer, and ``sources`` those of
        its operators.
        """
        values = self._values.copy()
        values[: len(self._passed)] = [before[y] for _, y in self._passed]
        values[len(self._passed) : len(self._passed) + len(self._own)] = [own[v] for v in self._own]
        source = iter(sources)
        for old, attributes, operands, results, is_folded in self._steps:
            # not by __init__, which would check all attributes again
            new = type(old).__new__(type(old))
            new.__dict__.update(attributes)
            new.inputs = tuple([values[n] for n in operands])
            if is_folded:
                new.source = old.source
                new.outputs = tuple([Value(v.type, Folded(new, i), v.name) for i, v in enumerate(old.outputs)])
            else:
                new.source = next(source)
                new.outputs = tuple([Value(v.type, None, "", new) for v in old.outputs])
                made.append(new)
            for number, value in zip(results, new.outputs, strict=True):
                value.range = self._values[number].range
                values[number] = value
        return dict(zip(self._values, values, strict=True))


def _runs(inside: list[bool]) -> list[tuple[int, int]]:
    """The begin and the end of each row of places that are ``inside``."""
    places = [
        place for place, is_inside in enumerate([*inside, False]) if is_inside != (place > 0 and inside[place - 1])
    ]
    return list(zip(places[::2], places[1::2], strict=True))


def _are_alike(mine: Operator, its: Operator) -> bool:
    """Whether two operators have the same class, attributes, and types of operands and results."""
    if type(mine) is not type(its) or mine.has_graphs or type(mine) in STATEFUL or len(mine.inputs) != len(its.inputs):
        return False
    # as text: 0.0 and -0.0 are equal numbers
    if repr(mine.attribute_values()) != repr(its.attribute_values()):
        return False
    types = [v.type for v in (*mine.inputs, *mine.outputs)]
    return types == [v.type for v in (*its.inputs, *its.outputs)]

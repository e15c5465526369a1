"""Illegal graphs, one for each rule of ``ir.rulebook`` and each operator that can break
it: legal ones, changed.

``BREAKS`` says for each rule how an operator is changed so that it breaks that rule and
no other one. The changes are made of every legal one-operator graph of TOSA 1.0 and,
for operators that it lacks, of 1.1; of each operator and rule the first sample is kept.
``graphs`` has the rules of whole graphs, of control flow and of variables.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from delegraph_tosa.ir.graph import Graph, Operator
from delegraph_tosa.ir.types import DType
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.spec.operator_table import rows
from delegraph_tosa.spec.target import extensions

from ..samples import Sample, samples
from ..structured import MOVED, structured
from .blocks import OF_TENSORS
from .graphs import graphs
from .table import BREAKS, NEVER_WRITTEN, UNWRITABLE

EVERYTHING = {
    version: TosaSpec(
        version, frozenset({"FP", "INT"}), frozenset(extensions(version)) - {"dynamic"}
    )
    for version in ((1, 0), (1, 1))
}
"""All profiles and extensions, but ``dynamic``, which drops the rules of compile-time
constants.
"""


class Broken(NamedTuple):
    """A graph that breaks ``rule`` for ``spec``. ``writable`` is False where no file
    can say what is wrong.
    """

    rule: str
    operator: str
    label: str
    graph: Graph
    spec: TosaSpec
    writable: bool = True


@lru_cache(maxsize=1)
def broken() -> tuple[Broken, ...]:
    """Every rule for every operator that can break it."""
    found: dict[tuple[str, str], list[Broken]] = {}
    for version in EVERYTHING:
        for sample in samples(version=version):
            operator = sample.graph.operators[0]
            if version == (1, 0) or operator.name not in rows():
                for case in _of_sample(sample, operator, EVERYTHING[version]):
                    found.setdefault((case.rule, case.operator), []).append(case)
    first = (case for cases in found.values() for case in _first(cases))
    return (*first, *_of_blocks(), *_of_graphs(), *_of_structures(), *_too_early())


def _of_blocks() -> Iterator[Broken]:
    """Operators of 1.0 on block-scaled tensors, which 1.1 has: one sample of each
    operator.
    """
    done: set[str] = set()
    for sample in samples(version=(1, 1)):
        operator = sample.graph.operators[0]
        if "bs32" in sample.label and operator.name not in done:
            for rule, change in OF_TENSORS.items():
                for number, graph in enumerate(change(operator)):
                    done.add(operator.name)
                    yield Broken(
                        rule,
                        operator.name,
                        f"{sample.label}: {rule} {number}",
                        graph,
                        EVERYTHING[(1, 1)],
                    )


def _first(cases: list[Broken]) -> list[Broken]:
    """What was made of the first sample."""
    return [
        case
        for case in cases
        if case.label.partition(":")[0] == cases[0].label.partition(":")[0]
    ]


def _of_sample(sample: Sample, operator: Operator, spec: TosaSpec) -> Iterator[Broken]:
    for rule, change in BREAKS.items():
        for number, graph in enumerate(change(operator)):
            label = f"{sample.label}: {rule} {number}"
            yield Broken(
                rule, operator.name, label, graph, spec, _writable(rule, operator.name)
            )
    yield from _for_less(sample, operator, spec.version)


def _of_graphs() -> Iterator[Broken]:
    for number, (rule, operator, graph) in enumerate(graphs()):
        label = f"{operator or 'graph'}: {rule} {number}"
        yield Broken(
            rule, operator, label, graph, EVERYTHING[(1, 0)], _writable(rule, operator)
        )


def _of_structures() -> Iterator[Broken]:
    """Control flow and variables for a target without the extension."""
    for sample in structured():
        spec = TosaSpec(
            extensions=EVERYTHING[(1, 0)].extensions - {"controlflow", "variable"}
        )
        name = sample.label.partition("(")[0]
        if name != "CUSTOM":
            yield Broken(
                "profile", name, f"{sample.label}: for {spec}", sample.graph, spec
            )


def _writable(rule: str, operator: str) -> bool:
    return rule not in NEVER_WRITTEN and (rule, operator) not in UNWRITABLE


def _too_early() -> Iterator[Broken]:
    """Operators of 1.1 for a target of 1.0, where it has their element types."""
    for sample in samples(version=(1, 1)):
        name = sample.graph.operators[0].name
        graph = sample.graph
        values = (*graph.inputs, *graph.outputs, *graph.constants())
        if name not in rows() and all(
            v.dtype in MOVED for v in values if v.dtype is not DType.SHAPE
        ):
            yield Broken(
                "operator-version",
                name,
                f"{sample.label}: operator-version",
                graph,
                EVERYTHING[(1, 0)],
            )


def _for_less(
    sample: Sample, operator: Operator, version: tuple[int, int]
) -> Iterator[Broken]:
    """The same graph for a target without what it needs."""
    for profile in ("FP", "INT"):
        spec = TosaSpec(version, frozenset({profile}))
        if not any(names <= spec.names for names in allowed_by(version)[sample.label]):
            yield Broken(
                "profile",
                operator.name,
                f"{sample.label}: for {spec}",
                sample.graph,
                spec,
            )


@lru_cache(maxsize=2)
def allowed_by(version: tuple[int, int]) -> dict[str, set[frozenset[str]]]:
    """Label -> what allows its element types; several rows may have the same ones."""
    found: dict[str, set[frozenset[str]]] = {}
    for sample in samples(version=version):
        found.setdefault(sample.label, set()).update(sample.allowed_by)
    return found

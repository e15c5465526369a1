"""The legality sweep: our verdict and tosa-opt's on one-operator files, for each row of
the table of TOSA 1.0 and each target of the profiles and one extension, and for element
types that no row has.

``python -m plugins.tosa_backend.tests.support.legality RESULTS.json`` runs all of it
(three minutes on two cores) and writes figures and differences.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import NamedTuple

from delegraph.errors import DelegraphError
from delegraph_tosa.ir.graph import Graph, Illegal
from delegraph_tosa.ir.types import DType
from delegraph_tosa.serialize import TosaFile
from delegraph_tosa.spec import TosaSpec, required
from delegraph_tosa.spec.operator_table import Mode, rows
from delegraph_tosa.spec.target import extensions
from delegraph_tosa.validate import violations

from . import reference_tools
from .samples import WITH_BODIES_OR_STATE, graph_of, samples
from .structured import branch, custom, kept, read_only, structured, written

VERSION = (1, 0)
PROFILES = (frozenset({"FP"}), frozenset({"INT"}), frozenset({"FP", "INT"}))
TYPES = [t for t in DType if t < DType.SHAPE or t in (DType.FP8E4M3, DType.FP8E5M2)]
"""Element types of TOSA 1.0."""
EVERYTHING = TosaSpec(VERSION, PROFILES[2], frozenset(extensions()))


class Question(NamedTuple):
    """One file and one target."""

    label: str
    graph: Graph
    spec: TosaSpec


def targets() -> list[TosaSpec]:
    """Each choice of profiles, alone and with each extension that goes with it."""
    known = extensions()
    chosen = [
        TosaSpec(VERSION, profiles, frozenset(extra))
        for profiles in PROFILES
        for extra in [(), *((e,) for e in sorted(known) if known[e] & profiles)]
    ]
    return [*chosen, EVERYTHING]


def of_the_table() -> Iterator[Question]:
    """Every row for every target."""
    for sample in samples():
        for spec in targets():
            yield Question(sample.label, sample.graph, spec)


def of_structures() -> Iterator[Question]:
    """Control flow, variables and custom operators for every target, and for the one
    that has what they need.
    """
    for sample in structured():
        needs = required(sample.graph)
        for spec in [*targets(), TosaSpec(VERSION, needs.profiles, needs.extensions)]:
            yield Question(sample.label, sample.graph, spec)


def beside_the_table() -> Iterator[Question]:
    """Every operator with all of its element types equal, where no row says so, for the
    target that has everything.
    """
    for name, row in rows().items():
        if name in WITH_BODIES_OR_STATE | {"CUSTOM", "CONST", "CONST_SHAPE"}:
            continue
        for dtype in TYPES:
            types = {variable: dtype for variable in row.modes[0].types}
            if not any(mode.types == types for mode in row.modes) and (
                graph := _graph(name, types)
            ):
                yield Question(f"{name}({dtype} only)", graph, EVERYTHING)
    yield from _structures_beside_the_table()


def _structures_beside_the_table() -> Iterator[Question]:
    """Variables, conditions and custom operators of each element type."""
    for dtype in TYPES:
        graphs = {
            "VARIABLE_READ": read_only(dtype),
            "VARIABLE_WRITE": written(dtype),
            "COND_IF": branch(kept(DType.FP32), kept(DType.FP32), flag=dtype),
            "CUSTOM": custom(dtype),
        }
        yield from (
            Question(f"{name}({dtype} only)", graph, EVERYTHING)
            for name, graph in graphs.items()
        )


def _graph(name: str, types: dict[str, DType]) -> Graph | None:
    try:
        return graph_of(rows()[name], Mode(types, ()))
    except (Illegal, KeyError):
        return None  # refused before there is a graph that could be written


def verdicts(question: Question) -> tuple[str, str] | None:
    """Our reason of refusal and tosa-opt's, empty where a file is accepted; None if the
    file cannot be written.
    """
    ours = "; ".join(str(v) for v in violations(question.graph, question.spec))
    try:
        file = TosaFile(question.graph, question.spec).join()
    except DelegraphError:
        return None
    try:
        reference_tools.check_strictly_for_spec(file, question.spec)
    except reference_tools.Refused as refusal:
        errors = [line for line in str(refusal).splitlines() if "error:" in line]
        return ours, (errors or [str(refusal)])[0].rpartition("error: ")[2][:300]
    return ours, ""


def differences(
    questions: list[Question], threads: int = 2
) -> tuple[int, list[dict[str, str]]]:
    """How many were judged, and those where one accepts what the other refuses."""
    with ThreadPool(threads) as pool:
        answers = pool.map(verdicts, questions)
    judged = [(q, a) for q, a in zip(questions, answers, strict=True) if a is not None]
    found = [
        {"label": q.label, "target": str(q.spec), "ours": ours, "tosa-opt": theirs}
        for q, (ours, theirs) in judged
        if bool(ours) != bool(theirs)
    ]
    return len(judged), found


def everything() -> list[Question]:
    """The whole sweep."""
    return [*of_the_table(), *of_structures(), *beside_the_table()]


def main(results: Path) -> None:
    judged, found = differences(everything())
    results.write_text(
        json.dumps({"judged": judged, "differences": found}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

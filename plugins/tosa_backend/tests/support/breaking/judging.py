"""What the outside judges say of the illegal graphs.

``python -m breaking RESULTS.json`` (in plugins/tosa_backend/tests, about two minutes)
asks about all of them and writes for each rule how many graphs there are, how many a
file can say, and who refuses those.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.pool import ThreadPool
from typing import Any, NamedTuple

from delegraph_tosa.ir.types import DType
from delegraph_tosa.serialize import TosaFile

from .. import reference_tools
from ..samples import random_inputs
from . import Broken

NOT_RUN = {"level-tensor-size", "level-kernel", "level-stride", "size-known"}
"""Rules whose graphs take gigabytes or minutes to run, or inputs of no shape; tosa-opt
judges them.
"""


class Opinion(NamedTuple):
    """Who refuses a file. The reference model is asked about files of TOSA 1.0."""

    tosa_opt: bool
    reference_model: bool


def opinions(cases: Sequence[Broken]) -> list[Opinion]:
    """Of each case, all of which must be writable."""
    files = [TosaFile(case.graph, case.spec).join() for case in cases]
    with ThreadPool(2) as pool:
        legality = pool.starmap(_refused, zip(cases, files, strict=True))
    run = [i for i, case in enumerate(cases) if _runs(case)]
    outputs = reference_tools.run_or_refusal_of_each(
        [(files[i], random_inputs(cases[i].graph)) for i in run], timeout=900
    )
    model = {i: isinstance(found, str) for i, found in zip(run, outputs, strict=True)}
    return [Opinion(refused, model.get(i, False)) for i, refused in enumerate(legality)]


def _runs(case: Broken) -> bool:
    """Whether the reference model could run the graph if it were legal: it has no
    custom operators.
    """
    values = (*case.graph.inputs, *case.graph.outputs)
    # by its Python binding
    handed_over = not any(v.dtype in (DType.INT4, DType.INT48) for v in values)
    computed = all(op.name != "CUSTOM" for op in case.graph.operators)
    return (
        case.spec.version == (1, 0)
        and case.rule not in NOT_RUN
        and handed_over
        and computed
    )


def _refused(case: Broken, file: bytes) -> bool:
    try:
        reference_tools.check_strictly_for_spec(file, case.spec)
    except reference_tools.Refused:
        return True
    return False


def record(cases: Sequence[Broken]) -> dict[str, dict[str, Any]]:
    """Rule -> figures, and the operators that neither judge refuses."""
    written = [case for case in cases if case.writable]
    found: dict[str, dict[str, Any]] = {}
    for case in cases:
        empty = {
            "graphs": 0,
            "operators": 0,
            "files": 0,
            "tosa-opt": 0,
            "reference model": 0,
            "neither": [],
        }
        found.setdefault(case.rule, empty)["graphs"] += 1
    for rule, entry in found.items():
        entry["operators"] = len({case.operator for case in cases if case.rule == rule})
    for case, opinion in zip(written, opinions(written), strict=True):
        entry = found[case.rule]
        entry["files"] += 1
        entry["tosa-opt"] += opinion.tosa_opt
        entry["reference model"] += opinion.reference_model
        if not any(opinion) and case.operator not in entry["neither"]:
            entry["neither"].append(case.operator)
    return found

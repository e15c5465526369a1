"""The validator against tosa-opt and the reference model: it refuses what either
refuses and accepts what both accept.

The full corpus is slow; every eleventh graph of it runs by default.
"""

from __future__ import annotations

from multiprocessing.pool import ThreadPool

import pytest
from delegraph.errors import DelegraphError, FormatError
from delegraph_tosa.serialize import TosaFile, read
from delegraph_tosa.spec import TosaSpec
from delegraph_tosa.validate import violations

from .support import reference_tools
from .support.corpus import Illegal, illegal, legal
from .support.samples import random_inputs

CORPUS = [
    *(Illegal(f"{s.label}: unchanged", s.graph, s.allowed_by[0]) for s in legal()),
    *illegal(),
]
NO_INPUTS = ("int4", "int48")
"""Element types that the reference model's Python binding does not take."""


UNPREDICTABLE = "TOSA_UNPREDICTABLE"
"""A legal file whose result depends on the inputs: an index that is there twice."""


def spec_of(names: frozenset[str]) -> TosaSpec:
    """The target with all extensions that goes with what the legal graph needs."""
    extensions = frozenset(n[4:].lower() for n in names if n.startswith("EXT-"))
    return TosaSpec(extensions=extensions)


def our_refusal(case: Illegal) -> str:
    return "; ".join(str(v) for v in violations(case.graph, spec_of(case.allowed_by)))


def write_or_none(case: Illegal) -> bytes | None:
    try:
        return TosaFile(case.graph, spec_of(case.allowed_by)).join()
    except (DelegraphError, ValueError, OverflowError, IndexError):
        # nobody could write it
        return None


def tosa_opt(job: tuple[bytes, TosaSpec]) -> str:
    try:
        reference_tools.check_strictly_for_spec(*job)
    except reference_tools.Refused as refusal:
        return str(refusal)[:300]
    return ""


def reference(files: list[tuple[Illegal, bytes]]) -> list[str]:
    """Refusals of the reference model; empty for what it accepts and what it cannot be
    asked.
    """
    jobs = [(file, random_inputs(case.graph)) for case, file in files]
    answers = reference_tools.run_or_refusal_of_each(jobs, timeout=600)
    return [
        (
            answer
            if isinstance(answer, str) and answer != UNPREDICTABLE and can_run(case)
            else ""
        )
        for (case, _), answer in zip(files, answers, strict=True)
    ]


def can_run(case: Illegal) -> bool:
    """Whether the reference model can run the file: it takes no int4 and int48, and has
    no custom operator at all.
    """
    return not any(t in case.label for t in NO_INPUTS) and not case.label.startswith(
        "CUSTOM"
    )


def disagreements(cases: list[Illegal]) -> tuple[int, int, list[str]]:
    """(accepted by all, refused by one, what is not as it should be)."""
    files = [
        (case, file) for case in cases if (file := write_or_none(case)) is not None
    ]
    with ThreadPool(2) as pool:
        legality = pool.map(
            tosa_opt, [(file, spec_of(case.allowed_by)) for case, file in files]
        )
    wrong = []
    accepted = 0
    refused = 0
    for (case, file), opt, model in zip(files, legality, reference(files), strict=True):
        found = our_refusal(case) or unreadable(file)
        accepted += not (opt or model)
        refused += bool(opt or model)
        judged = opt or model or can_run(case)
        if judged and bool(found) != bool(opt or model):
            wrong.append(
                f"{case.label}\n  ours: {found}\n  tosa-opt: {opt}\n  reference model:"
                f" {model}"
            )
    return accepted, refused, wrong


def unreadable(file: bytes) -> str:
    try:
        read(file)
    except FormatError as problem:
        return str(problem)
    return ""


def test_a_sample_of_the_corpus():
    accepted, refused, wrong = disagreements(CORPUS[::11])
    assert accepted > 30
    assert refused > 30
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_validation_agrees_with_the_tools_on_the_corpus():
    accepted, refused, wrong = disagreements(CORPUS)
    assert accepted >= 300
    assert refused >= 300
    assert not wrong, "\n".join(wrong)

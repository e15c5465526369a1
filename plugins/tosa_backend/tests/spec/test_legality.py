"""Our table of legal operators agrees with tosa-opt: on a part of a sweep by default, on
all of it with -m slow.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ..support.legality import (
    beside_the_table,
    differences,
    everything,
    of_structures,
    of_the_table,
)

RESULTS = json.loads(
    (Path(__file__).parents[1] / "support/verdicts/legality.json").read_text()
)


def test_part_of_the_sweep_agrees_with_tosa_opt():
    part = [
        *list(of_the_table())[::151],
        *list(of_structures())[::23],
        *list(beside_the_table())[::13],
    ]
    judged, found = differences(part)
    assert judged > 180
    assert found == []


def test_the_published_figures_are_of_the_whole_sweep():
    questions = len(everything())
    # a few cannot be written as a file
    assert questions - 10 < RESULTS["judged"] <= questions


@pytest.mark.slow
def test_legality_differs_from_tosa_opt_only_as_recorded():
    judged, found = differences(everything())
    assert {"judged": judged, "differences": found} == RESULTS

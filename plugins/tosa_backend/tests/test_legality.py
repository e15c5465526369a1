"""Our table of legality is tosa-opt's: a part of the sweep by default, all of it with -m slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from legality import beside_the_table, differences, of_the_table

RESULTS = json.loads(Path(__file__).with_name("legality.json").read_text())


def test_a_part_of_the_sweep():
    judged, found = differences([*list(of_the_table())[::151], *list(beside_the_table())[::13]])
    assert judged > 100
    assert found == []


def test_the_published_figures_are_of_the_whole_sweep():
    questions = len(list(of_the_table())) + len(list(beside_the_table()))
    assert questions - 10 < RESULTS["judged"] <= questions  # a few cannot be written as a file


@pytest.mark.slow
def test_the_whole_sweep():
    judged, found = differences([*of_the_table(), *beside_the_table()])
    assert {"judged": judged, "differences": found} == RESULTS

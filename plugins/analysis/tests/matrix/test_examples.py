"""The scripts of examples/ that the user guide leads to."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from delegraph_analysis.matrix.cells import cells_of
from delegraph_analysis.matrix.description import read_matrix

EXAMPLES = Path(__file__).parents[4] / "examples"
TOML = """
models = ["zoo.py:small", "zoo.py:inverse"]
backends = ["tosa", []]
settings = { runs = 2, files = [".tosa"] }
"""


def test_the_matrix_of_the_guide():
    assert len(cells_of(read_matrix(EXAMPLES / "matrix.toml"))) == 2 * 4 * 2


def run_in_folder(folder, *words):
    """A command, in which ``delegraph`` is that of a Python that has imported torch."""
    command = folder / "bin/delegraph"
    if not command.exists():
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m delegraph "$@"\n')
        command.chmod(0o700)
    environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_vendors_nightly_run(folder):
    (folder / "m.toml").write_text(TOML)
    script = EXAMPLES / "matrix_nightly.sh"
    first = run_in_folder(folder, script, "m.toml", "good", "one", 2)
    assert first.returncode == 0, first.stderr
    assert "aten.linalg_inv_ex.default" in (folder / "one/next.txt").read_text()
    rows = (folder / "good/rows.jsonl").read_text()
    assert len(rows.splitlines()) == 4
    assert (folder / "one/table.md").exists()

    zoo = (folder / "zoo.py").read_text()
    (folder / "zoo.py").write_text(
        zoo.replace("(x + 1)[0].relu()", "(x + 1)[0].inverse().relu()")
    )
    second = run_in_folder(folder, script, "m.toml", "good", "two")
    assert second.returncode == 1, second.stdout + second.stderr
    assert "worse  inverse, tosa, float: delegated" in second.stdout
    assert "<failure" in (folder / "two/worse.junit.xml").read_text()
    assert (folder / "good/rows.jsonl").read_text() == rows, "the last good night stays"


@pytest.mark.slow
def test_example_script_compares_targets_of_a_matrix(folder):
    (folder / "m.toml").write_text(TOML)
    completed = run_in_folder(
        folder, sys.executable, EXAMPLES / "matrix_comparison.py", "store", "m.toml"
    )
    assert completed.returncode == 0, completed.stderr
    assert "tosa, float: " in completed.stdout
    assert "geometric mean of 2 models" in completed.stdout
    assert (
        len(list(csv.DictReader((folder / "store/table.csv").read_text().splitlines())))
        == 4
    )
    assert [
        json.loads(line)["error"]
        for line in (folder / "store/rows.jsonl").read_text().splitlines()
    ] == [None] * 4

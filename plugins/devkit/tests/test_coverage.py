"""The table of operators of a backend, without its compiler."""

import json

import pytest
from delegraph.cli import main


def test_the_table_has_verdicts_and_reasons(installed, capsys, tmp_path):
    installed()
    page = tmp_path / "operators.md"
    arguments = ["coverage", "good", "--operator", "sin", "--operator", "cumsum"]
    assert main([*arguments, "-o", str(page)]) == 0
    lines = page.read_text().splitlines()
    heads = next(line for line in lines if line.startswith("| operator"))
    assert heads.startswith("| operator | float32 | int64 |")
    assert heads.endswith("| why not |")
    (sin,) = (line for line in lines if line.startswith("| `aten.sin.default` |"))
    assert sin.startswith("| `aten.sin.default` | yes | no |")
    (cumsum,) = (line for line in lines if line.startswith("| `aten.cumsum.default` |"))
    assert " yes " not in cumsum
    assert "[^" in cumsum
    assert any(
        line.endswith("only float32 tensors are computed")
        for line in lines
        if line.startswith("[^")
    )
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "delegraph.coverage/1"
    assert [row["operator"] for row in found["operators"] if row["taken"]] == [
        "aten.sin.default"
    ]


@pytest.mark.parametrize(
    "arguments, name",
    [(["no-such"], "no-such"), (["good", "--operator", "no_such"], "no_such")],
)
def test_unknown_names_are_an_error(arguments, name, installed, capsys):
    installed()
    assert main(["coverage", *arguments]) in (1, 2)
    assert name in capsys.readouterr().err

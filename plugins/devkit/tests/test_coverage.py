"""``delegraph coverage`` shows which operators a backend supports."""

import json

import pytest
from delegraph.cli import main

ARGUMENTS = ("coverage", "good", "--operator", "sin", "--operator", "cumsum")


@pytest.fixture
def lines(installed, tmp_path):
    """Return the lines of a page about sin and cumsum."""
    installed()
    page = tmp_path / "operators.md"
    assert main([*ARGUMENTS, "-o", str(page)]) == 0
    return page.read_text().splitlines()


def test_the_table_has_a_column_for_each_type_and_the_reason(lines):
    heading = next(line for line in lines if line.startswith("| operator"))

    assert heading.startswith("| operator | float32 | int64 |")
    assert heading.endswith("| why not |")


def test_supported_operators_have_a_verdict_for_each_type(lines):
    (sin,) = [line for line in lines if line.startswith("| `aten.sin.default` |")]

    assert sin.startswith("| `aten.sin.default` | yes | no |")


def test_unsupported_operators_have_a_footnote_with_the_reason(lines):
    (cumsum,) = [line for line in lines if line.startswith("| `aten.cumsum.default` |")]

    assert " yes " not in cumsum
    assert "[^" in cumsum
    footnotes = [line for line in lines if line.startswith("[^")]
    assert any(line.endswith("only float32 tensors are computed") for line in footnotes)


def test_json_lists_the_operators_that_are_taken(installed, capsys):
    installed()

    assert main([*ARGUMENTS, "--json"]) == 0

    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == "delegraph.coverage/1"
    taken = [row["operator"] for row in content["operators"] if row["taken"]]
    assert taken == ["aten.sin.default"]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["no-such"], "no-such"), (["good", "--operator", "no_such"], "no_such")],
)
def test_unknown_backends_and_operators_are_named(arguments, name, installed, capsys):
    installed()

    assert main(["coverage", *arguments]) in (1, 2)
    assert name in capsys.readouterr().err

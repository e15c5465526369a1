"""``verify`` counts NaN and infinities on both sides, and has one verdict per output."""

import json
import math
import re
from typing import NamedTuple

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.host import Verification, compare
from delegraph_analysis import compare as compare_backends
from delegraph_analysis import verify_ties

NAN = float("nan")
INF = float("inf")
F32 = torch.float32


def as_tensor(*values, dtype=F32):
    return torch.tensor(values, dtype=dtype)


SAMPLES = [
    # name, lowered, eager, agrees, counts of lowered and of eager: (NaN, inf, -inf)
    ("all NaN", as_tensor(NAN, NAN), as_tensor(NAN, NAN), True, (2, 0, 0), (2, 0, 0)),
    ("some NaN", as_tensor(NAN, 1), as_tensor(NAN, 1), True, (1, 0, 0), (1, 0, 0)),
    ("NaN in lowered only", as_tensor(NAN, 1), as_tensor(2, 1), False, (1, 0, 0), (0, 0, 0)),
    ("NaN in eager only", as_tensor(2, 1), as_tensor(NAN, 1), False, (0, 0, 0), (1, 0, 0)),
    ("NaN at other places", as_tensor(NAN, 1), as_tensor(1, NAN), False, (1, 0, 0), (1, 0, 0)),
    ("equal infinities", as_tensor(INF, -INF), as_tensor(INF, -INF), True, (0, 1, 1), (0, 1, 1)),
    ("infinity of other sign", as_tensor(INF, 1), as_tensor(-INF, 1), False, (0, 1, 0), (0, 0, 1)),
    ("infinity for a number", as_tensor(INF, 1), as_tensor(3e38, 1), False, (0, 1, 0), (0, 0, 0)),
    ("NaN for infinity", as_tensor(NAN, 1), as_tensor(INF, 1), False, (1, 0, 0), (0, 1, 0)),
    ("NaN beside an error", as_tensor(NAN, 2), as_tensor(NAN, 1), False, (1, 0, 0), (1, 0, 0)),
    ("no elements", as_tensor(), as_tensor(), True, (0, 0, 0), (0, 0, 0)),
    ("half", as_tensor(NAN, dtype=torch.half), as_tensor(NAN, dtype=torch.half), True, (1, 0, 0), (1, 0, 0)),
    ("double", as_tensor(1e308, dtype=torch.double), as_tensor(-1e308, dtype=torch.double), False, (0, 0, 0), (0, 0, 0)),
    ("complex NaN", torch.tensor([complex(NAN, 1)]), torch.tensor([complex(1, NAN)]), True, (1, 0, 0), (1, 0, 0)),
    ("complex inf", torch.tensor([complex(INF, 1)]), torch.tensor([complex(-INF, 1)]), False, (0, 1, 0), (0, 1, 0)),
    ("ints", torch.tensor([1, 2]), torch.tensor([1, 2]), True, (0, 0, 0), (0, 0, 0)),
    ("large ints", torch.tensor([2**53 + 1]), torch.tensor([2**53]), False, (0, 0, 0), (0, 0, 0)),
    ("uint64", torch.tensor([2**63 + 1], dtype=torch.uint64), torch.tensor([2**63], dtype=torch.uint64), False,
     (0, 0, 0), (0, 0, 0)),
    ("bools", torch.tensor([True]), torch.tensor([False]), False, (0, 0, 0), (0, 0, 0)),
    ("number", NAN, NAN, True, (1, 0, 0), (1, 0, 0)),
    ("large number", 2**60 + 1, 2**60, False, (0, 0, 0), (0, 0, 0)),
    ("number beyond int64", 2**70, 2**70, True, (0, 0, 0), (0, 0, 0)),
    ("other shape", as_tensor(NAN), as_tensor(NAN, NAN), False, (1, 0, 0), (2, 0, 0)),
    ("none", None, None, True, (0, 0, 0), (0, 0, 0)),
    ("none for a number", None, 1.0, False, (0, 0, 0), (0, 0, 0)),
]  # fmt: skip


class Sample(NamedTuple):
    """Two outputs to compare, the verdict, and counts of (NaN, inf, -inf)."""

    name: str
    lowered: object
    eager: object
    agrees: bool
    counts_of_lowered: tuple
    counts_of_eager: tuple


@pytest.mark.parametrize(
    "sample", [Sample(*row) for row in SAMPLES], ids=lambda sample: sample.name
)
def test_an_output_has_counts_and_one_verdict(sample):
    found = compare("output_0", sample.lowered, sample.eager)

    assert found.agrees() is sample.agrees
    assert tuple(found.lowered) == sample.counts_of_lowered
    assert tuple(found.eager) == sample.counts_of_eager
    assert not math.isnan(Verification((found,)).relative_error)

    content = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert content["agrees"] is sample.agrees
    assert tuple(content["lowered"].values()) == sample.counts_of_lowered
    assert tuple(content["eager"].values()) == sample.counts_of_eager

    verdict = "agrees" if sample.agrees else "differs"
    assert re.findall("agrees|differs", str(found)) == [verdict]

    names = ("NaN", "inf", "-inf")
    for count, name in zip(sample.counts_of_lowered, names, strict=True):
        if count:
            assert f"{count} {name}" in str(found)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            as_tensor(NAN, NAN),
            "2 NaN of 2 elements on both sides; agrees, but no element is finite",
        ),
        (
            as_tensor(INF, -INF),
            (
                "1 inf, 1 -inf of 2 elements on both sides; agrees, but no element is"
                " finite"
            ),
        ),
        (as_tensor(NAN, 1), "1 NaN of 2 elements on both sides; agrees"),
        (as_tensor(), "no elements; agrees"),
    ],
)
def test_outputs_without_finite_elements_are_named(values, text):
    assert str(compare("output_0", values, values)).endswith(text)


def test_a_run_without_finite_elements_is_the_worst():
    runs = [
        Verification((compare("output_0", v, v),))
        for v in (as_tensor(1, 2), as_tensor(NAN, NAN), as_tensor(3, 4))
    ]
    assert Verification.worst_of(runs).has_only_non_finite


@pytest.mark.parametrize(("tolerance", "agrees"), [(0.5, True), (1e-9, False)])
def test_the_given_tolerance_decides_the_verdict(tolerance, agrees):
    output = compare("output_0", as_tensor(1.0001), as_tensor(1))
    found = Verification((output,)).within(tolerance)

    content = found.to_json()
    assert found.agrees() is agrees
    assert content["agrees"] is agrees
    assert content["outputs"][0]["agrees"] is agrees
    if agrees:
        assert "differs" not in str(found)
    else:
        assert "differs, by more than 1e-09" in str(found)


class Root(torch.nn.Module):
    def forward(self, x):
        return torch.sqrt(x), x + 1


NEGATIVE = -torch.ones(2, 3)


def test_verify_counts_NaN_of_a_model():
    found = delegraph.lower(Root(), (NEGATIVE,), backends=["tosa"]).verify(NEGATIVE)
    assert found.agrees()
    assert found.has_only_non_finite
    assert "6 NaN of 6 elements on both sides; agrees, but no element is finite" in str(
        found
    )


def test_verify_computes_eager_once():
    calls = []

    class Changing(torch.nn.Module):
        """Exported as argmax. Later calls compute argmin."""

        def forward(self, x):
            calls.append(x)
            return x.argmax() if len(calls) == 1 else x.argmin()

    x = torch.tensor([1.0, 2.0])
    lowered = delegraph.lower(Changing(), (x,), backends=[])
    assert len(calls) == 1, "of the export"

    found = lowered.verify(x)
    assert not found.agrees()
    assert len(calls) == 2


MODEL = """
import torch
class Root(torch.nn.Module):
    def forward(self, x):
        return torch.sqrt(x), x + 1
def model():
    return Root(), (-torch.ones(2, 3),)
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


def test_lower_shows_NaN_in_each_report(model, tmp_path, capsys):
    forms = {
        suffix: tmp_path / f"report{suffix}" for suffix in (".txt", ".json", ".html")
    }
    flags = [flag for path in forms.values() for flag in ("--report", str(path))]
    assert main(["lower", model, "--host-only", "--verify", *flags]) == 0

    text = "6 NaN of 6 elements on both sides"
    assert text in capsys.readouterr().out
    assert text in forms[".txt"].read_text()
    assert text in forms[".html"].read_text()

    root, _ = json.loads(forms[".json"].read_text())["verification"]["outputs"]
    assert root["lowered"]["nan"] == root["eager"]["nan"] == 6
    assert root["agrees"]


def test_accuracy_shows_NaN(model, capsys):
    assert main(["accuracy", model, "--backend", "tosa"]) == 0
    assert "6 NaN of 6 elements on both sides" in capsys.readouterr().out


def test_compare_marks_results_that_are_not_finite():
    found = compare_backends(Root(), (NEGATIVE,), backends=["tosa"])
    assert "(not finite)" in str(found)
    assert all(
        row["only_non_finite"]
        for row in found.to_json()["candidates"]
        if row["relative_error"] is not None
    )


def test_matrix_marks_results_that_are_not_finite(model, tmp_path, capsys):
    store = str(tmp_path / "store")
    main(["matrix", model, "--backends", "tosa", "--runs", "0", "--store", store])
    assert "no finite output" in capsys.readouterr().out


TIED = """
import torch
class Tied(torch.nn.Module):
    def forward(self, x):
        return x.argmax(1)
def model():
    return Tied(), (torch.tensor([[1.0, 1.0]]),)
"""


def test_a_failed_verification_names_the_accuracy_command(
    tmp_path, capsys, monkeypatch
):
    path = tmp_path / "tied model.py"
    path.write_text(TIED)
    run_here = delegraph.LoweredProgram._run_here
    # the other of the two tied positions
    monkeypatch.setattr(
        delegraph.LoweredProgram, "_run_here", lambda *args: 1 - run_here(*args)
    )
    assert main(["lower", str(path), "--host-only", "--verify"]) == 1

    stderr = capsys.readouterr().err
    assert f"delegraph accuracy '{path}'" in stderr
    assert "--ties" in stderr

    flags = ["--backend", "tosa", "--option", "tosa.spec=TOSA-1.0+FP"]
    assert main(["lower", str(path), *flags, "--verify"]) == 1
    assert " ".join(flags) in capsys.readouterr().err


def test_verify_ties_accepts_results_that_verify_rejects(monkeypatch):
    x = torch.tensor([[1.0, 1.0, 0.0]])
    tied = lambda x: x.argmax(1)

    class Tied(torch.nn.Module):
        def forward(self, x):
            return tied(x)

    lowered = delegraph.lower(Tied(), (x,), backends=[])
    run_here = delegraph.LoweredProgram._run_here
    # the other of the two tied positions
    monkeypatch.setattr(
        delegraph.LoweredProgram, "_run_here", lambda *args: 1 - run_here(*args)
    )

    assert not lowered.verify(x).agrees()
    assert verify_ties(lowered, x).agrees()

"""Fifteen models run through the command line; hints make each a single file.

``fifteen/`` has the models. ``NAME_changed`` is a model after the change that the hint
names.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from delegraph_tosa.spec import TosaSpec

HERE = Path(__file__).parent / "fifteen"
ROOT = Path(__file__).parents[1]
SCHEMA = json.loads((ROOT / "docs/schema.json").read_text("utf-8"))
TOOLS = importlib.util.spec_from_file_location(
    "t", ROOT / "plugins/tosa_backend/tests/support/reference_tools.py"
)
reference_tools = importlib.util.module_from_spec(TOOLS)
TOOLS.loader.exec_module(reference_tools)

WHOLE = ["images.py:efficientnet", "images.py:vit"]
WHOLE += [
    f"sequences.py:{name}" for name in ("whisper", "keyword_spotter", "clip_text")
]
"""One delegate as they are."""

STATIC = "export with static sizes (without these dynamic_shapes)"
SHAPE = "TOSA-1.1+FP+INT+shape"
DYNAMIC = ["images.py:mobilenet_v2", "images.py:unet", "sequences.py:gpt2"]
"""What computes with sizes has a second way: another target."""

CAUSES = {
    "images.py:mobilenet_v2": ("self.features(x)", STATIC),
    "images.py:resnet": (
        "image.permute",
        "let it be int32 before it comes into the model",
    ),
    "images.py:unet": ("self.down(x)", STATIC),
    "images.py:yolo": ("boxes[found], scores[found]", "the best by torch.topk"),
    "images.py:diffusion": (
        "torch.randn_like(x)",
        "pass the random numbers to the model as an input",
    ),
    "sequences.py:bert": (
        "1 - attention_mask",
        '"int32_inputs": ["attention_mask=0..32767"]',
    ),
    "sequences.py:gpt2": ("torch.cat((past[0], key), 2)", STATIC),
    "sequences.py:llama": (
        "attention_mask[0].cumsum(-1)",
        '"int32_inputs": ["attention_mask=0..32767"]',
    ),
    "sequences.py:dlrm": ("ids.unbind(1)", "let ids be int32 from the start"),
    "sequences.py:time_series": (
        "wide = x.to(self.dtype)",
        "let it be torch.float32: without casts to torch.float64",
    ),
}
"""Model -> the code at which the one cause begins, and what to do about it."""

QUICK = {
    "sequences.py:keyword_spotter",
    "images.py:yolo",
    "images.py:diffusion",
    "sequences.py:bert",
    "sequences.py:dlrm",
}
"""One of each kind, which are lowered by default; all others by ``slow``."""


def unchanged(model):
    return model.removesuffix("_changed")


def each(models):
    return [
        m if unchanged(m) in QUICK else pytest.param(m, marks=pytest.mark.slow)
        for m in models
    ]


def run_matrix(store, models, *options):
    """Run the command for all models. Return its exit code, and the row and report of
    each model.
    """
    command = [sys.executable, "-m", "delegraph", "matrix", *models]
    command += ["--backends", "tosa", "--require-full", "--max-delegates", "1"]
    command += ["--files", ".tosa", "--runs", "0", "--store", str(store), "--json"]
    command += options
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    completed = subprocess.run(
        command, cwd=HERE, env=environment, capture_output=True, text=True, timeout=900
    )
    assert completed.stdout, completed.stderr
    found = json.loads(completed.stdout)
    jsonschema.validate(found, SCHEMA)
    rows = {}
    for row in found["rows"]:
        report = (store / row["measured"]["report"]).read_text()
        rows[row["model"]] = row | {"report": json.loads(report)}
    return completed.returncode, rows


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("fifteen")


@pytest.fixture(scope="module")
def models(request):
    """Return the names of the models in this run."""
    every = [*WHOLE, *CAUSES, *(f"{name}_changed" for name in CAUSES)]
    assert len(WHOLE) + len(CAUSES) == 15
    here = [
        item
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    asked = {item.callspec.params["model"] for item in here}
    return [m for m in every if m in (asked or every)]


@pytest.fixture(scope="module")
def rows(models, store):
    """Return the row of each model. The store has the .tosa files of complete
    delegates.
    """
    code, found = run_matrix(store, models)
    failed = [row["error"] for row in found.values() if row["error"] is not None]
    assert code == bool(failed), failed
    assert len(failed) == len(CAUSES.keys() & {*models}), failed
    return found


@pytest.mark.parametrize(
    "model", each([*WHOLE, *(f"{name}_changed" for name in CAUSES)])
)
def test_changed_models_are_one_legal_tosa_file(rows, store, model):
    report = rows[model]["report"]
    assert rows[model]["error"] is None
    assert not report["causes"]
    assert not report["host_operators"]
    assert len(report["delegates"]) == 1
    assert rows[model]["methods"]["forward"]["relative_error"] < 1e-5
    (file,) = rows[model]["files"]
    if model == "sequences.py:llama_changed":
        assert "it writes keys, which the host keeps" in file["error"]
        return
    reference_tools.check_strictly_for_spec(
        (store / file["path"]).read_bytes(), TosaSpec.parse("TOSA-1.0+FP+INT")
    )


@pytest.mark.parametrize("model", each(CAUSES))
def test_the_report_names_the_needed_change(rows, store, model):
    row = rows[model]
    code, hint = CAUSES[model]
    assert row["error"]["code"] == "not-fully-delegated"
    assert row["gates"]["require-full"] is False

    (cause,) = row["report"]["causes"]
    assert cause["count"] == row["report"]["host_operators"] > 0
    assert hint in cause["hint"]
    assert code in cause["source"]["code"]
    assert {told["hint"] for told in row["causes"]} == {cause["hint"]}
    assert cause["source"]["file"].endswith(model.split(":")[0])
    assert row["methods"]["forward"]["relative_error"] < 1e-5


@pytest.mark.slow
def test_the_hinted_target_accepts_dynamic_sizes(rows, tmp_path):
    assert all(
        f"spec={SHAPE}" in rows[model]["report"]["causes"][0]["hint"]
        for model in DYNAMIC
    )
    code, found = run_matrix(tmp_path, DYNAMIC, "--option", f"tosa.spec={SHAPE}")
    assert code == 0, found
    assert [row["delegates"] for row in found.values()] == [1, 1, 1]


def test_a_second_run_reuses_the_rows_of_changed_models(models, rows, store):
    before = (store / "rows.jsonl").read_bytes()
    whole = [m for m in models if m not in CAUSES]
    code, found = run_matrix(store, whole)
    assert code == 0
    assert [*found] == whole
    assert (store / "rows.jsonl").read_bytes() == before

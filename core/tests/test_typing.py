"""mypy and pyright accept correct scripts of users, and find wrong names and types."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import delegraph
import pytest

SCRIPT = """
from collections.abc import Callable

import delegraph
import delegraph_analysis as analysis
import delegraph_quantize as quantizing
import torch
from delegraph_executorch import buckets

model = torch.nn.ReLU().eval()
x = torch.ones(2)
lowered: delegraph.LoweredProgram = delegraph.lower(model, x, backends=["tosa"])
report: delegraph.Report = delegraph.lower({"a": model}, {"a": (x,)}).report
found: delegraph.Verification = lowered.verify(x)
each = analysis.verify_operators(lowered, x)
print(report.delegated_share + found.relative_error, each.operators.first)
compared: analysis.Comparison = analysis.compare(model, [x], backends=["tosa"])
print([candidate.report and candidate.report.summary() for candidate in analysis.compare(model, x).candidates])
hints: list[str] = [refusal.hint for refusal in list[delegraph.Refusal]()] + [cause.hint for cause in report.causes]
quantized: torch.export.ExportedProgram = quantizing.quantize(model, [(x,), x], backend="tosa", progress=print)
errors: quantizing.QuantizationErrors = quantizing.quantization_errors(model, quantized, [x], options={"tosa": {}})
print(errors.worst(2)[0].snr, delegraph.lower(quantized, options={"tosa": {"spec": "TOSA-1.0+INT"}})(x))
sizes: buckets.BucketedProgram = buckets.lower_buckets(model, [x, (x,), {"input": x}], padding=0, require_full=True)
named: list[str] = buckets.lower_buckets(model, {"few": x}, backends=["tosa"]).methods
run: Callable[..., object] = delegraph.load("model.pte", runtime="executorch").method("forward")
sizes.using(delegraph.load("model.pte")).verify(x).agrees(1e-3)
shown: str | None = delegraph.backends()[0].spec.summary

delegraph.lowwer(model, x)  # wrong
delegraph.lower(model, 5)  # wrong
delegraph.lower(model, x, backend=["tosa"])  # wrong
delegraph.lower(model, x, backends=[5])  # wrong
delegraph.lower(model, x).with_missing_runtime("ignore")  # wrong
lowered.verfy(x)  # wrong
report.delegate_share  # wrong
found.relative_eror  # wrong
lowered.save(5)  # wrong
analysis.compare(model, x, backends=[5])  # wrong
compared.candidate  # wrong
compared.candidates[0].relativ_error  # wrong
delegraph.quantise(model, [x])  # wrong
quantizing.quantize(model)  # wrong
quantizing.quantize(model, [x], backends="tosa")  # wrong
quantizing.quantization_errors(model, model, [x])  # wrong
errors.layer  # wrong
delegraph.load(5)  # wrong
delegraph.load("model.pte").methd("forward")  # wrong
delegraph.lower_bucket(model, [x])  # wrong
buckets.lower_buckets(model, 5)  # wrong
buckets.lower_buckets(model, [x], pad=0)  # wrong
buckets.lower_buckets(model, [x], padding="zeros")  # wrong
buckets.lower_buckets(model, [x], backends=[5])  # wrong
sizes.bucket_for(x)  # wrong
[refusal.hints for refusal in list[delegraph.Refusal]()]  # wrong
report.causes[0].hints  # wrong
"""
WRONG = {
    k for k, line in enumerate(SCRIPT.splitlines(), start=1) if line.endswith("# wrong")
}
PYRIGHT = "pyright@1.1.414"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.slow
def test_mypy_finds_the_errors_in_a_script(script):
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--follow-imports=silent",
        "--cache-dir",
        script.parent,
        script,
    ]
    out = subprocess.run(list(map(str, command)), capture_output=True, text=True).stdout

    assert {
        int(line) for line in re.findall(r"script\.py:(\d+): error", out)
    } == WRONG, out


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("npx") is None,
    reason="pyright runs in node, which fetches it; there is no npx",
)
def test_pyright_finds_the_errors_in_a_script(script):
    sources = str(Path(delegraph.__file__).parents[1])
    settings = {
        "extraPaths": [sources],
        "reportUnusedExpression": False,
        "reportMissingModuleSource": False,
    }
    (script.parent / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        "npx",
        "--yes",
        PYRIGHT,
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(script.parent),
    ]
    out = subprocess.run(
        command, capture_output=True, text=True, cwd=script.parent
    ).stdout
    rows = json.loads(out)["generalDiagnostics"]

    assert {
        row["range"]["start"]["line"] + 1 for row in rows if row["severity"] == "error"
    } == WRONG, out

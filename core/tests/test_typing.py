"""A user's script as mypy sees it: right names and types are accepted, wrong ones found."""

import re
import subprocess
import sys

import pytest

SCRIPT = """
import delegraph
import torch

model = torch.nn.ReLU().eval()
x = torch.ones(2)
lowered: delegraph.LoweredProgram = delegraph.lower(model, x, backends=["tosa"])
report: delegraph.Report = delegraph.lower({"a": model}, {"a": (x,)}).report
found: delegraph.Verification = lowered.verify(x, per_operator=True)
print(report.delegated_share + found.relative_error, found.operators and found.operators.first)
compared: delegraph.Comparison = delegraph.compare(model, [x], backends=["tosa"])
refusal: delegraph.Refusal

delegraph.lowwer(model, x)  # wrong
delegraph.lower(model, 5)  # wrong
delegraph.lower(model, x, backend=["tosa"])  # wrong
delegraph.lower(model, x, backends=[5])  # wrong
delegraph.lower(model, x, on_missing_runtime="ignore")  # wrong
lowered.verfy(x)  # wrong
report.delegate_share  # wrong
found.relative_eror  # wrong
lowered.save(5)  # wrong
"""


@pytest.mark.slow
def test_mypy_finds_what_is_wrong_in_a_script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--follow-imports=silent", "--cache-dir", str(tmp_path), str(path)]
    out = subprocess.run(command, capture_output=True, text=True).stdout
    found = {int(line) for line in re.findall(r"script\.py:(\d+): error", out)}
    assert found == {k for k, line in enumerate(SCRIPT.splitlines(), start=1) if line.endswith("# wrong")}, out

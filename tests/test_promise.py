"""What docs/promise.md promises to plugins: a wheel that was built against 0.1.0 goes on working, unmodified.

The wheel is what ``delegraph new-backend kept-npu`` wrote with 0.1.0. It is never built anew: where this fails, the
change that made it fail breaks plugins, and plugin API and documents have to say so.
"""

import hashlib
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from core.tests.support.warm import warm_python

WHEEL = Path(__file__).parent / "fixtures/kept_npu-0.1.0-py3-none-any.whl"
SHA256 = "d0afe4c1a0a0504fb124bcd8796cd873c7d6e5159e7c60a686b6dd2d6c8512a7"
USED = """
import delegraph, torch

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.softmax(self.last(x + torch.relu(self.hidden(x))), dim=-1)

torch.manual_seed(0)
model, x = Network().eval(), torch.randn(2, 8)
row = next(b for b in delegraph.backends() if b.name == "kept-npu")
lowered = delegraph.lower(model, (x,), backends=["kept-npu"])
print(row.status, lowered.report.summary())
print(lowered.verify(x).agrees())
again = delegraph.lower(model, (x,), backends=["kept-npu"], cache="cache")
print(delegraph.lower(model, (x,), backends=["kept-npu"], cache="cache").delegates[0].module.processed_bytes
      == lowered.delegates[0].module.processed_bytes)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel, as pip lays it out."""
    folder = tmp_path_factory.mktemp("installed")
    zipfile.ZipFile(WHEEL).extractall(folder)
    return folder


def run(installed, folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([warm_python(), *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_the_wheel_is_the_one_of_0_1_0():
    assert hashlib.sha256(WHEEL.read_bytes()).hexdigest() == SHA256


def test_it_is_found_and_lowers_and_runs(installed, tmp_path):
    code, printed, errors = run(installed, tmp_path, "-c", USED)
    assert code == 0, errors
    assert printed.splitlines() == [
        "ok 4 of 5 operators delegated, in 1 delegate; 1 on the host",
        "True",
        "True",
    ]


@pytest.mark.slow
def test_the_whole_kit_still_accepts_it(installed, tmp_path):
    code, printed, errors = run(installed, tmp_path, "-m", "delegraph", "check", "kept-npu", "--quick", "--json")
    assert code == 0, errors
    assert all(check["status"] in ("passed", "skipped") for check in json.loads(printed)["checks"])

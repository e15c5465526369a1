"""Commands and lowering work without functions that only POSIX has.

A process removes the names that Windows lacks. This finds uses of these names only.
"""

import subprocess
import sys

import pytest

HIDING = """
import os, signal, sys

for name in ("fork", "register_at_fork", "O_TMPFILE", "getloadavg", "pread", "killpg", "mkfifo"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGCHLD", "SIGHUP", "SIGQUIT", "SIGPROF", "setitimer", "sigtimedwait", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("fcntl", "resource", "pwd", "grp"):
    sys.modules[name] = None
sys.platform = "win32"  # os.name stays: pathlib would make paths of Windows
"""
USING = """
import delegraph, delegraph_workers, torch
from delegraph.cli import main
from pathlib import Path

model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.ones(1, 4)
compiler = delegraph_workers.Compiler("cache")
for _ in range(2):
    lowered = delegraph.lower(model, (x,), backends=["tosa"], compiler=compiler)
assert lowered.verify(x).agrees()
lowered.save("model.tosa")
lowered.save("model.tosa")
assert torch.equal(delegraph.load("model.tosa")(x)[0], lowered(x))
torch.export.save(torch.export.export(model, (x,)), "model.pt2")
assert main(["backends"]) == 0
assert main(["lower", "model.pt2", "--backend", "tosa", "-o", "again.tosa", "--verify", "--report", "report.html"]) == 0
assert main(["inspect", "again.tosa"]) == 0
print(sorted(p.name for p in Path.cwd().iterdir()))
"""
NEEDING_FORKS = """
from delegraph.errors import DelegraphError
from delegraph_devkit.subprocesses import ForkServer

try:
    ForkServer(0)
except DelegraphError as error:
    print(error)
"""


def run_without_posix(code, folder):
    """Return the output of ``code`` in a process that lacks these names."""
    # imported before: the standard library has looked for them by then, as that of
    # Windows knows not to
    begin = "import subprocess, tempfile, multiprocessing, torch, socket\n"
    completed = subprocess.run(
        [sys.executable, "-c", begin + HIDING + code],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    return completed.stdout


@pytest.mark.slow
@pytest.mark.skipif("not hasattr(__import__('os'), 'fork')")
def test_lowering_files_and_commands_work_without_posix(tmp_path):
    printed = run_without_posix(USING, tmp_path)
    assert (
        printed.splitlines()[-1]
        == "['again.tosa', 'cache', 'model.pt2', 'model.tosa', 'report.html']"
    )


@pytest.mark.skipif("not hasattr(__import__('os'), 'fork')")
def test_checks_that_need_forks_are_refused_without_them(tmp_path):
    assert (
        "the checks need os.fork, which this system does not have\n  hint: run them"
        in run_without_posix(NEEDING_FORKS, tmp_path)
    )

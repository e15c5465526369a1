"""Rows are the same by whatever executor, and whole when the command is killed or the
disk is full.
"""

import contextlib
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from delegraph_analysis.matrix import executors, schedule
from delegraph_analysis.matrix.cells import shard
from delegraph_analysis.matrix.rows import key_of
from delegraph_analysis.matrix.store import Store, read_rows

MODELS = ("small", "inverse", "methods", "wrong", "exits", "noisy")
ENGINES = (("tosa",), ("openvino",))


def without_measurements(rows):
    """All of the rows that is no measurement, in one order."""
    made = copy.deepcopy(sorted(rows, key=key_of))
    for row in made:
        del row["measured"]
    return made


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """Filled by the first test that asks."""
    return {"folder": tmp_path_factory.mktemp("serial")}


@pytest.fixture
def listed(cells_for):
    return cells_for(*MODELS, backends=ENGINES, files=[".tosa", ".pte"])


@pytest.fixture
def wanted(serial, listed):
    """The rows of a serial run."""
    if "rows" not in serial:
        serial["rows"] = run_cells_by("serial", listed, serial["folder"] / "store")
    return serial["rows"]


def run_cells_by(executor, listed, folder):
    store = Store(folder)
    store.create()
    with executors.engine_of(executor, folder, 600) as engine:
        return schedule.run_cells(listed, store, engine)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["process:2", "dask", "submitit:local"])
def test_rows_are_those_of_a_serial_run(name, wanted, listed, tmp_path, monkeypatch):
    with contextlib.ExitStack() as stack:
        if name == "dask":
            distributed = pytest.importorskip(
                "distributed", reason="pip install distributed"
            )
            cluster = distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None
            )
            name = f"dask:{stack.enter_context(cluster).scheduler_address}"
        elif name.startswith("submitit"):
            pytest.importorskip("submitit", reason="pip install submitit")
        rows = run_cells_by(name, listed, tmp_path / "store")
    assert len(rows) == len(MODELS) * len(ENGINES)
    assert without_measurements(rows) == without_measurements(wanted)


@pytest.mark.slow
def test_rows_of_four_shards_joined(wanted, listed, tmp_path):
    parts = [Store(tmp_path / str(k)) for k in range(1, 5)]
    for k, part in enumerate(parts, start=1):
        run_cells_by("serial", shard(listed, f"{k}/4"), part.folder)
    into = Store(tmp_path / "all")
    assert into.join(parts) == len(listed)
    assert without_measurements(into.rows()) == without_measurements(wanted)


def start_command(folder, *words):
    """A command in a session of its own."""
    command = [
        sys.executable,
        "-m",
        "delegraph",
        "matrix",
        *words,
        "--exit-zero",
        "--runs",
        "1",
        "--files",
    ]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [6])
def test_a_command_that_is_killed_goes_on(folder, rounds):
    """It is killed after each row; what has a row is not done again, and no cell goes
    on without its command.
    """
    given = [
        *(f"zoo.py:{name}" for name in MODELS),
        "--backends",
        "tosa",
        "--host-only",
        "--store",
        "store",
    ]
    rows = folder / "store/rows.jsonl"
    for _ in range(rounds):
        before = rows.read_text().splitlines() if rows.exists() else []
        command = start_command(folder, *given, "--executor", "process:2")
        until = time.monotonic() + 300
        while (
            len(rows.read_text().splitlines() if rows.exists() else []) <= len(before)
            and time.monotonic() < until
        ):
            if command.poll() is not None:
                break
            time.sleep(0.01)
        command.send_signal(signal.SIGKILL)
        command.communicate()
        assert rows.read_text().splitlines()[: len(before)] == before
    command = start_command(folder, *given)
    printed, _ = command.communicate(timeout=600)
    assert command.returncode == 0, printed
    cells = [row["cell"] for row in read_rows(folder / "store")]
    assert (
        len(cells)
        == len(set(cells))
        == len(rows.read_text().splitlines())
        == 2 * len(MODELS)
    )


@pytest.mark.slow
def test_full_disk_ends_the_command_and_keeps_finished_rows(folder, tmp_path):
    """A file system of 256 kB, which reports fill."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk]
        ).returncode
    ):
        pytest.skip("needs the right to mount")
    try:
        given = [
            *(f"zoo.py:{name}" for name in MODELS),
            "--backends",
            "tosa",
            "demo",
            "--host-only",
            "--store",
            disk,
        ]
        command = start_command(folder, *map(str, given))
        printed, _ = command.communicate(timeout=600)
        assert command.returncode == 1, printed
        assert "write-failed" in printed, printed
        before = (disk / "rows.jsonl").read_text()
        kept = [json.loads(line)["cell"] for line in before.splitlines()]
        assert kept
        assert not [
            path for path in (disk / "artifacts").iterdir() if path.name.startswith(".")
        ]
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        command = start_command(folder, *map(str, given))
        printed, _ = command.communicate(timeout=600)
        assert command.returncode == 0, printed
        assert (disk / "rows.jsonl").read_text().startswith(before)
        assert len((disk / "rows.jsonl").read_text().splitlines()) == 3 * len(MODELS)
    finally:
        subprocess.run(["umount", disk], check=True)
    assert shutil.disk_usage(tmp_path).free

"""Cells in processes of their own: what models do there ends in a row, and costs no
other cell.
"""

import json
import os
import time
from collections import deque
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import jsonschema
import pytest
from delegraph.errors import DelegraphError
from delegraph_analysis.matrix import execute, executors, schedule
from delegraph_analysis.matrix.executors import Engine
from delegraph_analysis.matrix.rows import row_of, status
from delegraph_analysis.matrix.store import read_rows

SCHEMA = json.loads((Path(__file__).parents[4] / "docs/schema.json").read_text("utf-8"))


class Here:
    """An executor that does at once what it is given; ``wrong`` are its first answers."""

    def __init__(self, *wrong):
        self.wrong = deque(wrong)
        self.jobs = []

    def submit(self, function, message):
        self.jobs.append(json.loads(message))
        future: Future = Future()
        wrong = self.wrong.popleft() if self.wrong else None
        if isinstance(wrong, Exception):
            future.set_exception(wrong)
        else:
            future.set_result(function(message) if wrong is None else wrong)
        return future


def run_cells(listed, store, executor=None, **given):
    rows = schedule.run_cells(listed, store, Engine(executor or Here(), **given))
    for row in rows:
        jsonschema.Draft202012Validator(
            {**SCHEMA, "anyOf": [{"$ref": "#/$defs/matrix-row"}]}
        ).validate(row)
    return {row["name"]: row for row in rows}


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_rows_of_good_models(finished):
    rows = {(r["name"], r["target"], r["quantize"]): r for r in read_rows(finished)}
    small = rows["small", "tosa", "float"]
    host = rows["small", "host", "float"]
    assert small["operators"] == 2
    assert small["delegated"] == 2
    assert small["delegates"] == 1
    assert status(small) == "ok"
    assert host["delegated"] == 0
    assert host["backends"] == []
    assert host["methods"]["forward"]["relative_error"] == 0
    measured = small["measured"]
    assert len(measured["latency"]["seconds"]) == len(measured["eager"]["seconds"]) == 3
    assert {"load", "export", "import", "lower", "write", "verify", "run"} == measured[
        "seconds"
    ].keys()
    assert measured["peak_bytes"] > 50e6
    assert measured["machine"]["cpus"] == os.cpu_count()
    assert small["versions"].keys() >= {"delegraph", "delegraph-tosa", "torch"}
    for entry in (small["files"][0]["path"], measured["page"], measured["report"]):
        assert (finished / entry).stat().st_size > 100
    report = json.loads((finished / measured["report"]).read_text())
    assert report["schema"] == "delegraph.report/1"
    assert report["verification"]["agrees"]
    assert status(rows["small", "demo", "float"]) == "not run"
    assert "no runtime" in rows["small", "demo", "float"]["not_run"]
    assert (
        rows["inverse", "tosa", "float"]["causes"][0]["operator"]
        == "aten.linalg_inv_ex.default"
    )
    assert rows["methods", "tosa", "float"]["methods"].keys() == {"forward", "half"}
    failed = rows["wrong", "tosa", "float"]
    assert failed["error"]["code"] == "input-invalid"
    assert failed["stage"] == "load"
    assert failed["operators"] is None
    quantized = rows["small", "tosa", "int8"]
    assert quantized["quantizer"] == "tosa"
    assert quantized["operators"] > 2
    assert status(quantized) == "ok"


def test_cells_with_a_row_are_not_run_again(finished, cells_for, store):
    listed = cells_for("small")
    row = run_cells(listed, store)["small"]
    executor = Here()
    assert run_cells(listed, store, executor)["small"] == row
    assert not executor.jobs
    assert not schedule.missing(listed, store, failed_again=True)


def test_models_that_end_their_process(cells_for, store, folder):
    names = ("exits", "greedy", "noisy", "forks", "killed", "interrupts", "small")
    rows = run_cells(cells_for(*names, memory_limit=400), store)
    errors = {name: row["error"] and row["error"]["code"] for name, row in rows.items()}
    ended = "matrix/process-ended"
    good = dict(noisy=None, forks=None, small=None)
    assert errors == dict(
        exits=ended, greedy="input-invalid", killed=ended, interrupts=ended, **good
    )
    assert (
        rows["interrupts"]["measured"]["printed"][-1]
        == "KeyboardInterrupt: nobody pressed a key"
    )
    assert "exit code 0" in rows["exits"]["error"]["message"]
    assert rows["exits"]["stage"] == "load"
    assert "can't allocate memory" in rows["greedy"]["error"]["message"]
    assert rows["killed"]["error"]["message"].endswith("killed by SIGKILL")
    assert (folder / "attempts").read_text() == "xx"
    assert rows["killed"]["measured"]["attempts"] == 2
    assert not exists(int((folder / "forked").read_text()))


def test_the_process_that_waits_for_a_cell_is_killed(cells_for, store):
    rows = run_cells(cells_for("orphaned", "small"), store)
    assert (
        rows["orphaned"]["error"]["message"]
        == "the cell was lost: the process that waits for it ended"
    )
    assert rows["orphaned"]["error"]["code"] == "matrix/lost"
    assert rows["orphaned"]["measured"]["attempts"] == 2
    assert rows["small"]["error"] is None


def test_a_limit_that_may_be_too_small_is_a_hint(cells_for):
    told = {"exit": 1, "stopped": False, "printed": "", "stage": None}
    (cell,) = cells_for("small", memory_limit=7)
    assert (
        "its limit of 7 MB may be too small" in row_of(cell, told, 1)["error"]["hint"]
    )
    assert row_of(cells_for("small")[0], told, 1)["error"]["hint"] is None


def test_models_that_hang_are_stopped_after_the_time_limit(cells_for, store):
    start = time.monotonic()
    row = run_cells(cells_for("hangs", time_limit=3.0), store)["hangs"]
    assert row["error"]["message"] == "its process was stopped after 3 s"
    assert row["stage"] == "load"
    assert row["measured"]["printed"][0] == "patience"
    assert any(
        "zoo.py" in line and "in hangs" in line for line in row["measured"]["printed"]
    )
    assert time.monotonic() - start < 60
    assert len(schedule.missing(cells_for("hangs", time_limit=3.0), store)) == 0
    assert len(schedule.missing(cells_for("hangs", time_limit=2.0), store)) == 1, (
        "the limit may have been too short"
    )


def test_a_cell_ends_with_its_command(cells_for, store, folder):
    """Whoever interrupts the command does not wait for the time limits of its cells."""
    start = time.monotonic()
    at_work = folder / "at_work"
    with executors.engine_of("process:1", store.folder, 600) as engine:
        work = schedule.Work(store, engine, deque(cells_for("hangs")))
        work._submit()
        (future,) = work.pending
        while not at_work.exists() or not at_work.read_text():
            assert not future.done(), "the cell ended before its endless loop"
            assert time.monotonic() - start < 60, (
                "the cell ended before its endless loop"
            )
            time.sleep(0.01)
    told = json.loads(future.result(timeout=60))
    assert told["lost"]
    assert not exists(int(at_work.read_text()))
    assert time.monotonic() - start < 60


def test_a_cell_that_an_executor_loses_is_tried_again(cells_for, store):
    executor = Here(OSError("the worker is gone"))
    assert (
        run_cells(cells_for("small"), store, executor)["small"]["measured"]["attempts"]
        == 2
    )
    executor = Here(*[OSError("the worker is gone")] * 2)
    row = run_cells(cells_for("inverse"), store, executor)["inverse"]
    assert row["error"]["code"] == "matrix/lost"
    assert "OSError: the worker is gone" in row["error"]["message"]


def test_broken_executors_end_the_command_and_keep_rows(cells_for, store):
    breaking = Here(*[BrokenExecutor("a process died")])
    with pytest.raises(DelegraphError, match="the executor broke: a process died"):
        run_cells(cells_for("small", "inverse"), store, breaking)
    assert len(store.rows()) < 2
    assert len(run_cells(cells_for("small", "inverse"), store)) == 2


@pytest.mark.parametrize("wrong", [b"text", 3, b"{}", b"[]"])
def test_answers_of_executors_are_not_trusted(wrong, cells_for, store):
    with pytest.raises(DelegraphError, match="not the result of a cell"):
        run_cells(cells_for("small"), store, Here(wrong))


def test_a_machine_that_does_not_see_the_store_returns_files(
    cells_for, store, monkeypatch
):
    address = store.address()
    monkeypatch.setattr(
        type(store), "address", lambda self: {**address, "folder": "/nowhere"}
    )
    row = run_cells(cells_for("small", files=[".tosa"]), store)["small"]
    assert store.content(row["files"][0]["path"])
    assert store.content(row["measured"]["page"])


def test_machines_with_different_versions_are_refused(cells_for, store, monkeypatch):
    cell = cells_for("small")[0]
    job = type(cell).job
    monkeypatch.setattr(
        type(cell), "job", lambda self: job(self) | {"versions": {"torch": "2.9"}}
    )
    with pytest.raises(
        DelegraphError,
        match=r"a worker process of the matrix has torch 2\.\S+, not 2\.9",
    ):
        run_cells([cell], store)
    assert not store.rows()


def test_a_store_that_takes_no_files_ends_the_command(cells_for, store):
    (store.folder / "artifacts").rmdir()
    (store.folder / "artifacts").write_text("no folder")
    with pytest.raises(DelegraphError) as error:
        run_cells(cells_for("small"), store)
    assert error.value.code == "write-failed"
    assert not store.rows()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "there is no executor 'nothing'"),
        ("process:0", "must be 1 or more"),
        ("serial:2", "has no parameters"),
        ("dask", "needs the address"),
        ("json:loads", "raised TypeError"),
        ("builtins:dict", "has no method submit"),
    ],
)
def test_missing_executors_are_refused(text, said, tmp_path):
    if text == "dask":
        pytest.importorskip("distributed", reason="pip install distributed")
    with (
        pytest.raises(DelegraphError, match=said),
        executors.engine_of(text, tmp_path, 60),
    ):
        pass


def test_executors_get_cells_as_bytes(cells_for, store):
    told = json.loads(
        execute.run(
            schedule.Work(store, Engine(None), deque())._message(cells_for("small")[0])
        )
    )
    assert told["exit"] == 0
    assert told["answer"]["found"]["error"] is None

"""A store is whole, whatever happens while it is written to."""

import json
import os
import resource
import signal

import pytest
from delegraph.errors import InputError, WriteError
from delegraph_analysis.matrix.store import (
    Parcel,
    Store,
    files_of,
    place_for,
    read_rows,
)


def make_row(number, *paths, error=None, **more):
    files = [{"suffix": ".x", "bytes": 1, "path": path} for path in paths]
    named = {
        "cell": str(number),
        "name": "m",
        "model": "m.py",
        "target": "t",
        "quantize": "float",
        "backends": ["t"],
    }
    asked = {
        "schema": "delegraph.matrix-row/1",
        "settings": {"threads": 1},
        "versions": {},
    }
    found = {
        "causes": [],
        "methods": {},
        "files": files,
        "not_run": None,
        "stage": None,
    }
    found |= dict.fromkeys(("operators", "delegated", "delegates", "bytes"))
    found["error"] = error and {
        "message": "it failed",
        "source": None,
        "hint": None,
        **error,
    }
    measured = {
        "seconds": {},
        "cpu": {},
        "total_seconds": 1.0,
        "peak_bytes": 1,
        "load": 0.1,
        "machine": {},
        "ended": None,
    }
    return {**asked, **named, **found, "measured": measured, **more}


def test_the_last_row_counts_and_torn_lines_are_skipped(store):
    for number in (1, 2, 1):
        store.append(make_row(number, text="x" * number))
    with (store.folder / "rows.jsonl").open("a") as file:
        file.write(json.dumps(make_row(3))[:70])
    assert [row["cell"] for row in store.rows()] == ["1", "2"]
    store.append(make_row(4))
    assert [row["cell"] for row in store.rows()] == ["1", "2", "4"]


@pytest.mark.parametrize(
    "content", [b"text", b"{}\n", b'{"schema": "other"}\n', b"\xff\xfe", b"[" * 100_000]
)
def test_another_file_is_refused(content, store):
    (store.folder / "rows.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=r"line 1 of .*rows.jsonl is not a row"):
        store.rows()


def test_a_row_names_no_file_outside_of_the_store(tmp_path, store):
    for name in (
        "/etc/passwd",
        "../x",
        "artifacts/../../x",
        "artifacts/" + 64 * "g" + ".html",
        "javascript:alert(1)",
    ):
        (store.folder / "rows.jsonl").write_text(json.dumps(make_row(1, name)) + "\n")
        with pytest.raises(InputError, match="is not a row"):
            store.rows()


def run_in_fork(work):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_several_processes_add_whole_rows(store):
    def work(k):
        return lambda: [
            store.append(make_row(f"{k}.{n}", text="y" * 10_000)) for n in range(30)
        ]

    children = [run_in_fork(work(k)) for k in range(4)]
    assert [
        os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children
    ] == [0] * 4
    assert len(store.rows()) == 120


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_full_disk_keeps_the_earlier_rows(store):
    store.append(make_row(1))
    size = (store.folder / "rows.jsonl").stat().st_size

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
        with pytest.raises(WriteError, match="cannot add to .*rows.jsonl"):
            store.append(make_row(2, text="z" * 1000))
        with pytest.raises(WriteError):
            store.keep(bytes(size + 200), ".bin")

    assert os.waitpid(run_in_fork(work), 0)[1] == 0
    assert (store.folder / "rows.jsonl").stat().st_size == size
    assert list((store.folder / "artifacts").iterdir()) == []


def test_files_are_stored_by_their_content(store, tmp_path):
    name = store.keep(b"content", ".html")
    assert store.keep(b"content", ".html") == name
    assert store.content(name) == b"content"
    assert place_for(store.address()).folder == store.folder.resolve()
    elsewhere = place_for({**store.address(), "mark": "another store of that name"})
    assert isinstance(elsewhere, Parcel)
    assert elsewhere.keep(b"content", ".html") == name
    (store.folder / name).write_bytes(b"damaged")
    with pytest.raises(InputError, match="is damaged"):
        store.content(name)


def test_stores_are_joined(tmp_path):
    parts = [Store(tmp_path / str(k)) for k in range(3)]
    for k, part in enumerate(parts):
        part.create()
        part.append(make_row(k, part.keep(str(k).encode(), ".tosa")))
    beside = {
        "suffix": ".pte",
        "bytes": 1,
        "path": None,
        "others": {"weights.ptd": parts[0].keep(b"weights", ".ptd")},
    }
    parts[0].append(make_row("y") | {"files": [beside]})
    parts[0].append(make_row("x", error={"code": "a"}))
    parts[1].append(make_row("x"))
    parts[2].append(make_row("x", error={"code": "b"}))
    into = Store(tmp_path / "into")
    assert into.join(parts) == 6
    assert into.join(parts) == 0
    found = {r["cell"]: r for r in read_rows(into.folder)}
    assert set(found) == {"0", "1", "2", "x", "y"}
    assert found["x"]["error"] is None
    assert [into.content(name) for r in found.values() for name in files_of(r)] == [
        b"0",
        b"weights",
        b"1",
        b"2",
    ]

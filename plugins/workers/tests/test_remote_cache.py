"""The folder that a team shares: any URL of fsspec, away, slow or full."""

import time

import pytest
from delegraph_workers import Cache, remote_cache

from .support.caching import (
    CountingBackend,
    cache_notes,
    contents_of_delegates,
    entries_in,
    lower_with_cache,
    make_model,
    registry,
)

__all__ = ["registry"]


REMOTES = {
    "memory": lambda path: f"memory://{path.name}",
    "file": lambda path: f"file://{path}/far",
}


@pytest.mark.parametrize("kind", REMOTES)
def test_a_remote_folder_is_read_through_and_written_back(kind, registry, tmp_path):
    pytest.importorskip("fsspec")
    url = REMOTES[kind](tmp_path)
    expected = contents_of_delegates(
        lower_with_cache(make_model(), registry, Cache(tmp_path / "one", remote=url))
    )
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "two", remote=url)
    )
    assert len(CountingBackend.calls) == 2
    assert contents_of_delegates(program) == expected
    assert [row.compiled for row in program.report.delegates] == ["from the cache"] * 2
    assert [p.name for p in entries_in(tmp_path / "one")] == [
        p.name for p in entries_in(tmp_path / "two")
    ]
    lower_with_cache(make_model(), registry, tmp_path / "two")
    assert len(CountingBackend.calls) == 2


def test_entries_of_a_remote_folder_are_checked(registry, tmp_path):
    url = f"file://{tmp_path}/far"
    expected = contents_of_delegates(
        lower_with_cache(make_model(), registry, Cache(tmp_path / "one", remote=url))
    )
    for path in entries_in(tmp_path / "far"):
        path.write_bytes(path.read_bytes()[:-1])
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "two", remote=url)
    )
    assert contents_of_delegates(program) == expected
    assert (
        sum(
            "remote cache entry" in note and "is not used" in note
            for note in cache_notes(program)
        )
        == 2
    )
    assert len(CountingBackend.calls) == 4
    lower_with_cache(make_model(), registry, Cache(tmp_path / "three", remote=url))
    assert len(CountingBackend.calls) == 4  # they were written anew


def slow(*args):
    time.sleep(10)


def full(*args):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("system", "why"),
    [(slow, "no answer in 0.05 s"), (full, "No space left on device")],
)
def test_slow_or_full_remote_folders_are_noted_once(
    system, why, registry, tmp_path, monkeypatch
):
    monkeypatch.setattr(remote_cache, "_TIME_LIMIT", 0.05)
    monkeypatch.setattr(remote_cache.RemoteFolder, "_open", system)
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "one", remote="memory://x")
    )
    assert len(program.delegates) == 2
    _, note = cache_notes(program)
    assert note.startswith("the remote cache memory://x is not used: ")
    assert why in note


@pytest.mark.parametrize(
    "url", ["nosuch://user:secret@host/folder?token=secret", "file:///proc/nowhere/x"]
)
def test_missing_remote_folders_are_noted_without_password(url, registry, tmp_path):
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "one", remote=url)
    )
    assert len(program.delegates) == len(entries_in(tmp_path / "one")) == 2
    _, note = cache_notes(program)
    assert "is not used: " in note
    assert "secret" not in note


def test_the_environment_names_a_remote_folder(registry, tmp_path, monkeypatch):
    monkeypatch.setenv("DELEGRAPH_CACHE_REMOTE", f"file://{tmp_path}/far")
    lower_with_cache(make_model(), registry, tmp_path / "near")
    assert len(entries_in(tmp_path / "far")) == len(entries_in(tmp_path / "near")) == 2
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr("delegraph_workers.cache.sys.platform", "linux")
    lower_with_cache(make_model(), registry, None)
    assert len(CountingBackend.calls) == 2
    assert len(entries_in(tmp_path / "user/delegraph")) == 2

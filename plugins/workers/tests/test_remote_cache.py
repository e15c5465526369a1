"""A remote cache is a folder at any URL of fsspec, and its faults are only noted."""

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


URLS = {
    "memory": lambda folder: f"memory://{folder.name}",
    "file": lambda folder: f"file://{folder}/far",
}
"""Protocol -> a function from a folder of this test to a URL."""


@pytest.mark.parametrize("protocol", URLS)
def test_partitions_are_found_in_a_remote_folder(protocol, registry, tmp_path):
    pytest.importorskip("fsspec")
    url = URLS[protocol](tmp_path)
    one = Cache(tmp_path / "one", remote=url)
    two = Cache(tmp_path / "two", remote=url)
    expected = contents_of_delegates(lower_with_cache(make_model(), registry, one))

    program = lower_with_cache(make_model(), registry, two)

    assert len(CountingBackend.calls) == 2
    assert contents_of_delegates(program) == expected
    assert [row.compiled for row in program.report.delegates] == ["from the cache"] * 2


def test_entries_of_a_remote_folder_are_kept_locally(registry, tmp_path):
    url = f"file://{tmp_path}/far"
    lower_with_cache(make_model(), registry, Cache(tmp_path / "one", remote=url))
    lower_with_cache(make_model(), registry, Cache(tmp_path / "two", remote=url))

    lower_with_cache(make_model(), registry, tmp_path / "two")  # without the remote

    assert len(CountingBackend.calls) == 2
    names_in_one = [path.name for path in entries_in(tmp_path / "one")]
    names_in_two = [path.name for path in entries_in(tmp_path / "two")]
    assert names_in_one == names_in_two


def test_damaged_entries_of_a_remote_folder_are_replaced(registry, tmp_path):
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
    about_damage = [
        note
        for note in cache_notes(program)
        if "remote cache entry" in note and "is not used" in note
    ]
    assert len(about_damage) == 2
    assert len(CountingBackend.calls) == 2 + 2
    lower_with_cache(make_model(), registry, Cache(tmp_path / "three", remote=url))
    assert len(CountingBackend.calls) == 2 + 2  # the remote has whole entries again


def open_slowly(*args):
    time.sleep(10)


def open_full(*args):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("open_folder", "reason"),
    [
        (open_slowly, "did not answer within 0.05 s"),
        (open_full, "No space left on device"),
    ],
)
def test_slow_or_full_remote_folders_are_noted_once(
    open_folder, reason, registry, tmp_path, monkeypatch
):
    monkeypatch.setattr(remote_cache, "_TIME_LIMIT", 0.05)
    monkeypatch.setattr(remote_cache.RemoteFolder, "_open", open_folder)

    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "one", remote="memory://x")
    )

    assert len(program.delegates) == 2
    _, note = cache_notes(program)
    assert note.startswith("the remote cache memory://x is not used: ")
    assert reason in note


@pytest.mark.parametrize(
    "url", ["nosuch://user:secret@host/folder?token=secret", "file:///proc/nowhere/x"]
)
def test_missing_remote_folders_are_noted_without_password(url, registry, tmp_path):
    program = lower_with_cache(
        make_model(), registry, Cache(tmp_path / "one", remote=url)
    )

    assert len(program.delegates) == 2
    assert len(entries_in(tmp_path / "one")) == 2
    _, note = cache_notes(program)
    assert "is not used: " in note
    assert "secret" not in note


def test_an_environment_variable_names_a_remote_folder(registry, tmp_path, monkeypatch):
    monkeypatch.setenv("DELEGRAPH_CACHE_REMOTE", f"file://{tmp_path}/far")

    lower_with_cache(make_model(), registry, tmp_path / "near")

    assert len(entries_in(tmp_path / "far")) == 2
    assert len(entries_in(tmp_path / "near")) == 2


def test_a_remote_folder_alone_is_used_with_the_users_folder(
    registry, tmp_path, monkeypatch
):
    monkeypatch.setenv("DELEGRAPH_CACHE_REMOTE", f"file://{tmp_path}/far")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr("delegraph_workers.cache.sys.platform", "linux")
    lower_with_cache(make_model(), registry, tmp_path / "near")

    lower_with_cache(make_model(), registry, None)

    assert len(CountingBackend.calls) == 2
    assert len(entries_in(tmp_path / "user/delegraph")) == 2

"""``delegraph cache`` and the options ``--cache`` and ``--cache-remote``."""

from pathlib import Path

import pytest

from core.tests.support.command_line import run_command, run_failing, run_for_json

from .support.caching import write_entry

MODEL = """
import torch

def made():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),)
"""


@pytest.fixture
def model(tmp_path):
    """Return the name of a model, as the command line takes it."""
    (tmp_path / "m.py").write_text(MODEL)
    return f"{tmp_path / 'm.py'}:made"


def lower_with_options(capsys, model, *options):
    """Lower the model, which has one delegate, and return where its blob came from."""
    code, content = run_for_json(
        capsys, "lower", model, *options, "--backend", "compiler-demo"
    )
    assert code == 0
    [delegate] = content["report"]["delegates"]
    return delegate["compiled"]


@pytest.fixture
def filled_cache(tmp_path, capsys, monkeypatch, model):
    """Return a cache with one entry, which is the default of all commands."""
    folder = tmp_path / "kept"
    assert lower_with_options(capsys, model, "--cache", folder) == "compiled"
    monkeypatch.setenv("DELEGRAPH_CACHE", str(folder))
    return folder


def test_a_second_lowering_takes_the_blob_from_the_cache(tmp_path, capsys, model):
    folder = tmp_path / "kept"

    assert lower_with_options(capsys, model, "--cache", folder) == "compiled"
    assert lower_with_options(capsys, model, f"--cache={folder}") == "from the cache"


def test_the_environment_variable_is_the_default_cache(filled_cache, capsys, model):
    assert lower_with_options(capsys, model) == "from the cache"


def test_cache_list_shows_entries_and_their_total(filled_cache, capsys):
    code, stdout, _ = run_command(capsys, "cache")

    assert code == 0
    entry, total = stdout.splitlines()
    assert "backend BackendWithCompilerDemo, producer delegraph-demo " in entry
    assert total.startswith("1 file, ")
    assert total.endswith(f", in {filled_cache}")


def test_cache_size_shows_only_the_total(filled_cache, capsys):
    _, listed, _ = run_command(capsys, "cache", "list")
    _, printed, _ = run_command(capsys, "cache", "size")

    assert printed == listed.splitlines()[-1] + "\n"


def test_cache_verify_removes_only_damaged_entries(filled_cache, capsys):
    [entry] = filled_cache.iterdir()
    (filled_cache / f"{'0' * 64}.entry").write_bytes(b"damaged")
    _, printed, _ = run_command(capsys, "cache", "list", "--cache", filled_cache)
    assert "  damaged\n" in printed

    _, content = run_for_json(capsys, "cache", "verify")

    assert content["removed"] == ["0" * 64]
    assert [row["key"] for row in content["entries"]] == [entry.stem]
    assert list(filled_cache.iterdir()) == [entry]


def test_cache_clear_removes_all_entries(filled_cache, capsys):
    _, printed, _ = run_command(capsys, "cache", "clear")

    assert printed.splitlines()[0] == "removed: 1 file"
    assert list(filled_cache.iterdir()) == []


def test_a_missing_cache_folder_is_a_usage_error(tmp_path, capsys):
    message = run_failing(
        capsys, "cache", "--cache", tmp_path / "none", code=2, error="usage-invalid"
    )

    assert "there is no folder" in message


@pytest.mark.parametrize(
    "header", [b"7", b"[7]", b"[]", b'[[["a"]]]', b"{}", b"[" * 100_000]
)
def test_entries_with_invalid_facts_are_damaged(header, tmp_path, capsys):
    path = tmp_path / f"{0:064}.entry"
    path.write_bytes(write_entry(path, header))
    _, out, _ = run_command(capsys, "cache", "--cache", tmp_path)
    assert out.splitlines()[0].endswith("  damaged")
    _, data = run_for_json(capsys, "cache", "verify", "--cache", tmp_path)
    assert data["removed"] == [path.stem]


def test_the_option_cache_alone_selects_the_users_folder(
    tmp_path, capsys, monkeypatch, model
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("delegraph_workers.cache.sys.platform", "linux")

    assert lower_with_options(capsys, model, "--cache") == "compiled"

    assert len(list((tmp_path / "delegraph").iterdir())) == 1


def test_two_folders_share_a_remote_cache(tmp_path, capsys, model):
    remote = ("--cache-remote", f"file://{tmp_path}/far")
    one = ("--cache", tmp_path / "one")
    two = ("--cache", tmp_path / "two")

    assert lower_with_options(capsys, model, *one, *remote) == "compiled"
    assert lower_with_options(capsys, model, *two, *remote) == "from the cache"


def test_a_remote_cache_without_a_folder_uses_the_users_folder(
    tmp_path, capsys, monkeypatch, model
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("delegraph_workers.cache.sys.platform", "linux")
    remote = ("--cache-remote", f"file://{tmp_path}/far")

    assert lower_with_options(capsys, model, *remote) == "compiled"
    assert lower_with_options(capsys, model, *remote) == "from the cache"

    assert len(list((tmp_path / "delegraph").iterdir())) == 1


@pytest.fixture
def three_entries(tmp_path):
    """Return the paths of three entries, with facts but without a blob."""
    paths = [tmp_path / f"{k:064}.entry" for k in range(3)]
    for path in paths:
        path.write_bytes(write_entry(path, b'[{"backend": 7}]'))
    return paths


def raise_for_paths(monkeypatch, method, errors):
    """Let a method of ``Path`` raise the error that ``errors`` has for a path."""
    original = getattr(Path, method)

    def fail(path, **options):
        if path in errors:
            raise errors[path]
        return original(path, **options)

    monkeypatch.setattr(Path, method, fail)


def test_unreadable_entries_are_not_removed_as_damaged(
    three_entries, tmp_path, capsys, monkeypatch
):
    """In a shared folder, some entries can be read only by their owners."""
    private, just_removed, _ = three_entries
    errors = {
        private: PermissionError(13, "Permission denied"),
        just_removed: FileNotFoundError(2, "No such file or directory"),
    }
    raise_for_paths(monkeypatch, "read_bytes", errors)

    _, content = run_for_json(capsys, "cache", "verify", "--cache", tmp_path)
    _, listed, _ = run_command(capsys, "cache", "--cache", tmp_path)

    rows = content["entries"]
    assert [row["damaged"] for row in rows] == [False, False, False]
    assert {"backend": "7"} in [row["facts"] for row in rows]
    assert "  cannot be read: Permission denied\n" in listed
    assert sorted(tmp_path.iterdir()) == three_entries


def test_failed_removals_are_reported(three_entries, tmp_path, capsys, monkeypatch):
    kept = three_entries[0]
    errors = {kept: PermissionError(1, "Operation not permitted")}
    raise_for_paths(monkeypatch, "unlink", errors)

    message = run_failing(
        capsys, "cache", "clear", "--cache", tmp_path, code=1, error="write-failed"
    )

    assert "1 of 3 files in" in message
    assert "Operation not permitted" in message
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize("command", ["accuracy", "compare", "profile"])
def test_all_commands_that_lower_fill_the_cache(command, tmp_path, capsys, model):
    folder = tmp_path / "kept"

    code, _, _ = run_command(
        capsys, command, model, "--backend", "tosa", "--cache", folder
    )

    assert code == 0
    assert len(list(folder.iterdir())) == 1

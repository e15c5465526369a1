"""``delegraph cache``, and the options of ``delegraph lower`` that name one."""

from pathlib import Path

import pytest

from core.tests.support.command_line import run_command, run_failing, run_for_json

from .support.caching import write_entry


def origins_after_lowering(capsys, *words):
    """Whence the delegates of the demo backend are."""
    code, found = run_for_json(capsys, "lower", *words, "--backend", "compiler-demo")
    assert code == 0
    return [row["compiled"] for row in found["report"]["delegates"]]


MODEL = """
import torch

def made():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),)
"""


def test_a_cache_is_filled_listed_checked_and_cleared(tmp_path, capsys, monkeypatch):
    (tmp_path / "m.py").write_text(MODEL)
    words = [f"{tmp_path / 'm.py'}:made"]
    kept = tmp_path / "kept"
    assert origins_after_lowering(capsys, *words, "--cache", kept) == ["compiled"]
    assert origins_after_lowering(capsys, *words, f"--cache={kept}") == [
        "from the cache"
    ]
    monkeypatch.setenv("DELEGRAPH_CACHE", str(kept))
    assert origins_after_lowering(capsys, *words) == ["from the cache"]
    code, out, _ = run_command(capsys, "cache")
    line, total = out.splitlines()
    assert code == 0
    assert "backend BackendWithCompilerDemo, producer delegraph-demo " in line
    assert total.startswith("1 file, ")
    assert total.endswith(f", in {kept}")
    _, printed, _ = run_command(capsys, "cache", "size")
    assert printed == f"{total}\n"
    (entry,) = kept.iterdir()
    (kept / f"{'0' * 64}.entry").write_bytes(b"damaged")
    _, printed, _ = run_command(capsys, "cache", "list", "--cache", kept)
    assert "  damaged\n" in printed
    code, found = run_for_json(capsys, "cache", "verify")
    assert found["removed"] == ["0" * 64]
    assert [row["key"] for row in found["entries"]] == [entry.stem]
    _, printed, _ = run_command(capsys, "cache", "clear")
    assert printed.splitlines()[0] == "removed: 1 file"
    assert list(kept.iterdir()) == []
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


def test_command_caches_in_local_and_remote_folders(tmp_path, capsys, monkeypatch):
    (tmp_path / "m.py").write_text(MODEL)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("delegraph_workers.cache.sys.platform", "linux")
    far = f"file://{tmp_path}/far"
    words = [f"{tmp_path / 'm.py'}:made"]
    assert origins_after_lowering(capsys, *words, "--cache") == ["compiled"]
    assert len(list((tmp_path / "delegraph").iterdir())) == 1
    assert origins_after_lowering(
        capsys, *words, "--cache", tmp_path / "one", "--cache-remote", far
    ) == ["compiled"]
    assert origins_after_lowering(
        capsys, *words, "--cache", tmp_path / "two", "--cache-remote", far
    ) == ["from the cache"]
    assert origins_after_lowering(capsys, *words, "--cache-remote", far) == [
        "from the cache"
    ]


def test_unreadable_entries_are_kept_and_failed_removals_reported(
    tmp_path, capsys, monkeypatch
):
    """In a folder of many, ``verify`` removed entries that only their owners can read."""
    paths = [tmp_path / f"{k:064}.entry" for k in range(3)]
    for path in paths:
        path.write_bytes(write_entry(path, b'[{"backend": 7}]'))
    real = Path.read_bytes

    def read_bytes(path):
        if path == paths[0]:
            raise PermissionError(13, "Permission denied")
        if path == paths[1]:
            # another process removed it
            raise FileNotFoundError(2, "No such file or directory")
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    rows = run_for_json(capsys, "cache", "verify", "--cache", tmp_path)[1]["entries"]
    assert [row["damaged"] for row in rows] == [False] * 3
    assert {"backend": "7"} in [row["facts"] for row in rows]
    _, out, _ = run_command(capsys, "cache", "--cache", tmp_path)
    assert "  cannot be read: Permission denied\n" in out
    assert len(list(tmp_path.iterdir())) == 3
    real_unlink = Path.unlink

    def unlink(path, **options):
        if path == paths[0]:
            raise PermissionError(1, "Operation not permitted")
        real_unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", unlink)
    why = run_failing(
        capsys, "cache", "clear", "--cache", tmp_path, code=1, error="write-failed"
    )
    assert "1 of 3 files in" in why
    assert "Operation not permitted" in why
    assert list(tmp_path.iterdir()) == [paths[0]]


@pytest.mark.parametrize("command", ["accuracy", "compare", "profile"])
def test_all_commands_that_lower_have_cache_flags(command, tmp_path, capsys):
    (tmp_path / "m.py").write_text(MODEL)
    kept = tmp_path / "kept"
    code, _, _ = run_command(
        capsys,
        command,
        f"{tmp_path / 'm.py'}:made",
        "--backend",
        "tosa",
        "--cache",
        kept,
    )
    assert code == 0
    assert len(list(kept.iterdir())) == 1

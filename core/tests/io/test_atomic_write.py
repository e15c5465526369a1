"""Files are written whole or not at all, with the mode and target that ``cp`` would
use.
"""

import io
import os
import signal
import stat
import subprocess
import sys
import threading

import delegraph
import pytest
from delegraph.errors import ContractViolation, InputError, WriteError
from delegraph.io.atomic_write import expect_writable, write_whole


class Blob:
    def __init__(self, fails):
        self.fails = fails

    def __len__(self):
        return 4

    def write_to(self, file):
        file.write(b"ab")
        if self.fails:
            raise ContractViolation("contract-violation", "weights changed")
        file.write(b"cd")


def test_write_whole_replaces_the_file(tmp_path):
    write_whole(tmp_path / "a", b"old")
    write_whole(tmp_path / "a", Blob(fails=False))
    assert (tmp_path / "a").read_bytes() == b"abcd"


def test_new_files_get_the_mode_of_open(tmp_path, monkeypatch):
    (tmp_path / "by open").touch()
    monkeypatch.setattr(os, "umask", None)
    write_whole(tmp_path / "a", b"x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "by open").stat().st_mode


def test_failed_writes_keep_the_old_file_only(tmp_path):
    write_whole(tmp_path / "a", b"old")
    with pytest.raises(ContractViolation):
        write_whole(tmp_path / "a", Blob(fails=True))
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_unwritable_paths_raise_an_error(tmp_path):
    with pytest.raises(WriteError, match="cannot write .*: No such file"):
        write_whole(tmp_path / "missing" / "a", b"x")
    with pytest.raises(WriteError, match="Is a directory|directory"):
        (tmp_path / "d").mkdir()
        write_whole(tmp_path / "d", b"x")
    assert os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", b"a", 3, None, io.BytesIO()])
def test_paths_that_name_no_file_are_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for use in (
        lambda: write_whole(name, b"x"),
        lambda: expect_writable(name),
        lambda: delegraph.load(name),
    ):
        with pytest.raises(InputError, match="a path of a file is wanted, not "):
            use()

    assert os.listdir(tmp_path) == []


def test_symbolic_links_are_followed(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/a")
    for content in (b"new", b"newer"):  # the first time, nothing is there yet
        write_whole(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "a").read_bytes() == content
    assert os.listdir(tmp_path / "folder") == ["a"]


def test_links_that_lead_nowhere_are_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for write in (lambda path: write_whole(path, b"x"), expect_writable):
        with pytest.raises(WriteError, match="symbolic links"):
            write(tmp_path / "a")


def test_writes_and_failed_writes_keep_hard_links(tmp_path):
    (tmp_path / "a").write_bytes(b"a longer old content")
    os.link(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ContractViolation):
        write_whole(tmp_path / "a", Blob(fails=True))
    assert (tmp_path / "b").read_bytes() == b"a longer old content"

    write_whole(tmp_path / "a", Blob(fails=False))
    assert (tmp_path / "b").read_bytes() == b"abcd"
    assert (tmp_path / "a").samefile(tmp_path / "b")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o777])
def test_writes_keep_the_mode_from_the_first_byte(tmp_path, mode):
    class Watching(Blob):
        def write_to(self, file):
            super().write_to(file)
            seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))

    seen = []
    (tmp_path / "a").touch()
    (tmp_path / "a").chmod(mode)
    write_whole(tmp_path / "a", Watching(fails=False))

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode
    assert not seen[0] & ~mode


def test_read_only_files_in_writable_folders_are_refused(tmp_path, monkeypatch):
    write_whole(tmp_path / "a", b"old")
    # root may write everything
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "a")
    for write in (lambda path: write_whole(path, b"new"), expect_writable):
        with pytest.raises(WriteError, match="no permission"):
            write(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"old"


def test_another_process_may_remove_the_target(tmp_path, monkeypatch):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    access = os.access

    def access_after_removal(path, mode):
        target.unlink(missing_ok=True)
        return access(path, mode)

    monkeypatch.setattr("os.access", access_after_removal)
    write_whole(target, b"new")

    assert target.read_bytes() == b"new"


def test_another_process_may_replace_the_target(tmp_path, monkeypatch):
    target = tmp_path / "file"
    target.write_bytes(b"old")
    with target.open("rb") as opened:
        target.unlink()
        status_without_links = os.fstat(opened.fileno())
    target.write_bytes(b"of the other process")
    inode = target.stat().st_ino

    monkeypatch.setattr(
        "delegraph.io.atomic_write._status", lambda path: status_without_links
    )
    write_whole(target, b"new")

    assert target.read_bytes() == b"new"
    assert target.stat().st_ino != inode, "a new file, not written in place"


def test_pipes_can_be_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(
        target=lambda: read.append((tmp_path / "pipe").read_bytes())
    )
    reader.start()
    expect_writable(tmp_path / "pipe")
    write_whole(tmp_path / "pipe", Blob(fails=False))
    reader.join()

    assert read == [b"abcd"]
    assert os.listdir(tmp_path) == ["pipe"]


def test_devices_can_be_written():
    before = os.stat("/dev/null")
    expect_writable("/dev/null")
    write_whole("/dev/null", b"x")
    assert os.path.samestat(os.stat("/dev/null"), before)
    with pytest.raises(WriteError, match="No space left"):
        write_whole("/dev/full", b"x")


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_standard_output_is_written_at_its_position(tmp_path, mode):
    program = (
        "from delegraph.io.atomic_write import write_whole\n"
        "print(1, flush=True); write_whole('/dev/stdout', b'2\\n'); print(3)"
    )
    with open(tmp_path / "out", mode) as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "1\n2\n3\n"


def test_descriptor_paths_are_written_at_their_position(tmp_path):
    with open(tmp_path / "out", "wb", buffering=0) as file:
        file.write(b"1")
        write_whole(f"/dev/fd/{file.fileno()}", b"2")
        file.write(b"3")
    assert (tmp_path / "out").read_bytes() == b"123"


def test_file_names_may_have_any_length(tmp_path):
    write_whole(tmp_path / ("x" * 255), b"x")
    with pytest.raises(WriteError, match="too long"):
        write_whole(tmp_path / ("x" * 256), b"x")
    with pytest.raises(WriteError, match="too long"):
        expect_writable(tmp_path / ("x" * 256))
    assert os.listdir(tmp_path) == ["x" * 255]


KILLED = """
import os, signal, sys
from delegraph.io.atomic_write import write_whole

class Blob:
    def __len__(self): return 1
    def write_to(self, file):
        file.write(b"half")
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))

write_whole(sys.argv[1], Blob())
"""


def write_and_kill(path, by):
    program = [sys.executable, "-c", KILLED, path, by]
    assert subprocess.run(program).returncode == -getattr(signal, by)


@pytest.mark.parametrize("by", ["SIGTERM", "SIGKILL"])
def test_killed_writes_leave_the_old_file(tmp_path, by):
    (tmp_path / "old").write_bytes(b"old")
    for name in ("old", "new"):
        write_and_kill(tmp_path / name, by)
    assert (tmp_path / "old").read_bytes() == b"old"
    assert not (tmp_path / "new").exists()


def test_writes_remove_temporary_files_of_killed_ones_only(tmp_path):
    write_and_kill(tmp_path / "a", "SIGKILL")
    assert len(os.listdir(tmp_path)) == 1

    class Nested(Blob):
        """A blob that writes another file of the folder while it is written."""

        def write_to(self, file):
            write_whole(tmp_path / "b", b"inner")
            super().write_to(file)

    write_whole(tmp_path / "a", Nested(fails=False))
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert (tmp_path / "a").read_bytes() == b"abcd"


def test_threads_may_write_the_same_file(tmp_path):
    threads = [
        threading.Thread(target=write_whole, args=(tmp_path / "a", b"%d" % k * 1000))
        for k in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    content = (tmp_path / "a").read_bytes()

    assert len({*content}) == 1
    assert len(content) == 1000
    assert os.listdir(tmp_path) == ["a"]

"""A damaged installation costs only itself, whatever is wrong with the files that pip
wrote; nothing waits for them.
"""

import os
import re
import warnings

import delegraph
import pytest
from delegraph.discovery.entry_points import Status, discover
from delegraph.discovery.registry import Registry

from ..support.good_plugin import GOOD, GOOD_TARGET

ENTRIES = "entry_points.txt"


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def loop(path):
    path.unlink()
    path.symlink_to(path)


def folder_loop(path):
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    path.parent.symlink_to(path.parent)


def content(written):
    return lambda path: path.write_bytes(
        written if isinstance(written, bytes) else written.encode()
    )


def many(count):
    return content(
        "\n".join(["[delegraph]", *(f"p{k} = nothing" for k in range(count))])
    )


DAMAGES = {
    "another-name": (
        "METADATA",
        content("Name: good-one\nVersion: 9\n"),
        "that of 'good-one'; its folder is called 'an",
    ),
    "two-names": (
        "METADATA",
        content("Name: good-one\nName: two-names\n"),
        "METADATA is that of 'good-one'",
    ),
    "binary-metadata": (
        "METADATA",
        content(b"\x00\xff" * 100),
        "METADATA is no text: .+0xff",
    ),
    "endless-metadata": (
        "METADATA",
        content("x" * 2_000_000),
        "METADATA is larger than 1048576 bytes",
    ),
    "metadata-fifo": ("METADATA", fifo, "METADATA is no regular file"),
    "metadata-loop": ("METADATA", loop, "METADATA cannot be read: .+symbolic links"),
    "folder-loop": (
        ENTRIES,
        folder_loop,
        "entry_points.txt cannot be read: .+symbolic links",
    ),
    "entries-fifo": (ENTRIES, fifo, "entry_points.txt is no regular file"),
    "entries-loop": (
        ENTRIES,
        loop,
        "entry_points.txt cannot be read: .+symbolic links",
    ),
    "binary-entries": (
        ENTRIES,
        content(b"\xff\xfe[delegraph]\n"),
        "entry_points.txt is no text: .+0xff",
    ),
    "no-module": (
        ENTRIES,
        content("[delegraph]\nbad\n"),
        "a line that is no `name = module`, or is there twice: 'bad'",
    ),
    "twice": (
        ENTRIES,
        content("[delegraph]\na = b\na = c\n"),
        "a line that is no .+, or is there twice: 'a = c'",
    ),
    "unclosed-group": (
        ENTRIES,
        content("[delegraph\na = b\n"),
        r"without its closing bracket: '\[delegraph'",
    ),
    "200000-entries": (
        ENTRIES,
        many(200_000),
        "entry_points.txt is larger than 1048576 bytes",
    ),
    "101-entries": (
        ENTRIES,
        many(101),
        "has 101 entry points for delegraph, more than 100",
    ),
}
"""Distribution -> (the file that is damaged, how, what is said of it)."""


@pytest.fixture
def damaged(site):
    """An installation folder with a good plugin, and one of each damage, which would
    print if it was imported.
    """
    (site.folder / "good_target.py").write_text(GOOD_TARGET)
    site.plugin("good-one", GOOD)
    for name, (file, damage, _) in DAMAGES.items():
        site.plugin(name, "raise SystemExit('it was imported')", version="0.7")
        damage(site.folder / f"{name.replace('-', '_')}-0.7.dist-info" / file)
    return site


def test_each_is_a_row_and_the_good_one_works(damaged):
    registry = Registry()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", delegraph.DelegraphWarning)
        records = {r.distribution: r for r in registry.plugins()}
    for name, (_, _, error) in DAMAGES.items():
        record = records[name]
        assert (record.name, record.version, record.status) == (
            name,
            "0.7",
            Status.BROKEN,
        )
        assert re.search(f"^its installation is damaged: .*{error}", record.error), (
            record.error
        )
        assert (
            record.hint
            == f"reinstall {name}, or remove what is left of it; to go on without it,"
            f" set DELEGRAPH_DISABLE_PLUGINS={name}"
        )
    assert records["good-one"].status is Status.OK
    assert registry.get_backend("good").__name__ == "GoodBackend"


def test_the_variables_are_asked_before_metadata_is_read(damaged, monkeypatch):
    read = []
    monkeypatch.setattr(
        "delegraph.discovery.entry_points.head",
        lambda d: read.append(d) or pytest.fail("METADATA was read"),
    )
    records = {
        r.distribution: r
        for r in discover(environ={"DELEGRAPH_PLUGINS": "nothing-here"}).records
    }
    assert {records[name].status for name in (*DAMAGES, "good-one")} == {
        Status.DISABLED
    }
    assert read == []


def test_all_of_them_disabled(damaged):
    records = {
        r.distribution: r
        for r in discover(
            environ={"DELEGRAPH_DISABLE_PLUGINS": ",".join(DAMAGES)}
        ).records
    }
    assert {records[name].status for name in DAMAGES} == {Status.DISABLED}
    assert records["good-one"].status is Status.OK


def test_no_metadata_speaks_for_an_allowed_distribution(site):
    site.plugin("impostor", "raise SystemExit('it was imported')")
    content("Name: good-one\nVersion: 1\n")(
        site.folder / "impostor-1.0.dist-info" / "METADATA"
    )
    records = {
        r.distribution: r
        for r in discover(environ={"DELEGRAPH_PLUGINS": "good-one"}).records
    }
    assert records["impostor"].status is Status.DISABLED


def test_what_is_not_ours_is_not_reported(site):
    for name, text in (
        ("odd", b"\xff\xfe[console_scripts]"),
        ("half", b"[console_scripts\nx"),
        ("bare", b"x"),
    ):
        site.plugin(name, "")
        (site.folder / f"{name}-1.0.dist-info" / ENTRIES).write_bytes(text)
    assert {"odd", "half", "bare"}.isdisjoint(
        r.distribution for r in discover().records
    )


def test_a_readme_is_no_part_of_the_head(site):
    site.plugin("wordy", "")
    head = b"Metadata-Version: 2.1\r\nName: wordy\r\nVersion: 3\r\n\r\n"
    (site.folder / "wordy-1.0.dist-info" / "METADATA").write_bytes(
        head + b"Version: 4\xff\n" * 200_000
    )
    (record,) = (r for r in discover().records if r.distribution == "wordy")
    assert (record.version, record.status) == ("3", Status.OK)

"""A damaged distribution does not affect other distributions."""

import warnings

import delegraph
import pytest
from delegraph.discovery.installed import discover
from delegraph.discovery.records import Status
from delegraph.discovery.registry import Registry

from ..support.good_plugin import GOOD, GOOD_TARGET

DAMAGES = {
    "binary-entries": b"\xff\xfe[delegraph]\n",
    "no-module": b"[delegraph]\nbad = -\n",
    "no-value": b"[delegraph]\nbad\n",
}
"""Distribution -> the content of its entry_points.txt."""


def install(site, name, entry_points):
    site.plugin(name, "raise SystemExit('it was imported')", version="0.7")
    folder = site.folder / f"{name.replace('-', '_')}-0.7.dist-info"
    (folder / "entry_points.txt").write_bytes(entry_points)


@pytest.fixture
def damaged(site):
    """An installation folder with a good plugin, and a plugin with each kind of damage."""
    (site.folder / "good_target.py").write_text(GOOD_TARGET)
    site.plugin("good-one", GOOD)
    for name, entry_points in DAMAGES.items():
        install(site, name, entry_points)
    return site


def test_damaged_plugins_are_listed_and_a_good_one_works(damaged):
    registry = Registry()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", delegraph.DelegraphWarning)
        records = {r.distribution: r for r in registry.plugins()}
    for name in DAMAGES:
        record = records[name]
        assert record.version == "0.7"
        assert record.status == Status.BROKEN
        assert "its installation is damaged: entry_points.txt" in record.error
        assert record.hint.startswith(f"reinstall {name}; to go on without it")

    assert records["good-one"].status is Status.OK
    assert registry.get_backend("good").__name__ == "GoodBackend"


def test_foreign_distributions_with_damaged_files_are_not_listed(site):
    foreign = {
        "odd": b"\xff\xfe[console_scripts]",
        "half": b"[console_scripts\nx",
        "bare": b"x",
    }
    for name, entry_points in foreign.items():
        install(site, name, entry_points)
    listed = {record.distribution for record in discover()}

    assert listed.isdisjoint(foreign)


def test_discovery_does_not_read_metadata(site):
    site.plugin("wordy", "")
    (site.folder / "wordy-1.0.dist-info" / "METADATA").write_bytes(b"\xff" * 1000)
    (record,) = (r for r in discover() if r.distribution == "wordy")
    assert record.version == "1.0"
    assert record.status == Status.OK


def test_an_uninstalled_plugin_is_not_found(site):
    site.backend("good-one", "npu")
    assert "npu" in [info.name for info in Registry().backends()]
    (site.folder / "good_one-1.0.dist-info" / "entry_points.txt").unlink()
    assert "npu" not in [info.name for info in Registry().backends()]

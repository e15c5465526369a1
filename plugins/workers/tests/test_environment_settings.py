"""Settings name environments; faults in them disable only their own backend."""

import importlib.metadata
import json
import re
import sys

import delegraph
import pytest
import torch
from delegraph.discovery.registry import Registry
from delegraph.errors import (
    DelegraphWarning,
    PluginConflict,
    PluginUnavailable,
)
from delegraph_tosa.format import TosaFormat
from delegraph_workers import (
    config,
    describe,
    plugin,
)
from delegraph_workers.message import PROTOCOL
from torch import nn

from core.tests.support.registries import registry_of


@pytest.fixture
def description_of_tosa():
    """Return what an environment with TOSA tells about it."""
    # before there are settings, which this process would follow
    return describe.describe("tosa")


@pytest.fixture
def registry_from_settings(tmp_path, monkeypatch):
    """Return a function from the text of settings to a registry that follows them."""
    monkeypatch.setenv("DELEGRAPH_CONFIG", str(tmp_path / "delegraph.toml"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def make_registry(text):
        (tmp_path / "delegraph.toml").write_text(text)
        plugin.described.cache_clear()
        return Registry()

    yield make_registry
    plugin.described.cache_clear()


def write_script(path, *lines):
    """Write an executable shell script, which stands in for a Python."""
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o700)
    return path


def row_of(registry, name):
    """Return the row of a backend in the list of all backends."""
    return next(backend for backend in registry.backends() if backend.name == name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[backends."a b"]\npython = "/bin/python"', "'a b'.* is ignored"),
        (
            '[[backends]]\npython = "/bin/python"',
            "backends is ignored, because it is a list",
        ),
        ('[backend.a]\npython = "/bin/python"', "table or key 'backend' is ignored"),
        ('backends = "a"', "backends is ignored, because it is a str"),
    ],
)
def test_wrong_settings_are_ignored_with_a_warning(text, why, tmp_path):
    with pytest.warns(DelegraphWarning, match=why):
        assert config.read_settings(text, tmp_path / "delegraph.toml") == []


def test_settings_that_are_no_toml_name_the_file(tmp_path):
    with pytest.raises(config.BadSettings, match="delegraph.toml: "):
        config.read_settings("[backends", tmp_path / "delegraph.toml")


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ('python = "python"', "the table needs python = "),
        ("python = 3", "the table needs python = "),
        ('python = "~/env/bin/python"', "the table needs python = "),
        ('python = "/bin/python"\nshell = "x"', "unknown key 'shell'"),
    ],
)
def test_a_wrong_table_disables_only_its_backend(
    table, why, description_of_tosa, registry_from_settings, tmp_path, monkeypatch
):
    read_description = config.description_of
    monkeypatch.setattr(
        plugin,
        "description_of",
        lambda setting: (
            description_of_tosa if setting.name == "well" else read_description(setting)
        ),
    )
    monkeypatch.setattr(plugin, "is_installed", lambda distribution: False)

    registry = registry_from_settings(
        f'[backends.wrong]\n{table}\n[backends.well]\npython = "{sys.executable}"\n'
    )

    wrong = row_of(registry, "wrong")
    assert wrong.status == "unavailable"
    assert why in wrong.error
    settings = tmp_path / "delegraph.toml"
    assert wrong.location.startswith(f"[backends.wrong] of {settings}")
    # a conflict only because TOSA is installed in this environment, too
    assert row_of(registry, "well").status in ("ok", "conflict")


def test_settings_files_writable_by_others_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "delegraph.toml"
    path.write_text("")
    path.chmod(0o666)
    monkeypatch.setenv("DELEGRAPH_CONFIG", str(path))
    with pytest.raises(
        config.BadSettings, match="other users own it or can write to it"
    ):
        config.settings()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "No such file"),
        ("exit 1", "does not describe 'far'"),
        ("echo hello; echo '[1]'", r"\[1\]"),
    ],
    ids=["no Python", "no answer", "a wrong answer"],
)
def test_an_environment_that_does_not_answer_is_unavailable(
    answer, why, registry_from_settings, tmp_path
):
    """The error names the environment and its table in the settings."""
    python = tmp_path / "python"
    if answer is not None:
        write_script(python, answer)
    table = f"[backends.far] of {tmp_path / 'delegraph.toml'}"
    hint = f"or change or remove [backends.far] in {tmp_path / 'delegraph.toml'}"

    registry = registry_from_settings(f'[backends.far]\npython = "{python}"\n')

    with pytest.raises(PluginUnavailable, match=why) as error:
        registry.get_backend("far")
    assert "another environment that cannot be used" in error.value.message
    assert error.value.hint == f"mend that environment, {hint}"
    row = row_of(registry, "far")
    assert row.status == "unavailable"
    assert re.search(why, row.error)
    assert row.location.startswith(f"{table}: ")


@pytest.mark.parametrize(
    ("protocol", "fields", "version"),
    [(2, {"workers": "9.0"}, "9.0"), (0, {}, "of an unknown version")],
)
def test_an_environment_with_another_protocol_is_unavailable(
    protocol, fields, version, tmp_path, monkeypatch
):
    """The error has both versions, so that the user knows which one to install."""
    description = json.dumps({"protocol": protocol, "path": [], **fields})
    python = write_script(tmp_path / "python", f"echo '{description}'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(
        plugin, "settings", lambda: [config.Setting("far", str(python), "far")]
    )
    plugin.described.cache_clear()
    registry = registry_of("delegraph-workers")

    (row,) = registry.backends()
    plugin.described.cache_clear()

    version_here = importlib.metadata.version("delegraph-workers")
    assert not row.usable
    assert row.error.endswith(
        f"{python}: its delegraph-workers {version} has protocol {protocol}, but"
        f" delegraph-workers {version_here} of this environment has protocol 1;"
        " install the same version in both environments"
    )
    with pytest.raises(PluginUnavailable, match=f"has protocol {protocol}"):
        delegraph.lower(
            nn.ReLU(), (torch.ones(1),), backends=["far"], registry=registry
        )


def test_plugins_disabled_here_work_in_another_environment(
    registry_from_settings, tmp_path, monkeypatch
):
    """To disable a plugin here is the way out of a conflict with that environment."""
    monkeypatch.setenv("DELEGRAPH_DISABLE_PLUGINS", "delegraph-tosa")
    monkeypatch.setenv("DELEGRAPH_PLUGINS", "delegraph-workers")
    variables = tmp_path / "variables"
    python = write_script(tmp_path / "python", f"env > {variables}; echo '{{}}'")
    registry = registry_from_settings(
        f'[backends.far]\npython = "{python}"\nbackend = "tosa"\n'
    )

    assert "in an unknown form" in row_of(registry, "far").error  # the script ran

    assert "DELEGRAPH_CONFIG" in variables.read_text()
    assert "PLUGINS" not in variables.read_text()


@pytest.fixture
def registry_with_conflict(description_of_tosa, registry_from_settings, monkeypatch):
    """Return a registry with TOSA of this environment and of another one."""
    monkeypatch.setattr(plugin, "description_of", lambda setting: description_of_tosa)
    return registry_from_settings(
        f'[backends.far]\npython = "{sys.executable}"\nbackend = "tosa"\n'
    )


def test_a_backend_in_both_environments_is_a_conflict(registry_with_conflict, tmp_path):
    settings = tmp_path / "delegraph.toml"

    with pytest.raises(
        PluginConflict, match="2 plugins offer a backend 'TOSABackend'"
    ) as error:
        registry_with_conflict.get_backend("TOSABackend")

    place = f"([backends.far] of {settings}: {sys.executable})"
    assert f"delegraph-workers 0.1.0 {place}" in error.value.message
    assert error.value.hint.endswith(
        f"; or change or remove [backends.far] in {settings}"
    )
    row = row_of(registry_with_conflict, "far")
    assert row.status == "conflict"
    assert row.error == error.value.message
    assert row.hint == error.value.hint


def test_file_formats_of_this_environment_come_first(registry_with_conflict):
    assert registry_with_conflict.get_format("a.tosa") is TosaFormat


def test_environments_do_not_query_themselves(tmp_path, monkeypatch):
    """The user's settings are valid in the other environment, too.

    They name that environment itself, so it could query itself without end.
    """
    queries = tmp_path / "queries"
    python = tmp_path / "python"
    write_script(
        python,
        f"echo query >> {queries}",
        f"[ $(wc -l < {queries}) -lt 5 ] || exit 3",
        f'exec {sys.executable} "$@"',
    )
    folder = tmp_path / "config" / "delegraph"
    folder.mkdir(parents=True)
    (folder / "delegraph.toml").write_text(
        f'[backends.far]\npython = "{python}"\nbackend = "nobody"\n'
    )
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("DELEGRAPH_CONFIG", raising=False)
    monkeypatch.delenv("DELEGRAPH_PLUGINS", raising=False)
    (setting,) = config.settings()

    with pytest.raises(config.BadSettings, match="no backend 'nobody'"):
        config.description_of(setting)

    assert queries.read_text() == "query\n"


@pytest.mark.parametrize(
    "description",
    [{}, {"protocol": "1", "path": []}, {"protocol": PROTOCOL, "path": 3}],
)
def test_descriptions_in_an_unknown_form_are_refused(
    description, tmp_path, monkeypatch
):
    python = tmp_path / "python"
    write_script(python, f"echo '{json.dumps(description)}'")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    with pytest.raises(config.BadSettings, match="in an unknown form"):
        config.description_of(config.Setting("far", str(python), "far"))


@pytest.fixture
def config_home(tmp_path, monkeypatch):
    """Return the working directory, which has settings as a config folder would."""
    (tmp_path / "delegraph").mkdir()
    (tmp_path / "delegraph/delegraph.toml").write_text(
        f'[backends.far]\npython = "{sys.executable}"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DELEGRAPH_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(config.sys, "platform", "linux")
    return tmp_path


@pytest.mark.parametrize("relative", [".", "./", ""])
def test_relative_config_folders_are_not_read(relative, config_home, monkeypatch):
    """Settings name executables, which must not come from the working directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", relative)

    assert config.settings() == []


def test_absolute_config_folders_are_read(config_home, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config_home))

    assert [setting.name for setting in config.settings()] == ["far"]


def test_variables_of_this_interpreter_are_not_passed_on(tmp_path, monkeypatch):
    """They would make the other interpreter import modules of this environment."""
    for variable in (
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONEXECUTABLE",
        "DELEGRAPH_PLUGINS",
    ):
        monkeypatch.setenv(variable, "/of/this/one")
    monkeypatch.setenv("LICENCE", "theirs")

    variables = config.variables_for_other(tmp_path)

    assert "/of/this/one" not in variables.values()
    assert variables["LICENCE"] == "theirs"

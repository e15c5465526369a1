"""``delegraph doctor`` reports plugins, commands and runtimes that do not work."""

import json
from pathlib import Path

import jsonschema
import pytest
from delegraph.discovery.records import Status
from delegraph.discovery.registry import Registry
from delegraph.errors import NoRuntime
from delegraph.runtime import BackendRuntime
from delegraph_devkit.doctor import examine

from core.tests.conftest import EchoBackend, EchoRuntime, site
from core.tests.support.processes import run_python

__all__ = ["site"]
SCHEMA = json.loads((Path(__file__).parents[4] / "docs/schema.json").read_text())


def test_doctor_examines_targets(site, monkeypatch):
    # no other plugins: each needs an import of torch
    monkeypatch.setenv("DELEGRAPH_PLUGINS", "hollow,good-one,idle")
    site.backend("hollow", "hollow", target="no_such_module:HollowBackend")
    site.backend("good-one", "good")
    site.plugin("idle", "")
    report = examine(Registry())
    rows = {r.name: r for r in report.plugins}
    assert not report.healthy
    assert rows["hollow"].status is Status.BROKEN
    assert "No module named 'no_such_module'" in rows["hollow"].problems[0].error
    assert rows["hollow"].problems[0].hint
    assert rows["good"].status is Status.OK
    assert [w.error for w in rows["idle"].warnings] == ["it declares nothing"]
    assert "hollow 1.0" in str(report)


def runtime(available):
    class Runtime(BackendRuntime):
        @staticmethod
        def is_available():
            if isinstance(available, Exception):
                raise available
            return available

    return Runtime


@pytest.mark.parametrize(
    "available, status, text",
    [
        (False, "ok", "warning: EchoRuntime cannot run programs on this host"),
        (
            NoRuntime("no-runtime", "no device", hint="plug it in"),
            "ok",
            "no device\n  hint: plug it in",
        ),
        (ValueError("a defect"), "broken", "EchoRuntime raised ValueError: a defect"),
    ],
)
def test_doctor_reports_why_programs_cannot_run(available, status, text, monkeypatch):
    monkeypatch.setattr(EchoRuntime, "is_available", runtime(available).is_available)
    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=EchoRuntime)
    report = examine(registry)
    assert text in str(report)
    assert report.plugins[0].status.value == status


def test_doctor_reports_missing_and_broken_plugins(site):
    site.backend("chip-vendor", "npu")
    only = {"DELEGRAPH_PLUGINS": "chip-vendor,bad-one,devkit"}
    completed = run_python("-m", "delegraph", "doctor", path=site.folder, **only)
    assert (
        "DELEGRAPH_PLUGINS names 'bad-one', which is not installed" in completed.stdout
    )
    assert completed.returncode == 0
    site.plugin("bad-one", "raise ValueError('no luck')")
    completed = run_python(
        "-m", "delegraph", "doctor", "--json", path=site.folder, **only
    )
    assert completed.returncode == 1
    found = json.loads(completed.stdout)
    jsonschema.validate(found, SCHEMA)
    rows = {p["name"]: p for p in found["plugins"]}
    assert rows["npu"]["status"] == "ok"
    assert rows["bad-one"]["status"] == "broken"
    assert rows["bad-one"]["location"] == str(site.folder / "bad_one.py")


COMMAND = """
from delegraph.plugin import CommandSpec, hookimpl

@hookimpl
def delegraph_commands():
    return [CommandSpec({name!r}, "{module}_command:Command"{fields})]
"""
TARGET = """
class Command:
    @staticmethod
    def add_arguments(parser): ...
    @staticmethod
    def run(args): ...
"""


def examine_commands(site, *plugins):
    """Print the report on plugins with one command each.

    A plugin is (distribution, name of the command, further fields of the declaration,
    source of the target's module).
    """
    for distribution, name, fields, target in plugins:
        module = distribution.replace("-", "_")
        site.plugin(
            distribution, COMMAND.format(name=name, module=module, fields=fields)
        )
        (site.folder / f"{module}_command.py").write_text(target)
    only = ",".join(plugin[0] for plugin in plugins)
    return run_python(
        "-m", "delegraph_devkit.doctor", path=site.folder, DELEGRAPH_PLUGINS=only
    )


def test_commands_are_imported_and_listed(site):
    shown = examine_commands(
        site,
        ("acme-npu", "measure", "", TARGET),
        ("acme-tpu", "count", "", "import absent_module"),
    )
    assert shown.returncode == 1
    assert "  commands: measure\n" in shown.stdout
    assert (
        "problem: command 'acme_tpu_command:Command' of acme-tpu 1.0 cannot be loaded"
        in shown.stdout
    )


def test_a_command_without_its_modules_is_a_warning(site):
    fields = ", requires=('absent_module',), install_hint='pip install acme-sdk'"
    shown = examine_commands(site, ("acme-npu", "measure", fields, TARGET))
    assert shown.returncode == 0
    assert "hint: pip install acme-sdk" in shown.stdout


def test_commands_of_one_name_are_noted_with_their_owners(site):
    shown = examine_commands(
        site,
        ("acme-npu", "measure", "", TARGET),
        ("acme-tpu", "measure", "", TARGET),
        ("acme-xpu", "backends", "", TARGET),
    )
    assert "call it as acme-npu/measure" in shown.stdout
    assert (
        "has a command 'backends', and so has delegraph itself; call it as"
        " acme-xpu/backends" in shown.stdout
    )


def test_declarations_for_absent_backends_are_noted(site, monkeypatch):
    site.plugin(
        "simulator",
        """
        from delegraph.plugin import RuntimeSpec, hookimpl
        @hookimpl
        def delegraph_runtimes(): return [RuntimeSpec("absent", "collections:OrderedDict")]
        """,
    )
    monkeypatch.setenv("DELEGRAPH_PLUGINS", "simulator,tipo")
    assert examine(Registry()).notes == (
        "DELEGRAPH_PLUGINS names 'tipo', which is not installed",
        "simulator 1.0 declares a runtime of 'absent', which is not installed",
    )


def test_the_lines_that_lead_to_a_heavy_import_are_shown(site):
    (site.folder / "arrays_of_it.py").write_text("\nimport numpy.linalg")
    site.plugin("heavy", "import json\nimport arrays_of_it")
    completed = run_python(
        "-m", "delegraph_devkit.doctor", path=site.folder, DELEGRAPH_PLUGINS="heavy"
    )
    where = f"({site.folder / 'heavy.py'}:2 -> {site.folder / 'arrays_of_it.py'}:2)"
    assert (
        f"its light module imports numpy, which slows every listing down {where}"
        in completed.stdout
    )


def test_a_backend_that_requires_torch_does_not_import_it(site):
    site.backend("needy", "needy", requires=("torch",))
    completed = run_python(
        "-m", "delegraph_devkit.doctor", path=site.folder, DELEGRAPH_PLUGINS="needy"
    )
    assert "imports torch" not in completed.stdout
    assert completed.returncode == 0

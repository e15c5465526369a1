"""Faults of plugins, one row each: doctor explains them, and other plugins work.

Each row is an installation folder with a good plugin and a bad one. This process lists
both and lowers with the good one. Another process runs ``delegraph doctor``.
"""

import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import delegraph
import pytest
import torch
from delegraph.discovery.records import Status
from delegraph.discovery.registry import Registry

from core.tests.conftest import site
from core.tests.support.good_plugin import GOOD, GOOD_TARGET

__all__ = ["site"]

HOOK = """
from delegraph.plugin import BackendSpec, PartitionerSpec, QuantizerSpec, RuntimeSpec, hookimpl

@hookimpl
def {hook}({arguments}):
    return {answer}
"""


@dataclass(frozen=True)
class Row:
    """``install`` writes the bad plugin. ``error`` and ``hint`` are patterns for the
    report of doctor.
    """

    install: Callable[..., None]
    error: str
    hint: str
    status: Status = Status.BROKEN
    listed: Status | None = None
    """The status in the listing, which imports no targets, if it is not ``status``."""
    distributions: tuple[str, ...] = ("bad-one",)
    variables: dict[str, str] = field(default_factory=dict)


def plugin_with_source(source):
    return lambda site: site.plugin("bad-one", source, version="0.7")


def plugin_answering(answer, hook="delegraph_backends", arguments=""):
    return plugin_with_source(
        HOOK.format(hook=hook, answer=answer, arguments=arguments)
    )


def backend_with_target(source, name="BadBackend"):
    """Return the installation of a backend with its target in another module."""

    def install(site):
        (site.folder / "bad_target.py").write_text(source)
        plugin_answering(f"[BackendSpec('bad', 'bad_target:{name}', 'BadBackend', 1)]")(
            site
        )

    return install


def two_of_one_backend(site):
    for version, distribution in (("0.7", "bad-one"), ("0.8", "bad-two")):
        source = HOOK.format(
            hook="delegraph_backends",
            arguments="",
            answer="[BackendSpec('npu', 'a:B', 'B', 1)]",
        )
        site.plugin(distribution, source, version=version)


def two_of_one_entry_point(site):
    site.plugin("bad-one", "", version="0.7", name="npu")
    site.plugin("bad-two", "", version="0.8", name="npu")


def two_copies(site):
    plugin_with_source("")(site)
    copy = type(site)(site.folder.parent / "copy")
    copy.plugin("bad-one", "raise SystemExit('the second copy')", version="0.6")
    sys.path.append(str(copy.folder))


def plugin_requiring(requirement):
    def install(site):
        plugin_answering(
            "[BackendSpec('bad', 'bad_target:BadBackend', 'BadBackend', 1)]"
        )(site)
        (site.folder / "bad_target.py").write_text(
            GOOD_TARGET.replace("GoodBackend", "BadBackend")
        )
        with open(site.folder / "bad_one-0.7.dist-info" / "METADATA", "a") as file:
            file.write(f"Requires-Dist: {requirement}\n")

    return install


UNSHOWABLE = """
class Odd(Exception):
    def __str__(self):
        raise ValueError

raise Odd
"""
FORGO = r"to go on without it, set DELEGRAPH_DISABLE_PLUGINS=bad-one$"
KIND = (
    "for the authors of bad-one: a backend is a subclass of"
    " delegraph.backend.BackendDetails"
)
ROWS = {
    "import error": Row(
        plugin_with_source("import a_module_that_nobody_has"),
        r"ModuleNotFoundError: No module named 'a_module_that_nobody_has'"
        r" \(.+bad_one\.py:1\)",
        "install what provides 'a_module_that_nobody_has'.+BackendSpec.requires; "
        + FORGO,
    ),
    "light module that is not there": Row(
        lambda site: site.metadata("bad-one", "bad-one = bad_one_that_is_gone", "0.7"),
        "No module named 'bad_one_that_is_gone'",
        "reinstall bad-one",
    ),
    "syntax error": Row(
        plugin_with_source("x = 1\ndef (:"),
        r"SyntaxError: invalid syntax.+bad_one\.py.+2",
        r"reinstall bad-one, in a version that is written for Python"
        rf" 3\.{sys.version_info.minor}; " + FORGO,
    ),
    "SystemExit at import": Row(
        plugin_with_source("\nraise SystemExit(3)"),
        r"SystemExit: 3 \(.+bad_one\.py:2\)",
        "must not exit; " + FORGO,
    ),
    "wrong api": Row(
        plugin_answering("[BackendSpec('bad', 'a:B', 'B', 99)]"),
        "backend 'bad' was written for plugin API 99; this delegraph has plugin API 1",
        "upgrade delegraph",
        Status.INCOMPATIBLE,
    ),
    "duplicate backend name": Row(
        two_of_one_backend,
        r"2 plugins offer a backend 'npu': bad-one 0\.7 \(.+bad_one\.py\) and bad-two"
        r" 0\.8 \(.+bad_two\.py\)",
        "ask for 'bad-one/npu' or 'bad-two/npu', or set DELEGRAPH_DISABLE_PLUGINS to"
        " one of the distributions",
        Status.CONFLICT,
        distributions=("bad-one", "bad-two"),
    ),
    "one entry-point name in two distributions": Row(
        two_of_one_entry_point,
        r"the entry point 'npu' is also one of bad-(one 0\.7|two 0\.8)"
        r" \(.+bad_(one|two)\.py\)",
        r"write bad-(one|two)/npu",
        Status.OK,
        distributions=("bad-one", "bad-two"),
    ),
    "misspelt hook": Row(
        plugin_answering("[]", hook="delegraph_backend"),
        "there is no hook 'delegraph_backend'; did you mean 'delegraph_backends'?",
        "for the authors of bad-one: rename it; the hooks are delegraph_backends, .+; "
        + FORGO,
    ),
    "hook without its mark": Row(
        plugin_with_source("def delegraph_backends(): return []"),
        "delegraph_backends lacks the decorator @hookimpl",
        "put delegraph.plugin.hookimpl on it; " + FORGO,
    ),
    "hook with a wrong argument": Row(
        plugin_answering("[]", arguments="wrong"),
        "'wrong'.+are declared in the hookimpl but can not be found in the hookspec",
        "give the hook the arguments that it has in delegraph.plugin.Hooks; " + FORGO,
    ),
    "hook that returns None": Row(
        plugin_answering("None"),
        r"delegraph_backends returned None \(NoneType\); it returns a list of"
        " BackendSpec",
        r"return \[BackendSpec\(\.\.\.\)\], a list even for one; " + FORGO,
    ),
    "hook that returns a string": Row(
        plugin_answering("'tosa'"),
        r"delegraph_backends returned 'tosa' \(str\); it returns a list of BackendSpec",
        r"return \[BackendSpec\(\.\.\.\)\], a list even for one; " + FORGO,
    ),
    "hook that returns a foreign object": Row(
        plugin_answering("[object]"),
        "delegraph_backends returned a list with <class 'object'>",
        "declare it with delegraph.plugin.BackendSpec, which names the object by its"
        " target; " + FORGO,
    ),
    "missing target": Row(
        backend_with_target("class BadBackends: ..."),
        r"backend 'bad_target:BadBackend' of bad-one 0\.7 cannot be loaded: "
        r"module 'bad_target' \(.+bad_target\.py\) has no 'BadBackend'; did you mean"
        r" 'BadBackends'\?",
        "name what the module has; or reinstall bad-one; " + FORGO,
        listed=Status.OK,
    ),
    "target whose module is not there": Row(
        plugin_answering(
            "[BackendSpec('bad', 'bad_one.gone:BadBackend', 'BadBackend', 1)]"
        ),
        r"backend 'bad_one.gone:BadBackend' of bad-one 0\.7 cannot be loaded:"
        r" ModuleNotFoundError",
        "reinstall bad-one",
        listed=Status.OK,
    ),
    "target of the wrong kind": Row(
        backend_with_target("class BadBackend: ..."),
        r"is no subclass of delegraph\.backend\.BackendDetails but type <class"
        r" 'bad_target\.BadBackend'> of .+\.py$",
        KIND + ".+; " + FORGO,
        listed=Status.OK,
    ),
    "light module that ends the process": Row(
        plugin_with_source("import os\n\nos._exit(0)"),
        r"^os\._exit\(0\) was called \(.+bad_one\.py:3\)$",
        "must not exit; " + FORGO,
    ),
    "target that ends the process": Row(
        backend_with_target("import os\n\nos._exit(0)"),
        r"^backend 'bad_target:BadBackend' of bad-one 0\.7 cannot be loaded: "
        r"os\._exit\(0\) was called \(.+bad_target\.py:3\)$",
        "must not exit; " + FORGO,
        listed=Status.OK,
    ),
    "target that crashes the interpreter": Row(
        backend_with_target("import ctypes\n\nctypes.string_at(0)"),
        r"^importing bad_target:BadBackend killed the process \(Segmentation fault\)"
        r" \(.+bad_target\.py:3\)$",
        "upgrade bad-one or tell its authors; " + FORGO,
        listed=Status.OK,
    ),
    "missing required module": Row(
        plugin_answering(
            "[BackendSpec('bad', 'a:B', 'B', 1, requires=('nobody_has_it',),"
            " install_hint='pip install bad-one[sdk]')]"
        ),
        "backend 'bad' needs 'nobody_has_it', which is not installed",
        r"^pip install bad-one\[sdk\]$",
        Status.UNAVAILABLE,
    ),
    "missing required module of one backend, and a usable format": Row(
        plugin_with_source(
            HOOK.format(
                hook="delegraph_backends",
                arguments="",
                answer="[BackendSpec('bad', 'a:B', 'B', 1, requires=('no_one',))]",
            )
            + "@hookimpl\ndef delegraph_formats():\n    from delegraph.plugin import"
            " FormatSpec\n"
            + "    return [FormatSpec('.bad', 'delegraph.formats:ProgramFormat')]\n"
        ),
        "backend 'bad' needs 'no_one', which is not installed",
        "install what provides no_one",
        Status.OK,
    ),
    "missing required module of a runtime": Row(
        plugin_answering(
            "[RuntimeSpec('bad', 'a:R', requires=('nobody_has_it',))]",
            hook="delegraph_runtimes",
        ),
        "the runtime of 'bad' needs nobody_has_it, which is not installed: it compiles"
        " and cannot run here",
        "install nobody_has_it",
        Status.OK,
    ),
    "missing required module of a quantizer": Row(
        plugin_answering(
            "[QuantizerSpec('bad', 'a:Q', requires=('nobody_has_it',),"
            " install_hint='pip install bad-one[quantize]')]",
            hook="delegraph_quantizers",
        ),
        "the quantizer of 'bad' needs nobody_has_it, which is not installed: it"
        " compiles models that are quantized already",
        r"^pip install bad-one\[quantize\]$",
        Status.OK,
    ),
    "declaration that imports torch": Row(
        plugin_with_source("import torch"),
        r"its light module imports torch, which slows every listing down"
        r" \(.+bad_one\.py:1\)",
        "for its authors: import it in the modules that the targets name",
        Status.OK,
    ),
    "duplicate metadata on sys.path": Row(
        two_copies,
        r"a second copy at .+copy \(0\.6\) is not used: the first on the path counts",
        "remove one of them, as with: python -m pip uninstall bad-one",
        Status.OK,
    ),
    "exception that cannot be shown": Row(
        plugin_with_source(UNSHOWABLE),
        r"^Odd: its message cannot be shown, as that raises ValueError"
        r" \(.+bad_one\.py:6\)$",
        "reinstall or upgrade bad-one, or tell its authors; " + FORGO,
    ),
    "exception with an odd name": Row(
        plugin_with_source("raise ModuleNotFoundError('gone', name=7)"),
        r"^ModuleNotFoundError: gone \(.+bad_one\.py:1\)$",
        "reinstall or upgrade bad-one, or tell its authors; " + FORGO,
    ),
    "target that cannot be shown": Row(
        backend_with_target(
            "class Odd:\n    def __repr__(self): raise ValueError('shy')\n\nBadBackend"
            " = Odd()"
        ),
        r"cannot be loaded: ValueError: shy \(.+bad_target\.py:2\)",
        FORGO,
        listed=Status.OK,
    ),
    "light module that is slow": Row(
        plugin_with_source("import time; time.sleep(0.6)"),
        r"^its light module took \d+\.\d s to import, which slows every listing down$",
        "for its authors: do the work in the modules that the targets name",
        Status.OK,
    ),
    "light module that prints": Row(
        plugin_with_source("import os; os.write(2, b'hello')"),
        "^its light module prints when it is imported$",
        "for the authors of bad-one",
        Status.OK,
    ),
    "requirement that is not met": Row(
        plugin_requiring("delegraph>=99"),
        rf"^it requires delegraph>=99, and {re.escape(delegraph.__version__)} is"
        r" installed$",
        "^python -m pip install 'delegraph>=99'$",
        Status.INCOMPATIBLE,
        listed=Status.OK,
    ),
    "requirement that is not there": Row(
        plugin_requiring("nobody-has-it[extra]; python_version >= '3'"),
        "^it requires nobody-has-it.+, which is not installed$",
        r"^python -m pip install 'nobody-has-it\[extra\]'$",
        Status.UNAVAILABLE,
        listed=Status.OK,
    ),
    "requirement that is none": Row(
        plugin_requiring(">= all of it"),
        "^its metadata has an invalid requirement: '>= all of it'$",
        "PEP 508",
        Status.OK,
    ),
    "entry point that is no module": Row(
        lambda site: site.metadata("bad-one", "bad = -", "0.7"),
        "its installation is damaged: entry_points.txt cannot be read: ValueError: the"
        " entry point bad = '-' names no module",
        "reinstall bad-one; " + FORGO,
    ),
    "disabled plugin that would end the process": Row(
        plugin_with_source("import os; os._exit(3)"),
        "DELEGRAPH_DISABLE_PLUGINS names it",
        "take it out of DELEGRAPH_DISABLE_PLUGINS to use it",
        Status.DISABLED,
        variables={"DELEGRAPH_DISABLE_PLUGINS": "bad-one"},
    ),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_bad_plugin_is_reported_and_the_good_one_works(site, monkeypatch, row):
    monkeypatch.setattr(sys, "path", [*sys.path])
    install_good(site)
    row.install(site)
    for name, value in row.variables.items():
        monkeypatch.setenv(name, value)
    assert_good_works(row)
    completed = run_doctor(
        site, **{"DELEGRAPH_PLUGINS": ",".join(row.distributions), **row.variables}
    )
    code = 0 if row.status in (Status.OK, Status.DISABLED) else 1
    assert completed.returncode == code, completed.stderr
    rows = {p["distribution"]: p for p in json.loads(completed.stdout)["plugins"]}
    for k, distribution in enumerate(row.distributions):
        assert_explained(rows[distribution], row, site, version=f"0.{7 + k}")


def test_a_plugin_without_usable_declarations_is_unavailable(site, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    plugin_with_source(
        HOOK.format(
            hook="delegraph_backends",
            arguments="",
            answer="[BackendSpec('bad', 'a:B', 'B', 1, requires=('no_one',))]",
        )
        + "@hookimpl\ndef delegraph_formats():\n    from delegraph.plugin import"
        " FormatSpec\n"
        + "    return [FormatSpec('.bad', 'a:Format', requires=('no_one',))]\n"
    )(site)
    [record] = [p for p in Registry().plugins() if p.distribution == "bad-one"]
    assert record.status is Status.UNAVAILABLE
    assert "needs 'no_one'" in record.error


def install_good(site):
    (site.folder / "good_target.py").write_text(GOOD_TARGET)
    site.plugin("good-one", GOOD)


def assert_good_works(row=None):
    """Assert that it is listed as ok, and lowers; return the lowered program."""
    registry = Registry()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", delegraph.DelegraphWarning)
        statuses = {p.distribution: p.status for p in registry.plugins()}
    assert statuses["good-one"] is Status.OK
    for distribution in row.distributions if row else ():
        assert statuses[distribution] is (row.listed or row.status)
    lowered = delegraph.lower(
        torch.nn.ReLU().eval(), (torch.ones(3),), backends=["good"], registry=registry
    )
    assert [delegate.processed_bytes for delegate in lowered.delegates] == [
        b"made by the good one"
    ]
    return lowered


def assert_explained(found, row, site, version):
    """Assert that the report has the status, the place, the fault and the hint."""
    assert found["status"] == row.status.value
    assert found["version"] == version
    assert found["location"].startswith(str(site.folder))
    kind, other = (
        ("warnings", "problems")
        if row.status is Status.OK
        else ("problems", "warnings")
    )
    assert [re.search(row.error, f["error"]) is not None for f in found[kind]].count(
        True
    ) == 1, found
    (fault,) = (f for f in found[kind] if re.search(row.error, f["error"]))
    assert re.search(row.hint, fault["hint"]), fault["hint"]
    assert found[other] == []


def run_doctor(site, *arguments, **variables):
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith("DELEGRAPH")
    } | variables
    folders = [
        *map(str, sorted(site.folder.parent.iterdir(), reverse=True)),
        os.environ.get("PYTHONPATH", ""),
    ]
    environ["PYTHONPATH"] = os.pathsep.join(folders).rstrip(os.pathsep)
    command = [sys.executable, "-m", "delegraph_devkit.doctor", "--json", *arguments]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=120
    )


def test_plugins_that_end_their_process_do_not_disturb_others(site):
    install_good(site)
    for k, end in enumerate(
        (
            "os._exit(0)",
            "os.kill(os.getpid(), 9)",
            "os.abort()",
            "raise KeyboardInterrupt",
            "",
        )
    ):
        site.plugin(f"bad-{k}", f"import os\n\n{end}")
    completed = run_doctor(
        site, DELEGRAPH_PLUGINS=",".join(["good-one", *(f"bad-{k}" for k in range(5))])
    )
    rows = {p["distribution"]: p for p in json.loads(completed.stdout)["plugins"]}
    assert [rows[f"bad-{k}"]["status"] for k in range(5)] == [*["broken"] * 4, "ok"]
    assert rows["good-one"]["status"] == "ok"
    assert rows["good-one"]["problems"] == rows["good-one"]["warnings"] == []
    errors = [rows[f"bad-{k}"]["problems"][0]["error"] for k in range(4)]
    assert errors[0] == f"os._exit(0) was called ({site.folder / 'bad_0.py'}:3)"
    assert errors[1] == "importing its light module killed the process (Killed)"
    assert (
        errors[2] == "importing its light module killed the process (Aborted)"
        f" ({site.folder / 'bad_2.py'}:3)"
    )
    assert (
        errors[3] == "importing its light module killed the process (Interrupt)"
        f" ({site.folder / 'bad_3.py'}:3)"
    )
    assert completed.returncode == 1


def test_a_plugin_that_never_ends_is_stopped(site):
    site.plugin("bad-one", "\nimport threading\nthreading.Event().wait()")
    # the limit includes the start of Python
    completed = run_doctor(site, "--timeout", "8", DELEGRAPH_PLUGINS="bad-one")
    (fault,) = json.loads(completed.stdout)["plugins"][0]["problems"]
    assert (
        fault["error"] == "importing its light module took longer than 8 s"
        f" ({site.folder / 'bad_one.py'}:3)"
    )
    assert fault["hint"].startswith(
        "if this machine is slow, allow more with --timeout; else upgrade bad-one"
    )


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_a_time_limit_is_a_positive_number(site, seconds):
    completed = run_doctor(site, "--timeout", seconds)
    assert completed.returncode == 2
    assert json.loads(completed.stdout)["code"] == "usage-invalid"


def test_output_and_threads_of_a_target_do_not_delay_doctor(site):
    source = """
import atexit, os, subprocess, sys, threading, time

print("x" * 1_000_000)
os.write(1, b"y" * 1_000_000)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(5)"])
threading.Thread(target=time.sleep, args=(1000,)).start()
atexit.register(time.sleep, 1000)
"""
    backend_with_target(source)(site)
    completed = run_doctor(site, DELEGRAPH_PLUGINS="bad-one")
    (fault,) = json.loads(completed.stdout)["plugins"][0]["problems"]
    assert "has no 'BadBackend'" in fault["error"]


def test_after_a_crash_unexamined_targets_are_reported(site):
    (site.folder / "bad_target.py").write_text("import os; os.kill(os.getpid(), 9)")
    answer = "[BackendSpec(n, f'bad_target:{n}', n, 1) for n in ('A', 'B', 'C')]"
    site.plugin(
        "bad-one", HOOK.format(hook="delegraph_backends", arguments="", answer=answer)
    )
    found = json.loads(run_doctor(site, DELEGRAPH_PLUGINS="bad-one").stdout)["plugins"][
        0
    ]
    assert [f["error"].partition(" (")[0] for f in found["problems"]] == [
        "importing bad_target:A killed the process"
    ]
    assert [f["error"] for f in found["warnings"]] == [
        "2 more of its targets were not examined"
    ]

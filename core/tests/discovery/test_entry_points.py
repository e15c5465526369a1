"""A faulty plugin does not stop others, and its error names the fault and the fix."""

import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from delegraph.discovery.import_by_name import ProcessExit, exits_raise
from delegraph.discovery.installed import discover
from delegraph.discovery.records import Status
from delegraph.plugin import BackendSpec, OptionSpec, PartitionerSpec


def find_record(name):
    return next(r for r in discover() if r.name == name)


HOOK = """
from delegraph.plugin import BackendSpec, PartitionerSpec, hookimpl

@hookimpl
def {name}():
    return {answer}
"""

BAD = {
    "import-error": (
        "import a_module_that_nobody_has",
        Status.BROKEN,
        "No module named 'a_module_that_nobody_has'",
    ),
    "syntax-error": ("def (:", Status.BROKEN, "SyntaxError"),
    "exits": ("raise SystemExit(3)", Status.BROKEN, "SystemExit: 3"),
    "raises-base": (
        "class Odd(BaseException): pass\nraise Odd('x')",
        Status.BROKEN,
        "Odd: x",
    ),
    "misspelt": (
        HOOK.format(name="delegraph_backend", answer="[]"),
        Status.BROKEN,
        "did you mean 'delegraph_backends'",
    ),
    "no-mark": (
        "def delegraph_backends(): return []",
        Status.BROKEN,
        "delegraph_backends lacks the decorator @hookimpl",
    ),
    "argument": (
        (
            "from delegraph.plugin import hookimpl\n@hookimpl\ndef"
            " delegraph_backends(wrong): return []"
        ),
        Status.BROKEN,
        "wrong",
    ),
    "none": (
        HOOK.format(name="delegraph_backends", answer="None"),
        Status.BROKEN,
        "delegraph_backends returned None",
    ),
    "text": (
        HOOK.format(name="delegraph_backends", answer="'tosa'"),
        Status.BROKEN,
        "returned 'tosa' (str)",
    ),
    "foreign": (
        HOOK.format(name="delegraph_backends", answer="[object]"),
        Status.BROKEN,
        "a list with <class 'object'>",
    ),
    "other-kind": (
        HOOK.format(
            name="delegraph_backends", answer="[PartitionerSpec('a', 'a', 'a:B')]"
        ),
        Status.BROKEN,
        "each item is a BackendSpec",
    ),
    "bad-field": (
        HOOK.format(
            name="delegraph_backends", answer="[BackendSpec('a', 'no target', 'A', 1)]"
        ),
        Status.BROKEN,
        "target is 'package.module:Name', not 'no target'",
    ),
    "twice": (
        HOOK.format(
            name="delegraph_backends", answer="[BackendSpec('a', 'a:B', 'B', 1)] * 2"
        ),
        Status.BROKEN,
        "declares backend 'a' twice",
    ),
    "hook-raises": (
        HOOK.format(name="delegraph_backends", answer="1 / 0"),
        Status.BROKEN,
        "ZeroDivisionError",
    ),
    "wrong-api": (
        HOOK.format(
            name="delegraph_backends", answer="[BackendSpec('b', 'a:B', 'B', 99)]"
        ),
        Status.INCOMPATIBLE,
        "written for plugin API 99",
    ),
    "unavailable": (
        HOOK.format(
            name="delegraph_backends",
            answer="[BackendSpec('c', 'a:C', 'C', 1, requires=('nobody_has_it',))]",
        ),
        Status.UNAVAILABLE,
        "needs 'nobody_has_it', which is not installed",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_plugin_is_listed_and_good_plugin_works(site, case):
    source, status, words = BAD[case]
    site.plugin("bad-one", source, version="0.7")
    site.backend("good-one", "good")
    record = find_record("bad-one")

    assert record.status is status
    assert words in record.error
    assert record.distribution == "bad-one"
    assert record.version == "0.7"
    assert record.location == str(site.folder / "bad_one.py")
    assert record.hint
    assert find_record("good").status is Status.OK


def test_the_line_that_failed_is_named(site):
    site.plugin("bad-one", "\n\nraise ValueError('no luck')")
    assert (
        find_record("bad-one").error
        == f"ValueError: no luck ({site.folder / 'bad_one.py'}:3)"
    )


def test_keyboard_interrupt_is_not_a_fault_of_the_plugin(site):
    site.plugin("slow-one", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        discover()


def test_os_exit_breaks_only_the_importing_thread(site):
    source = """
        import os, subprocess, sys
        child = os.fork()
        if not child:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        os._exit(3)
    """
    before = os._exit
    site.plugin("bad-one", source)
    record = find_record("bad-one")
    assert record.status == Status.BROKEN
    assert record.error == f"os._exit(3) was called ({site.folder / 'bad_one.py'}:7)"
    assert os._exit is before

    other = """
import os, threading
from delegraph.discovery.import_by_name import exits_raise
with exits_raise():
    thread = threading.Thread(target=lambda: os._exit(5))
    thread.start()
    thread.join()
"""
    assert run_python("-c", other, cwd=site.folder).returncode == 5


def test_exits_raise_until_the_last_thread_has_left():
    before = os._exit
    inside = threading.Barrier(2)
    leave = threading.Event()

    def guarded():
        with exits_raise():
            inside.wait()
            leave.wait()
            with pytest.raises(
                ProcessExit,
                match=r"os\._exit\(4\) was called \(.+test_entry_points\.py:\d+\)",
            ):
                os._exit(4)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(guarded)
        with exits_raise(), exits_raise():
            inside.wait()
        leave.set()
        done.result()

    assert os._exit is before


def test_required_modules_are_found_without_importing_them(site):
    (site.folder / "needed").mkdir()
    (site.folder / "needed" / "__init__.py").write_text("raise SystemExit")
    (site.folder / "needed" / "inner.py").write_text("")
    site.backend("with-inner", "inner", requires=("needed.inner",))
    site.backend("without", "without", requires=("needed.missing",))
    assert find_record("inner").status is Status.OK
    assert find_record("without").status is Status.UNAVAILABLE


def test_install_hint_is_shown(site):
    site.backend(
        "hinted",
        "hinted",
        requires=("nobody_has_it",),
        install_hint="pip install hinted[all]",
    )
    assert find_record("hinted").hint == "pip install hinted[all]"


@pytest.mark.parametrize(
    "named", ["exiter", "Exiter", "the_entry", "exiter/the_entry", " x , exiter"]
)
def test_disabled_plugins_are_not_imported(site, monkeypatch, named):
    site.plugin("exiter", "import os; os._exit(3)", name="the_entry")
    monkeypatch.setenv("DELEGRAPH_DISABLE_PLUGINS", named)
    record = find_record("the_entry")
    assert record.status is Status.DISABLED
    assert "DELEGRAPH_DISABLE_PLUGINS" in record.error


def test_only_allowed_plugins_are_imported(site, monkeypatch):
    site.plugin("exiter", "import os; os._exit(3)")
    site.backend("good-one", "good")
    monkeypatch.setenv("DELEGRAPH_PLUGINS", "good-one")
    assert find_record("exiter").status is Status.DISABLED
    assert find_record("good").status is Status.OK
    monkeypatch.setenv("DELEGRAPH_DISABLE_PLUGINS", "good")
    assert find_record("good").status is Status.DISABLED


def test_same_entry_point_name_in_two_distributions(site):
    site.plugin("first-one", "", name="same")
    site.plugin("second-one", "raise ValueError", name="same")
    records = [r for r in discover() if r.name == "same"]
    assert {r.distribution: r.status for r in records} == {
        "first-one": Status.OK,
        "second-one": Status.BROKEN,
    }


def test_first_of_duplicate_distributions_wins(site, tmp_path, monkeypatch):
    site.backend("doubled", "doubled")
    other = type(site)(tmp_path / "other")
    other.plugin("doubled", "raise SystemExit", version="0.1", name="doubled")
    monkeypatch.setattr(sys, "path", [*sys.path, str(other.folder)])
    records = [r for r in discover() if r.distribution == "doubled"]
    assert [(r.version, r.status) for r in records] == [("1.0", Status.OK)]

    (warning,) = records[0].warnings
    assert (
        warning.error
        == f"a second copy at {other.folder} (0.1) is not used: the first on the path"
        " counts"
    )
    assert "pip uninstall doubled" in warning.hint


def test_shadowed_copy_of_a_distribution_is_never_used(site, tmp_path, monkeypatch):
    (site.folder / "plain-2.0.dist-info").mkdir()
    (site.folder / "plain-2.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: plain\nVersion: 2.0\n"
    )
    other = type(site)(tmp_path / "other")
    other.plugin("plain", "raise SystemExit")
    monkeypatch.setattr(sys, "path", [*sys.path, str(other.folder)])

    assert [r for r in discover() if r.distribution == "plain"] == []


def test_metadata_without_a_name_uses_the_folder_name(site):
    site.plugin("nameless", "")
    (site.folder / "nameless-1.0.dist-info" / "METADATA").unlink()
    assert find_record("nameless").distribution == "nameless"
    assert find_record("nameless").version == "1.0"


def run_python(*arguments, cwd, path=None):
    environ = {k: v for k, v in os.environ.items() if not k.startswith("DELEGRAPH")}
    folders = [str(path or ""), environ.pop("PYTHONPATH", "")]
    if any(folders):
        environ["PYTHONPATH"] = os.pathsep.join(f for f in folders if f)
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    "start",
    [["-m", "delegraph"], ["-c", "from delegraph.cli import main; main(['backends'])"]],
)
def test_nothing_is_loaded_from_the_working_directory(site, start):
    site.plugin("intruder", "print('intruder was here')")
    arguments = [*start, "backends"] if start[0] == "-m" else start
    completed = run_python(*arguments, cwd=site.folder)
    assert completed.returncode == 0
    assert "intruder" not in completed.stdout + completed.stderr


def test_module_in_the_working_directory_does_not_replace_a_plugin(site, tmp_path):
    site.backend("honest", "honest")
    work = tmp_path / "work"
    work.mkdir()
    (work / "honest.py").write_text("print('stand-in was here')")
    completed = run_python("-m", "delegraph", "backends", cwd=work, path=site.folder)
    assert "stand-in was here" not in completed.stdout + completed.stderr
    assert re.search("^honest +ok", completed.stdout, re.MULTILINE)

    completed = run_python(
        "-c",
        "from delegraph.cli import main; main(['backends'])",
        cwd=work,
        path=site.folder,
    )
    assert "stand-in was here" not in completed.stdout + completed.stderr
    assert "would be loaded from the working directory" in completed.stdout


def test_pythonpath_may_name_the_working_directory(site):
    site.backend("chosen", "chosen")
    completed = run_python(
        "-m", "delegraph", "backends", cwd=site.folder, path=site.folder
    )
    assert re.search("^chosen +ok", completed.stdout, re.MULTILINE)


def test_an_editable_install_may_be_the_working_directory(site, tmp_path):
    """Such an install has its metadata in one folder, and a ``.pth`` entry on the path."""
    source = tmp_path / "source"
    source.mkdir()
    site.backend("edited", "edited")
    (site.folder / "edited.py").rename(source / "edited.py")
    program = (
        f"import sys; sys.path.append({str(source)!r}); from delegraph.cli import main;"
        " main(['backends'])"
    )
    completed = run_python("-c", program, cwd=source, path=site.folder)

    assert re.search("^edited +ok", completed.stdout, re.MULTILINE)


def test_wrong_declarations_raise_at_their_line():
    with pytest.raises(TypeError, match="requires is a tuple"):
        BackendSpec("a", "a:B", "B", 1, requires="torch")
    with pytest.raises(ValueError, match="name is a short name"):
        PartitionerSpec("a/b", "a", "a:B")
    with pytest.raises(ValueError, match="its own default 3 is not one of 1, 2"):
        OptionSpec("n", int, 3, choices=(1, 2))
    with pytest.raises(TypeError, match="type is str, int, float, bool or list"):
        OptionSpec("n", dict)
    with pytest.raises(ValueError, match="its own default 'a' is not a list of texts"):
        OptionSpec("n", list, "a")
    assert BackendSpec("a", "a:B", "B", 1, requires=["x"]).requires == ("x",)

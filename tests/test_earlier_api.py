"""A plugin that was written for the plugin API before: built as a wheel, installed, and judged by the conformance kit.

Its classes have methods with names that the API has since given a meaning, with arguments of their own.
"""

import json
import os
import subprocess

import delegraph
import pytest
from delegraph.plugin import API_VERSION
from delegraph_devkit import scaffold
from delegraph_devkit.scaffold.names import Names

from core.tests.support.warm import warm_python, with_warm_kit

OWN = '''
    def {name}(self, mine):
        """Something of the plugin's own."""
        raise AssertionError("delegraph called what it knows nothing of")
'''
PLACES = {"backend.py": ["fingerprint"], "runtime.py": ["compatible", "profile"]}
CHECKS = ["light_declaration", "options_validated", "empty_programs"]
"""Those that take no time."""
CHECK = """
import json, sys
import delegraph_devkit
backend = delegraph_devkit.BackendUnderTest("old-npu", randoms=0, gate=1)
print(json.dumps({r.name: [r.status, r.message] for r in delegraph_devkit.run_checks(backend, sys.argv[1:]).results}))
"""


def run(site, *arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DELEGRAPH", "PYTEST"))}
    environment |= {**with_warm_kit(), "PYTHONPATH": str(site)}
    done = subprocess.run([warm_python(), *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder for the path, with the wheel of a plugin of the API before."""
    folder = tmp_path_factory.mktemp("old")
    scaffold.generate(Names.of("old-npu"), folder / "old-npu")
    package = folder / "old-npu" / "src" / "old_npu"
    declared = (package / "plugin.py").read_text()
    assert f"api={API_VERSION}," in declared
    (package / "plugin.py").write_text(declared.replace(f"api={API_VERSION},", f"api={API_VERSION - 1},"))
    for name, methods in PLACES.items():
        source = (package / name).read_text()
        first = source.index("    @staticmethod")
        added = "".join(OWN.format(name=method) for method in methods).lstrip("\n")
        (package / name).write_text(source[:first] + added + "\n" + source[first:])
    pip = ("-m", "pip", "--disable-pip-version-check", "-q")
    wheels = ("--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(folder / "old-npu"))
    run(folder, *pip, "wheel", *wheels)
    [wheel] = folder.glob("*.whl")
    run(folder, *pip, "install", "--no-deps", "--no-index", "--target", str(folder / "site"), str(wheel))
    return folder / "site"


def test_it_is_listed_with_its_own_number(site):
    listed = json.loads(run(site, "-m", "delegraph", "backends", "--json"))["backends"]
    [row] = [b for b in listed if b["name"] == "old-npu"]
    assert (row["status"], row["api"]) == ("ok", API_VERSION - 1)


def test_the_kit_passes_it(site):
    results = json.loads(run(site, "-c", CHECK, *CHECKS))
    assert {name: status for name, (status, _) in results.items()} == dict.fromkeys(CHECKS, "passed"), results


@pytest.mark.slow
def test_the_whole_kit_passes_it(site):
    run(site, "-m", "delegraph", "check", "old-npu", "--quick")


def test_its_files_are_written_read_and_asked_about(site, tmp_path):
    """What it does not know of has its default: no fingerprint, no verdict."""
    code = """
import sys, torch, delegraph
lowered = delegraph.lower(torch.nn.Linear(4, 4).eval(), (torch.ones(1, 4),), backends=["old-npu"])
assert lowered.delegates[0].fingerprint == ""
lowered.save(sys.argv[1])
loaded = delegraph.load(sys.argv[1])
assert torch.equal(loaded(torch.ones(1, 4)), lowered(torch.ones(1, 4)))
print(loaded.compatible())
"""
    shown = run(site, "-c", code, str(tmp_path / "m.pte"))
    assert shown.startswith("can run here: not known\n") and "its runtime does not say" in shown


@pytest.mark.parametrize("api", [API_VERSION - 2, API_VERSION + 1])
def test_any_other_number_is_incompatible(api):
    spec = delegraph.plugin.BackendSpec("other", "other:OtherBackend", "OtherBackend", api)
    with delegraph.register(spec), pytest.raises(delegraph.PluginIncompatible, match=f"plugin API {api}; this"):
        delegraph.get_backend("other")

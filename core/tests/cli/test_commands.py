"""Plugins may add commands to ``delegraph``."""

import json

import pytest
from delegraph.cli.find_command import BUILT_IN

from ..support.processes import run_python

DECLARED = """
from delegraph.plugin import CommandSpec, hookimpl

@hookimpl
def delegraph_commands():
    return [CommandSpec({arguments})]
"""
TARGET = """
import sys
from delegraph.command import Outcome, progress
from delegraph.errors import InputError, UsageError

print("the target is imported")

class Profile:
    @staticmethod
    def add_arguments(parser):
        parser.add_argument("net", metavar="MODEL")
        parser.add_argument("--runs", type=int, default=1)

    @staticmethod
    def run(args):
        {body}
        print("from Python")
        with progress("measuring"):
            text = f"{{args.net}}: {{args.runs}} runs"
        return Outcome("acme.measure/1", {{"net": args.net, "runs": args.runs}}, text, code=args.runs)
"""


@pytest.fixture
def run_with_acme(site, tmp_path):
    """Install distributions with one command each, and run ``delegraph`` with only
    these.
    """

    class Acme:
        def install(
            self,
            distribution="acme-npu",
            name="measure",
            body="",
            declared="",
            target="",
            **fields,
        ):
            module = distribution.replace("-", "_")
            fields = {
                "target": f"{module}_command:Profile",
                "summary": "100 % of the time",
                **fields,
            }
            arguments = ", ".join(
                [repr(name), *(f"{k}={v!r}" for k, v in fields.items())]
            )
            site.plugin(
                distribution, (declared or DECLARED).format(arguments=arguments)
            )
            (site.folder / f"{module}_command.py").write_text(
                (target or TARGET).format(body=body)
            )

        def run(self, *words, only="acme-npu,acme-tpu"):
            return run_python(
                "-m",
                "delegraph",
                *words,
                path=site.folder,
                cwd=tmp_path,
                DELEGRAPH_PLUGINS=only,
            )

    return Acme()


def test_help_lists_commands_of_plugins_without_importing_them(
    run_with_acme, monkeypatch
):
    # argparse breaks lines at the width of the terminal
    monkeypatch.setenv("COLUMNS", "80")
    run_with_acme.install()
    shown = run_with_acme.run("--help")
    assert "measure   " in shown.stdout
    assert "100 % of the time (acme-npu 1.0)" in " ".join(shown.stdout.split())
    assert all(f"\n    {name}" in shown.stdout for name in BUILT_IN)
    assert "the target is imported" not in shown.stdout + shown.stderr


def test_commands_of_plugins_accept_the_common_flags(run_with_acme):
    run_with_acme.install()
    shown = run_with_acme.run("measure", "net.py", "--runs", "3")
    assert shown.returncode == 3
    assert shown.stdout == "net.py: 3 runs\n"
    assert shown.stderr == "the target is imported\nfrom Python\n"

    shown = run_with_acme.run("measure", "net.py", "--json")
    assert json.loads(shown.stdout) == {
        "schema": "acme.measure/1",
        "net": "net.py",
        "runs": 1,
    }
    assert "--runs" in run_with_acme.run("measure", "--help").stdout


def test_missing_arguments_of_plugin_commands_are_usage_errors(run_with_acme):
    run_with_acme.install()
    shown = run_with_acme.run("measure")
    assert shown.returncode == 2
    assert "error [usage-invalid]: the following arguments are required" in shown.stderr


@pytest.mark.parametrize(("error", "code"), [("UsageError", 2), ("InputError", 1)])
def test_errors_of_plugin_commands_look_like_others(run_with_acme, error, code):
    run_with_acme.install(body=f"raise {error}('acme/odd', 'no such chip', hint='ask')")
    shown = run_with_acme.run("measure", "net.py")
    assert shown.returncode == code
    assert shown.stdout == ""
    assert shown.stderr.endswith("error [acme/odd]: no such chip\n  hint: ask\n")


FAULTS = {
    "raises": (
        "1 / 0",
        (
            "error [plugin-failed]: run of Profile (acme-npu 1.0), raised"
            " ZeroDivisionError"
        ),
    ),
    "exits": (
        "raise SystemExit(0)",
        "error [plugin-failed]: run of Profile (acme-npu 1.0), raised SystemExit: 0",
    ),
    "returns nothing": (
        "return",
        "error [contract-violation]: run of Profile (acme-npu 1.0), returned NoneType",
    ),
}


@pytest.mark.parametrize(("body", "error"), FAULTS.values(), ids=FAULTS)
def test_a_failing_command_is_blamed_on_its_plugin(run_with_acme, body, error):
    run_with_acme.install(body=body)
    shown = run_with_acme.run("measure", "net.py")
    assert shown.returncode not in (0, 2)
    assert shown.stdout == ""
    assert error in shown.stderr
    assert "Traceback" not in shown.stderr
    if "raised" in error:
        assert "Traceback" in run_with_acme.run("measure", "net.py", "--debug").stderr


BROKEN = {
    "import": (
        {"target": "import absent_module"},
        "cannot be loaded: ModuleNotFoundError",
    ),
    "no such name": (
        {"target": "Profil = 1"},
        "has no 'Profile'; did you mean 'Profil'?",
    ),
    "no command": (
        {"target": "class Profile: pass"},
        "has no add_arguments and no run",
    ),
    "a flag that all have": (
        {"target": TARGET.replace("--runs", "--json")},
        (
            "add_arguments of Profile (acme-npu 1.0), raised ArgumentError: argument"
            " --json: conflicting option"
        ),
    ),
}


@pytest.mark.parametrize(("fields", "error"), BROKEN.values(), ids=BROKEN)
def test_broken_command_leaves_other_commands_usable(run_with_acme, fields, error):
    run_with_acme.install(**fields)
    shown = run_with_acme.run("measure", "net.py")
    assert shown.returncode == 1
    assert shown.stdout == ""
    assert "error [plugin-" in shown.stderr
    assert error in shown.stderr
    assert "acme-npu 1.0" in shown.stderr
    assert run_with_acme.run("--help").returncode == 0
    assert run_with_acme.run("backends").returncode == 0


def test_requirements_are_checked_before_a_command_is_imported(run_with_acme):
    run_with_acme.install(
        requires=("absent_module",), install_hint="pip install acme-sdk"
    )
    shown = run_with_acme.run("measure", "net.py")
    assert shown.returncode == 1
    assert shown.stdout == ""

    text = (
        "the command 'measure' of acme-npu 1.0 needs absent_module, which is not"
        " installed"
    )
    assert (
        shown.stderr
        == f"error [plugin-unavailable]: {text}\n  hint: pip install acme-sdk\n"
    )


def test_conflict_of_two_commands_names_both_plugins(run_with_acme):
    run_with_acme.install()
    run_with_acme.install("acme-tpu")
    shown = run_with_acme.run("measure", "net.py")
    assert shown.returncode == 1
    assert shown.stdout == ""
    assert (
        "error [plugin-conflict]: 2 plugins offer the command 'measure': acme-npu 1.0 ("
        in shown.stderr
    )
    assert " and acme-tpu 1.0 (" in shown.stderr
    assert "hint: ask for acme-npu/measure or acme-tpu/measure" in shown.stderr
    assert run_with_acme.run("acme-tpu/measure", "net.py").stdout == "net.py: 1 runs\n"

    listed = run_with_acme.run("--help").stdout
    assert "acme-npu/measure" in listed
    assert "acme-tpu/measure" in listed


def test_a_built_in_command_hides_a_plugins_command(run_with_acme):
    run_with_acme.install(name="backends")
    shown = run_with_acme.run("backends", "--json")
    assert json.loads(shown.stdout)["schema"] == "delegraph.backends/1"
    assert "the target is imported" not in shown.stderr
    assert run_with_acme.run("acme-npu/backends", "net.py").stdout == "net.py: 1 runs\n"
    assert "acme-npu/backends" in run_with_acme.run("--help").stdout


def test_a_plugin_that_declares_a_command_twice_is_broken(run_with_acme):
    declared = DECLARED.replace(
        "[CommandSpec({arguments})]", "2 * [CommandSpec({arguments})]"
    )
    run_with_acme.install(declared=declared)
    assert "it declares command 'measure' twice" in run_with_acme.run("backends").stdout


@pytest.mark.parametrize("command", ["check", "doctor", "new-backend"])
def test_commands_of_the_disabled_devkit_name_their_distribution(
    run_with_acme, command
):
    shown = run_with_acme.run(command, "x", only="")
    assert "not installed" not in shown.stderr

    shown = run_with_acme.run(command, "x")
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert (
        f"the command '{command}' comes with delegraph-devkit 0.1.0, which is disabled"
        in shown.stderr
    )


@pytest.mark.parametrize("command", ["check", "doctor", "new-backend"])
def test_commands_of_a_missing_devkit_name_their_distribution(command):
    program = f"""
from delegraph.cli import main
from delegraph.discovery import registry

registry._default = registry.Registry(discover=False)
raise SystemExit(main([{command!r}, "x"]))
"""
    shown = run_python("-c", program)

    assert shown.returncode == 2
    assert shown.stdout == ""
    assert (
        shown.stderr == f"error [usage-invalid]: the command '{command}' comes with"
        " delegraph-devkit, which is not installed\n  hint: pip install"
        " delegraph-devkit\n"
    )


def test_an_unknown_command_gets_a_suggestion(run_with_acme):
    run_with_acme.install()
    shown = run_with_acme.run("measur")
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert (
        "error [usage-invalid]: there is no command 'measur'; did you mean 'measure'?"
        " (commands: " in shown.stderr
    )

"""The command line: its output, its exit codes and its errors."""

import json
import re
import subprocess
import sys
import zipfile

import delegraph
import pytest
import torch
from delegraph.cli import main
from delegraph.command.outcome import Outcome, as_json
from delegraph.discovery.registry import default_registry

from ..conftest import EchoRuntime
from ..support.command_line import (
    run_command,
    run_failing,
)
from ..support.processes import run_python


def test_lower_prints_the_report(model, capsys):
    code, out, err = run_command(capsys, "lower", model, "--backend", "echo")
    assert code == 0
    assert "1 of 2 operators delegated, in 1 delegate; 1 on the host" in out
    assert "echo has no sin" in out
    assert "net.py:6" in out
    assert err == ""


def test_lower_writes_the_file_and_the_report(model, tmp_path, capsys):
    output = tmp_path / "net.echo"
    report = tmp_path / "report.json"
    lower = ("lower", model, "--backend", "echo", "--option", "echo.all=yes")
    code, out, _ = run_command(
        capsys, *lower, "-o", output, "--verify", "--report", report
    )

    assert code == 0
    assert output.read_bytes() == b"program 0"
    assert "largest error 0" in out
    assert f"wrote {output} (9 bytes)" in out
    assert json.loads(report.read_text())["schema"] == "delegraph.report/1"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "net.echo",
        "net.py",
        "report.json",
    ]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("r.json", "{"),
        ("r.txt", "1 of 2"),
        ("r", "1 of 2"),
    ],
)
def test_the_suffix_of_the_report_chooses_its_form(
    model, tmp_path, capsys, name, start
):
    code, _, _ = run_command(
        capsys, "lower", model, "--backend", "echo", "--report", tmp_path / name
    )
    written = (tmp_path / name).read_text()

    assert code == 0
    assert written.startswith(start)
    assert written.endswith("\n")
    assert "echo has no sin" in written


def test_verbose_shows_more_of_each_delegate(model, tmp_path, capsys):
    _, brief, _ = run_command(capsys, "lower", model, "--backend", "echo")
    report = tmp_path / "r.txt"
    code, out, _ = run_command(
        capsys, "lower", model, "--backend", "echo", "-v", "--report", report
    )

    more = {
        "      operators: 1 x aten.relu.default",
        "      inputs: sin: float32[2, 3]",
        "      outputs: relu: float32[2, 3]",
    }

    assert code == 0
    assert more <= set(out.splitlines())
    assert more.isdisjoint(brief.splitlines())
    assert more <= set(report.read_text().splitlines())


def test_lower_prints_json(model, tmp_path, capsys):
    output = tmp_path / "net.echo"
    lower = ("lower", model, "--backend=echo", "--option", "echo.all=1")
    code, out, _ = run_command(capsys, *lower, "-o", output, "--verify", "--json")
    found = json.loads(out)

    assert code == 0
    assert found["schema"] == "delegraph.lower/1"
    assert found["report"]["host_operators"] == 0
    assert found["verification"]["relative_error"] == 0
    assert found["output"] == {"path": str(output), "bytes": 9}


def test_the_backend_follows_from_the_output(model, tmp_path, capsys):
    code, _, _ = run_command(
        capsys, "lower", model, "--option", "all=1", "-o", tmp_path / "net.echo"
    )
    assert code == 0


def test_lower_takes_an_exported_program(tmp_path, echo, capsys):
    program = torch.export.export(torch.nn.ReLU().eval(), (torch.randn(4),))
    torch.export.save(program, tmp_path / "net.pt2")
    code, out, _ = run_command(
        capsys, "lower", tmp_path / "net.pt2", "--backend", "echo", "--verify"
    )

    assert code == 0
    assert "1 of 1 operator delegated" in out
    assert "largest error 0" in out


def test_prints_of_a_model_do_not_disturb_the_result(model, capsys):
    model.write_text(model.read_text() + "\nprint('loading weights')\n")
    _, out, err = run_command(capsys, "lower", model, "--backend", "echo", "--json")
    assert json.loads(out)["schema"] == "delegraph.lower/1"
    assert err == "loading weights\n"


def test_a_model_file_finds_its_neighbours(model, capsys):
    (model.parent / "neighbour_of_net.py").write_text("WIDTH = 3")
    model.write_text("from neighbour_of_net import WIDTH\n" + model.read_text())
    code, _, _ = run_command(capsys, "lower", model, "--backend", "echo")
    assert code == 0


MODEL_FUNCTION = """
import torch

def {name}:
    return torch.nn.{layer}().eval(), (torch.ones(2),)
"""


@pytest.mark.parametrize(
    ("functions", "operator"),
    [
        ({"model()": "ReLU", "net()": "Tanh"}, "aten.relu.default"),
        ({"net()": "Tanh", "other()": "ReLU"}, "aten.tanh.default"),
        (
            {"other()": "ReLU", "_hidden()": "Tanh", "with_argument(x)": "Tanh"},
            "aten.relu.default",
        ),
    ],
    ids=["named_model", "first_of_two", "neither_hidden_nor_with_argument"],
)
def test_the_model_function_is_chosen_by_name_and_order(
    tmp_path, echo, functions, operator, capsys
):
    path = tmp_path / "net.py"
    definitions = [
        MODEL_FUNCTION.format(name=name, layer=layer)
        for name, layer in functions.items()
    ]
    path.write_text("".join(definitions))

    code, out, _ = run_command(capsys, "lower", path, "--backend", "echo", "-v")

    assert code == 0
    assert f"operators: 1 x {operator}" in out


@pytest.mark.parametrize(
    "arguments", [[], ["lwer"], ["lower"], ["lower", "absent.py"], ["lower", "a.onnx"]]
)
def test_wrong_usage_exits_with_two(capsys, arguments):
    run_failing(capsys, *arguments, code=2, error="usage-invalid")


@pytest.mark.parametrize("function", ["nothing", ""])
def test_a_missing_model_function_is_named(model, capsys, function):
    path = f"{model}:{function}"
    message = run_failing(
        capsys, "lower", path, "--backend", "echo", code=2, error="usage-invalid"
    )
    assert f"no function '{function}'" in message


@pytest.mark.parametrize(
    ("flags", "error", "text"),
    [
        (["--backend", "ecko"], "backend-not-found", "did you mean 'echo'"),
        (["--option", "echo.al=1"], "option-invalid", "did you mean 'all'"),
        (["--option", "echo.level=3"], "option-invalid", "one of 1, 2, not 3"),
        (["--option", "other.level=3"], "option-invalid", "other"),
    ],
)
def test_wrong_backends_and_options_are_named(model, capsys, flags, error, text):
    lower = ["lower", model]
    if "--backend" not in flags:
        lower += ["--backend", "echo"]
    assert text in run_failing(capsys, *lower, *flags, code=2, error=error)


def test_an_unknown_suffix_lists_the_file_formats(model, tmp_path, capsys):
    lower = ("lower", model, "--backend", "echo", "-o", tmp_path / "net.bin")
    message = run_failing(capsys, *lower, code=2, error="format-not-found")
    assert "file formats: " in message
    assert ".echo" in message


@pytest.mark.parametrize(
    ("function", "error", "texts"),
    [
        ("training", "training-mode", []),
        (
            "failing",
            "input-invalid",
            ["ValueError: no weights here", "net.py:15, in failing"],
        ),
        ("wrong", "input-invalid", ["returned an int"]),
    ],
)
def test_failing_model_functions_end_with_a_message(
    model, tmp_path, capsys, function, error, texts
):
    path = f"{model}:{function}"
    message = run_failing(capsys, "lower", path, "--backend", "echo", error=error)
    for text in texts:
        assert text in message
    assert files_of(tmp_path) == ["net.py"]


def files_of(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_file())


def test_require_full_names_the_refused_operator_and_its_line(model, capsys):
    lower = ("lower", model, "--backend", "echo", "--require-full")
    message = run_failing(capsys, *lower, error="not-fully-delegated")
    assert "aten.sin.default" in message
    assert "net.py:6" in message


def test_a_file_of_one_delegate_needs_full_delegation(model, tmp_path, capsys):
    lower = ("lower", model, "--backend", "echo", "-o", tmp_path / "net.echo")
    code, out, err = run_command(capsys, *lower)

    report, error, _ = err.partition("error [not-fully-delegated]")
    assert code == 1
    assert out == ""
    assert error
    assert "echo has no sin" in report
    assert files_of(tmp_path) == ["net.py"]


def test_a_syntax_error_of_the_model_file_is_shown(model, capsys):
    model.write_text("def (:")
    message = run_failing(
        capsys, "lower", model, "--backend", "echo", error="input-invalid"
    )
    assert "SyntaxError" in message


def test_damaged_pt2_files_are_refused(tmp_path, echo, capsys):
    path = tmp_path / "net.pt2"
    lower = ("lower", path, "--backend", "echo")

    path.write_bytes(b"no archive")
    message = run_failing(capsys, *lower, error="format-invalid")
    assert "zip" in message.lower()

    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("loose", b"")
    message = run_failing(capsys, *lower, error="format-invalid")
    assert "not in a subdirectory" in message
    assert "warnings above" not in message


def test_an_interrupt_that_the_model_raises_ends_the_command(model, capsys):
    model.write_text("raise KeyboardInterrupt('by the model')")
    code, out, err = run_command(capsys, "lower", model, "--backend", "echo")
    assert code == 130
    assert out == ""
    assert err.endswith("interrupted\n")


def test_unwritable_path_is_refused_before_the_model_runs(model, tmp_path, capsys):
    model.write_text("raise SystemExit('the model ran')")
    lower = ("lower", model, "--backend", "echo")
    missing_folder = tmp_path / "no_folder" / "net.echo"
    folder = tmp_path / "folder.echo"
    folder.mkdir()

    for option in ("-o", "--report"):
        run_failing(capsys, *lower, option, missing_folder, error="write-failed")
    message = run_failing(capsys, *lower, "-o", folder, error="write-failed")
    assert "is a folder" in message

    message = run_failing(capsys, *lower, error="input-invalid")
    assert "the model ran" in message, "it runs if the path is writable"


class LyingRuntime(EchoRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        load = EchoRuntime.load(processed_bytes, compile_specs, named_data)
        return lambda *args: tuple(r + 1 for r in load(*args))


def test_wrong_results_fail_and_write_nothing(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(default_registry(), "runtime_for", lambda name: LyingRuntime)
    lower = (
        "lower",
        model,
        "--backend=echo",
        "--option=echo.all=1",
        "--verify",
        "-o",
        tmp_path / "net.echo",
    )
    message = run_failing(capsys, *lower, error="verification-failed")
    assert "does not agree with eager" in message
    assert not (tmp_path / "net.echo").exists()

    code, _, _ = run_command(capsys, *lower, "--tolerance", "100")
    assert code == 0


def test_debug_shows_the_traceback(model, capsys):
    code, _, err = run_command(
        capsys, "lower", f"{model}:failing", "--backend", "echo", "--debug"
    )
    assert code == 1
    assert "Traceback" in err
    assert "no weights here" in err


def test_an_internal_error_is_one_paragraph(model, capsys, monkeypatch):
    monkeypatch.setattr("delegraph.api.lower", lambda *a, **k: 1 / 0)
    message = run_failing(capsys, "lower", model, "--backend", "echo", error="internal")
    assert "ZeroDivisionError" in message


def test_backends_lists_working_and_broken_plugins(site):
    site.backend("chip-vendor", "npu", summary="a chip", formats=(".npu",))
    site.plugin("bad-one", "raise ValueError('no luck')")
    completed = run_python("-m", "delegraph", "backends", path=site.folder)
    assert completed.returncode == 0
    assert re.search(
        r"^npu +ok +chip-vendor 1\.0 +a chip$", completed.stdout, re.MULTILINE
    )
    assert "bad-one (bad-one 1.0) is broken: ValueError: no luck" in completed.stdout
    assert completed.stderr == ""

    found = json.loads(
        run_python("-m", "delegraph", "backends", "--json", path=site.folder).stdout
    )
    assert found["schema"] == "delegraph.backends/1"

    row = next(b for b in found["backends"] if b["name"] == "npu")
    assert row["status"] == "ok"
    assert row["distribution"] == "chip-vendor"
    assert row["formats"] == [".npu"]
    assert [p["name"] for p in found["plugins_without_backends"]] == ["bad-one"]


VERBOSE = """\
npu  [ok]  a chip
  from          chip-vendor 1.0
  location      SITE/chip_vendor.py
  backend id    NpuBackend (chip_vendor:NpuBackend), plugin API 1
  partitioners  fast, whole
  runtime       on this host
  formats       .npu, .npu.json
  options
    mode   str    default 'fast'  one of 'fast', 'small'; what to optimize for
    level  int    default 1       one of 1, 2
    scale  float  no default      of the inputs
    trace  bool   default False
"""
DECLARED = """
from delegraph.plugin import BackendSpec, FormatSpec, OptionSpec, PartitionerSpec, RuntimeSpec, hookimpl

OPTIONS = (
    OptionSpec("mode", str, "fast", ("fast", "small"), "what to optimize for"),
    OptionSpec("level", int, 1, (1, 2)),
    OptionSpec("scale", float, help="of the inputs"),
    OptionSpec("trace", bool, False),
)

@hookimpl
def delegraph_backends():
    return [BackendSpec("npu", "chip_vendor:NpuBackend", "NpuBackend", 1, "a chip", options=OPTIONS)]

@hookimpl
def delegraph_formats():
    return [FormatSpec(suffix, "chip_vendor:Format") for suffix in (".npu", ".npu.json")]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec(name, "npu", "chip_vendor:P", default=name == "fast") for name in ("fast", "whole")]

@hookimpl
def delegraph_runtimes():
    return [RuntimeSpec("npu", "chip_vendor:R")]
"""


def test_backends_verbose_shows_everything_that_is_declared(site):
    site.plugin("chip-vendor", DECLARED)
    only = {"DELEGRAPH_PLUGINS": "chip-vendor"}
    shown = run_python(
        "-m", "delegraph", "backends", "-v", path=site.folder, **only
    ).stdout.splitlines()
    end = next(k for k, line in enumerate(shown) if " is disabled: " in line)
    assert "\n".join(shown[:end]) + "\n" == VERBOSE.replace("SITE", str(site.folder))


def test_broken_unused_plugin_is_a_warning_on_stderr(site, model):
    site.plugin("bad-one", "raise ValueError('no luck')")
    completed = run_python(
        "-m", "delegraph", "lower", str(model), "--backend", "absent", path=site.folder
    )

    assert (
        "warning: bad-one of bad-one 1.0 is broken: ValueError: no luck"
        in completed.stderr
    )
    assert "error [backend-not-found]" in completed.stderr


@pytest.mark.parametrize(
    "command",
    [["backends"], ["backends", "-v"], ["backends", "--json"], ["lower", "--help"]],
)
def test_listing_and_help_import_no_torch_or_numpy(command):
    program = (
        f"import sys; from delegraph.cli import main; code = main({command!r});assert"
        " code == 0 and not {'torch', 'numpy', 'delegraph_analysis.drawing'} &"
        " set(sys.modules)"
    )
    completed = run_python("-c", program)
    assert completed.returncode == 0, completed.stderr


def test_listing_many_plugins_imports_no_torch_or_numpy(site):
    for k in range(150):
        site.plugin(
            f"chip-{k}",
            DECLARED.replace('"npu"', f'"npu-{k}"').replace("NpuBackend", f"Npu{k}"),
        )
        info = site.folder / f"other_{k}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: other-{k}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(
            f"[console_scripts]\nother-{k} = other_{k}:delegraph\n"
        )
    program = (
        "import sys; from delegraph.cli import main; main(['backends']);"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    completed = run_python("-c", program, path=site.folder)
    row = re.compile(r"^npu-\d+ +ok +chip-\d+ 1\.0 +a chip$", re.MULTILINE)

    assert completed.returncode == 0, completed.stderr
    assert len(row.findall(completed.stdout)) == 150


def test_python_minus_m_behaves_like_the_command(tmp_path):
    completed = run_python("-m", "delegraph", "--version")
    assert completed.returncode == 0
    assert completed.stdout == f"delegraph {delegraph.__version__}\n"

    completed = run_python("-m", "delegraph", "backends", "--json")
    assert json.loads(completed.stdout)["schema"] == "delegraph.backends/1"

    completed = run_python("-m", "delegraph", "lower")
    assert completed.returncode == 2
    assert completed.stdout == ""
    assert "usage: delegraph lower" in completed.stderr


def test_an_unknown_flag_shows_the_usage_of_its_command(tmp_path, capsys):
    assert main(["backends", "--nonsense", "1"]) == 2
    stderr = capsys.readouterr().err
    assert "unrecognized arguments: --nonsense 1\nusage: delegraph backends [" in stderr
    assert "delegraph backends --help" in stderr


@pytest.mark.parametrize("module", ["torch", "pluggy", "argparse"])
def test_python_minus_m_runs_nothing_of_the_working_directory(tmp_path, module):
    (tmp_path / f"{module}.py").write_text("print('it ran')")
    program = (
        "def model():\n    import torch\n    return torch.nn.ReLU().eval(),"
        " (torch.ones(2),)\n"
    )
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "model.py").write_text(program)
    command = ["backends"]
    if module == "torch":  # ``backends`` does not import torch
        command = ["lower", "folder/model.py", "--backend", "tosa"]
    completed = run_python("-m", "delegraph", *command, cwd=tmp_path)

    assert completed.returncode == 0, completed.stderr
    assert "it ran" not in completed.stdout + completed.stderr, completed.stderr


def test_a_plugin_that_ends_the_process_is_listed_as_broken(site):
    site.plugin("bad-one", "import os\nos._exit(0)", version="0.7")
    site.backend("chip-vendor", "npu")
    completed = run_python("-m", "delegraph", "backends", path=site.folder)

    assert (
        f"is broken: os._exit(0) was called ({site.folder / 'bad_one.py'}:2)"
        in completed.stdout
    )
    assert re.search(r"^npu +ok ", completed.stdout, re.MULTILINE)


def test_version_and_help_are_printed(capsys):
    code, out, _ = run_command(capsys, "--version")
    assert code == 0
    assert out == f"delegraph {delegraph.__version__}\n"

    code, out, _ = run_command(capsys, "lower", "--help")
    assert code == 0
    assert "--require-full" in out


def test_json_writes_infinities_and_nan_as_null():
    content = {"x": [float("inf"), float("nan"), 1.5]}
    assert json.loads(as_json(Outcome("s/1", content, ""))) == {
        "schema": "s/1",
        "x": [None, None, 1.5],
    }


def test_json_writes_a_class_as_its_name():
    outcome = Outcome("s/1", {"type": int}, "")
    assert json.loads(as_json(outcome)) == {"schema": "s/1", "type": "int"}


def test_a_closed_pipe_prints_no_error():
    completed = subprocess.run(
        f"{sys.executable} -m delegraph backends -v | true",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert completed.stderr == ""


@pytest.mark.parametrize("command", ["lower", "backends --json"])
def test_a_missing_requirement_is_named(command):
    program = (
        "import sys; sys.modules['pluggy'] = None; from delegraph.cli import main;"
        f" exit(main({command.split()}))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    said = completed.stdout + completed.stderr

    assert completed.returncode == 1
    assert "Traceback" not in said
    assert "requirement-missing" in said
    assert re.search(
        r"delegraph requires pluggy\S*, which is not installed in this environment",
        said,
    )

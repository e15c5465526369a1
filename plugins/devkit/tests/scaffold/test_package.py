"""The package of a new backend is written whole or not at all, is clean, and works."""

import ast
import difflib
import json
import os
import py_compile
import re
import runpy
import subprocess
import sys

import delegraph
import pytest
import torch
from delegraph import Registry
from delegraph.errors import FormatError, WriteError
from delegraph_devkit import scaffold
from delegraph_devkit.scaffold import FILES, Names, generate, package
from packaging.requirements import Requirement
from packaging.version import Version

from ..support.kit import contents_of_files

KINDS = ("device", "tosa", "device tosa")


def test_the_listed_files_are_the_template():
    assert set(contents_of_files(package.TEMPLATE)) == set(FILES)
    assert set(contents_of_files(package.DEVICE_TEMPLATE)) == set(package.DEVICE_FILES)
    assert set(contents_of_files(package.TOSA_TEMPLATE)) == set(package.TOSA_FILES)
    assert set(contents_of_files(package.TOSA_DEVICE_TEMPLATE)) == set(
        package.TOSA_DEVICE_FILES
    )


def test_build_requirements_are_in_the_extra_dev():
    """``python -m build --no-isolation`` uses installed packages, and the guide installs
    the extra ``dev``.
    """
    text = contents_of_files(package.TEMPLATE)["pyproject.toml"]
    builds, extra = (
        re.search(rf"^{key} = \[(.*)\]$", text, re.MULTILINE)[1]
        for key in ("requires", "dev")
    )
    assert {*builds.split(", ")} <= {*extra.split(", ")}


def test_device_templates_only_add_lines():
    plain = contents_of_files(package.TEMPLATE)
    more = contents_of_files(package.DEVICE_TEMPLATE)
    for path in set(plain) & set(more):
        lines = list(difflib.ndiff(plain[path].splitlines(), more[path].splitlines()))
        assert [line for line in lines if line.startswith("-")] == [], path
        assert [line for line in lines if line.startswith("+")] != [], path


def test_tosa_templates_only_add_declarations():
    plain = contents_of_files(package.TEMPLATE)
    more = contents_of_files(package.TOSA_TEMPLATE)
    for path in ("src/acme_npu/plugin.py", "tests/test_contract.py", "pyproject.toml"):
        lines = [
            line
            for line in difflib.ndiff(plain[path].splitlines(), more[path].splitlines())
            if line[0] in "+-"
        ]
        assert 0 < len(lines) <= 10, (path, lines)
    assert re.findall(r'"(delegraph-tosa[<>=][^"]+)"', more["pyproject.toml"]) == [
        "delegraph-tosa>=0.1,<0.2"
    ]


def test_tosa_device_projects_combine_both_templates():
    device, tosa, both = (
        contents_of_files(template)["pyproject.toml"].splitlines()
        for template in (
            package.DEVICE_TEMPLATE,
            package.TOSA_TEMPLATE,
            package.TOSA_DEVICE_TEMPLATE,
        )
    )
    assert {*tosa} - {*device} - {*both} == {
        'dependencies = ["delegraph>=0.1,<0.2", "delegraph-engines>=0.1,<0.2",'
        ' "delegraph-tosa>=0.1,<0.2"]'
    }
    assert {*both} - {*device} == {
        'dependencies = ["delegraph>=0.1,<0.2", "delegraph-engines>=0.1,<0.2",'
        ' "delegraph-tosa>=0.1,<0.2", "numpy"]'
    }


def test_tosa_templates_have_at_most_300_lines_to_replace(
    tmp_path,
):
    generate(Names.of("my-npu"), tmp_path / "made", device=True, tosa=True)
    written = contents_of_files(tmp_path / "made")
    mine = re.findall(r"^\| `(src/\S+)` \|", written["README.md"], re.MULTILINE)
    assert len(mine) == 7
    assert "src/my_npu/device/my_npu.cpp" in mine
    # these two differ from the template in names only
    declared = ("src/my_npu/plugin.py", "src/my_npu/partitioner.py")
    assert (
        sum(
            _lines_of_code(path, written[path]) for path in mine if path not in declared
        )
        <= 300
    )


def _lines_of_code(path, text):
    """Count lines without blank lines, comments and docstrings."""
    documented = set()
    if path.endswith(".py"):
        texts = (
            n
            for n in ast.walk(ast.parse(text))
            if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
        )
        documented = {
            number
            for node in texts
            for number in range(node.lineno, node.end_lineno + 1)
        }
    lines = enumerate(text.splitlines(), start=1)
    return sum(
        k not in documented
        and not line.strip().startswith(("#", "//"))
        and line.strip() != ""
        for k, line in lines
    )


def test_both_halves_list_operations_in_one_order():
    written = contents_of_files(package.TOSA_DEVICE_TEMPLATE)
    listed = re.search(
        r"^enum \{ CONST, INPUT, (.+) \};",
        written["src/acme_npu/device/acme_npu.cpp"],
        re.MULTILINE,
    )[1]
    assert listed.split(", ") == re.findall(
        r'^    "(\w+)": \(', written["src/acme_npu/instructions.py"], re.MULTILINE
    )


LONG = "abcdefghij-abcdefghij-abcdefghij-abcdef"


@pytest.mark.parametrize(
    "text",
    [
        "my-npu",
        "My_NPU",
        "acme.x86--2",
        "my-backend",
        "npu",
        "q",
        LONG,
        "delegraph-npu npu",
        f"x{LONG} y{LONG}",
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_generated_code_is_clean_for_all_names(text, kind, tmp_path):
    names = Names.of(*text.split())
    files = generate(names, tmp_path / "made", **dict.fromkeys(kind.split(), True))
    written = contents_of_files(tmp_path / "made")
    assert set(files) == set(written)
    assert f"src/{names.package}/backend.py" in written
    assert (
        f"class {names.backend_id}(BackendDetails)"
        in written[f"src/{names.package}/backend.py"]
    )
    for arguments in (["check"], ["format", "--check"]):
        command = [
            sys.executable,
            "-m",
            "ruff",
            *arguments,
            "--no-cache",
            "--quiet",
            ".",
        ]
        completed = subprocess.run(
            command, cwd=tmp_path / "made", capture_output=True, text=True
        )
        assert completed.returncode == 0, completed.stdout


@pytest.mark.parametrize(
    "text", ["my-npu", "acme-npu-acme", "acme-npu-plugins acme-npu2"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_names_of_the_template_are_replaced_everywhere_once(text, kind, tmp_path):
    names = Names.of(*text.split())
    generate(names, tmp_path / "made", **dict.fromkeys(kind.split(), True))
    everything = json.dumps(contents_of_files(tmp_path / "made"))
    for own in (names.distribution, names.backend, names.package, names.prefix):
        everything = everything.replace(own, "")
    assert not re.search("acme.?npu", everything, flags=re.IGNORECASE)


def test_packages_require_this_minor_release():
    text = (package.TEMPLATE / "pyproject.toml").read_text()
    expected = [
        Requirement(line) for line in re.findall(r'"(delegraph[-\w]*[<>=][^"]+)"', text)
    ]
    assert [one.name for one in expected] == ["delegraph", "delegraph-devkit"]
    assert re.search(r'^dev = .*"delegraph-devkit', text, re.MULTILINE), (
        "users of the backend do not need the kit"
    )
    this = Version(delegraph.__version__)
    for one in expected:
        assert this in one.specifier
        assert f"{this.major}.{this.minor + 1}.0" not in one.specifier


def test_compiled_files_are_not_copied(tmp_path, monkeypatch):
    template = tmp_path / "template"
    for path, text in contents_of_files(package.TEMPLATE).items():
        (template / path).parent.mkdir(parents=True, exist_ok=True)
        (template / path).write_text(text)
    monkeypatch.setattr(package, "TEMPLATE", template)
    py_compile.compile(str(template / "example.py"))
    assert (template / "__pycache__").is_dir()
    generate(Names.of("my-npu"), tmp_path / "made")
    assert not (tmp_path / "made" / "__pycache__").exists()


# --- whole or not at all


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "made").mkdir()
    generate(Names.of("npu"), tmp_path / "made")
    assert (tmp_path / "made" / "pyproject.toml").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_folder_gets_the_usual_permissions(tmp_path):
    mask = os.umask(0o027)
    try:
        generate(Names.of("npu"), tmp_path / "made")
    finally:
        os.umask(mask)
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "made" / "pyproject.toml").stat().st_mode & 0o777 == 0o640


def places(folder):
    (folder / "full").mkdir()
    (folder / "full" / "mine").write_text("mine")
    (folder / "file").write_text("mine")
    (folder / "here").mkdir()
    os.chdir(folder / "here")


PLACES = {
    "full": "not empty",
    "file": "it is a file",
    "here": "current folder",
    "no/npu": "there is no folder",
}


@pytest.mark.parametrize("place", PLACES)
def test_existing_files_are_kept(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(WriteError, match=PLACES[place]):
        generate(Names.of("npu"), tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before
    assert (
        (tmp_path / "full" / "mine").read_text()
        == (tmp_path / "file").read_text()
        == "mine"
    )


@pytest.mark.parametrize("step", ["rename", "read"])
def test_a_failure_leaves_nothing(step, tmp_path, monkeypatch):
    def fails(*args):
        raise OSError(28, "No space left on device")

    if step == "rename":
        monkeypatch.setattr(package.os, "rename", fails)
    else:
        monkeypatch.setattr(package, "FILES", (*FILES, "not there"))
    with pytest.raises(WriteError, match="cannot write .*made: No s"):
        generate(Names.of("npu"), tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


# --- the package works


@pytest.fixture
def made(tmp_path, site):
    """Write the template under another name, and make it importable."""
    scaffold.generate(Names.of("my-npu"), tmp_path / "made")
    sys.path.insert(0, str(tmp_path / "made" / "src"))
    return tmp_path / "made"


def test_the_example_runs_on_the_new_backend(made):
    from my_npu.backend import MyNpuBackend
    from my_npu.partitioner import MyNpuPartitioner
    from my_npu.runtime import MyNpuRuntime

    module, inputs = runpy.run_path(str(made / "example.py"))["model"]()
    registry = Registry(discover=False)
    with registry.register(
        MyNpuBackend, partitioner=MyNpuPartitioner, runtime=MyNpuRuntime, name="my-npu"
    ):
        lowered = delegraph.lower(
            module, inputs, backends=["my-npu"], registry=registry
        )
        assert [len(delegate.nodes) for delegate in lowered.delegates] == [4]
        assert [
            (refusal.operator, refusal.reason) for refusal in lowered.report.refusals
        ] == [("aten.softmax.int", "my-npu has no instruction for it")]
        assert lowered.verify(*inputs).relative_error == 0


def test_declared_targets_exist(made):
    from my_npu import plugin

    declared = [
        *plugin.delegraph_backends(),
        *plugin.delegraph_partitioners(),
        *plugin.delegraph_runtimes(),
    ]
    for one in declared:
        module, _, name = one.target.partition(":")
        assert getattr(__import__(module, fromlist=[name]), name).__name__ == name
    assert declared[0].backend_id == "MyNpuBackend"
    assert declared[0].api == delegraph.plugin.API_VERSION


def test_the_example_runs_on_a_backend_that_reads_tosa(tmp_path, site):
    scaffold.generate(Names.of("tosa-npu"), tmp_path / "made", tosa=True)
    sys.path.insert(0, str(tmp_path / "made" / "src"))
    from tosa_npu import plugin
    from tosa_npu.backend import TosaNpuBackend
    from tosa_npu.instructions import WORD
    from tosa_npu.partitioner import TosaNpuPartitioner
    from tosa_npu.runtime import TosaNpuRuntime

    module, inputs = runpy.run_path(str(tmp_path / "made" / "example.py"))["model"]()
    with delegraph.register(
        TosaNpuBackend,
        partitioner=TosaNpuPartitioner,
        runtime=TosaNpuRuntime,
        name="tosa-npu",
    ):
        lowered = delegraph.lower(module, inputs, backends=["tosa-npu"])
        [delegate], [refusal] = lowered.delegates, lowered.report.refusals
        assert len(delegate.nodes) == 4
        assert refusal.operator == "aten.softmax.int"
        assert refusal.reason.startswith("TOSA REDUCE_MAX: tosa-npu has no REDUCE_MAX")
        assert lowered.verify(*inputs).relative_error < 1e-6
        with pytest.raises(FormatError, match="damaged"):
            TosaNpuRuntime.load(
                b"?" + delegate.processed_bytes[1:], delegate.compile_specs, {}
            )
    assert WORD == "tosanpu"
    assert plugin.delegraph_backends()[0].traits.composes == ("delegraph-tosa",)


def test_the_example_runs_on_a_tosa_backend_with_new_format(tmp_path, site):
    scaffold.generate(Names.of("own-npu"), tmp_path / "made", tosa=True, device=True)
    sys.path.insert(0, str(tmp_path / "made" / "src"))
    from own_npu.backend import OwnNpuBackend
    from own_npu.partitioner import OwnNpuPartitioner
    from own_npu.runtime import OwnNpuRuntime

    module, inputs = runpy.run_path(str(tmp_path / "made" / "example.py"))["model"]()
    with delegraph.register(
        OwnNpuBackend,
        partitioner=OwnNpuPartitioner,
        runtime=OwnNpuRuntime,
        name="own-npu",
    ):
        lowered = delegraph.lower(module, inputs, backends=["own-npu"])
        [delegate], [refusal] = lowered.delegates, lowered.report.refusals
        assert len(delegate.nodes) == 4
        assert delegate.processed_bytes.startswith(b"own-npu 1\n")
        assert refusal.reason.startswith("TOSA REDUCE_MAX: own-npu has no REDUCE_MAX")
        assert lowered.verify(*inputs).relative_error < 1e-6
        with pytest.raises(FormatError, match="damaged"):
            OwnNpuRuntime.load(
                delegate.processed_bytes[:-1], delegate.compile_specs, {}
            )
        wide = torch.nn.Conv2d(1, 2, 3).eval(), (torch.randn(1, 1, 5, 5),)
        [row] = delegraph.lower(*wide, backends=["own-npu"]).report.refusals
        assert "own-npu has convolutions of one pixel, with stride 1" in row.reason
    assert OwnNpuRuntime.device_half.is_file()

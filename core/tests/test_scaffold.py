"""``delegraph new-backend``: names, refusals, a folder that is whole or not there, and a package that works."""

import json
import os
import py_compile
import re
import runpy
import subprocess
import sys

import delegraph
import pytest
from delegraph.cli import main
from delegraph.discovery.registry import Registry
from delegraph.errors import WriteError
from delegraph_devkit import scaffold
from delegraph_devkit.scaffold import FILES, Names, generate, package, taken, why_not
from packaging.requirements import Requirement
from packaging.version import Version

NAMES = {
    "my-npu": ("my-npu", "my_npu", "MyNpuBackend"),
    "My_NPU": ("my-npu", "my_npu", "MyNpuBackend"),
    "acme.x86--2": ("acme-x86-2", "acme_x86_2", "AcmeX862Backend"),
    "my-backend": ("my-backend", "my_backend", "MyBackend"),
    "npu": ("npu", "npu", "NpuBackend"),
    "acme-npu-acme": ("acme-npu-acme", "acme_npu_acme", "AcmeNpuAcmeBackend"),
}
REFUSED = {
    "": "begins with a letter",
    "2fast": "begins with a letter",
    "my npu": "letters, digits",
    "npu-": "ends with a letter or digit",
    "../npu": "letters, digits",
    "größe": "letters, digits",
    "n" * 41: "at most 40 characters; this one has 41",
    "delegraph": "'delegraph' is reserved",
    "Tests": "'tests' is reserved",
    "lambda": "a word of the Python language",
    "json": "a module of Python's own library",
}


@pytest.mark.parametrize("text", NAMES)
def test_names_are_normalized(text):
    names = Names.of(text)
    assert (names.backend, names.package, names.backend_id) == NAMES[text]
    assert why_not(text) is None


@pytest.mark.parametrize("text", REFUSED)
def test_a_name_that_cannot_be_is_refused_with_the_reason(text):
    assert REFUSED[text] in why_not(text)


def test_a_name_that_is_taken_is_refused_with_its_owner(site):
    site.backend("acme-tools", "npu2", backend_id="FastNpuBackend")
    registry = Registry()
    assert "acme-tools 1.0 is installed and offers 'npu2'" in taken(Names.of("npu2"), registry)
    assert "FastNpuBackend" in taken(Names.of("fast-npu"), registry)
    assert "the distribution acme-tools 1.0 is installed" in taken(Names.of("acme-tools"), registry)
    (site.folder / "alone.py").write_text("raise SystemExit")
    assert str(site.folder / "alone.py") in taken(Names.of("alone"), registry)
    (site.folder / "only_a_folder").mkdir()
    assert taken(Names.of("only-a-folder"), registry) is None
    assert taken(Names.of("nobody-has-this"), registry) is None
    assert taken(Names.of("delegraph-alone", "alone"), registry) is None
    assert "the distribution acme-tools 1.0 is installed" in taken(Names.of("acme-tools", "free"), registry)
    assert "offers 'npu2'" in taken(Names.of("delegraph-npu2", "npu2"), registry)


# --- what is written


LEFT_BEHIND = re.compile(r"__pycache__|\.\w+_cache")


def contents(folder):
    """Path -> text, without what Python and linters leave behind."""
    files = {str(p.relative_to(folder)): p for p in folder.rglob("*") if p.is_file()}
    return {path: p.read_text() for path, p in files.items() if not LEFT_BEHIND.search(path)}


def test_the_listed_files_are_the_template():
    assert set(contents(package.TEMPLATE)) == set(FILES)


LONG = "abcdefghij-abcdefghij-abcdefghij-abcdef"


@pytest.mark.parametrize("text", [*NAMES, "q", LONG, "delegraph-npu npu", f"x{LONG} y{LONG}"])
def test_the_code_is_clean_whatever_its_name(text, tmp_path):
    names = Names.of(*text.split())
    files = generate(names, tmp_path / "made")
    written = contents(tmp_path / "made")
    assert set(files) == set(written)
    assert f"src/{names.package}/backend.py" in written
    assert f"class {names.backend_id}(BackendDetails)" in written[f"src/{names.package}/backend.py"]
    for arguments in (["check"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--no-cache", "--quiet", "."]
        done = subprocess.run(command, cwd=tmp_path / "made", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("text", ["my-npu", "acme-npu-acme", "acme-npu-plugins acme-npu2"])
def test_the_template_s_names_are_replaced_everywhere_once(text, tmp_path):
    names = Names.of(*text.split())
    generate(names, tmp_path / "made")
    everything = json.dumps(contents(tmp_path / "made"))
    for own in (names.distribution, names.backend, names.package, names.prefix):
        everything = everything.replace(own, "")
    assert not re.search("acme.?npu", everything, flags=re.IGNORECASE)


def test_it_asks_for_this_minor_release():
    [line] = re.findall(r"^dependencies = \[\"(.+?)\"", (package.TEMPLATE / "pyproject.toml").read_text(), re.MULTILINE)
    wanted = Requirement(line)
    this = Version(delegraph.__version__)
    assert wanted.name == "delegraph"
    assert this in wanted.specifier
    assert f"{this.major}.{this.minor + 1}.0" not in wanted.specifier


def test_what_an_installer_compiled_is_not_copied(tmp_path, monkeypatch):
    template = tmp_path / "template"
    for path, text in contents(package.TEMPLATE).items():
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
    assert [p.name for p in tmp_path.iterdir()] == ["made"]


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


PLACES = {"full": "not empty", "file": "it is a file", "here": "current folder", "no/npu": "there is no folder"}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_there_is_kept(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(WriteError, match=PLACES[place]):
        generate(Names.of("npu"), tmp_path / place)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "full" / "mine").read_text() == (tmp_path / "file").read_text() == "mine"


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


# --- the command


def run(capsys, *arguments):
    code = main(["new-backend", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_command_says_what_it_wrote_and_what_comes_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "My_NPU")
    assert (code, err) == (0, "")
    assert "wrote my-npu, a package with the backend my-npu (MyNpuBackend)" in out
    next_commands = [line.strip() for line in out.partition("next:\n")[2].splitlines()]
    assert next_commands == [
        "pip install -e ./my-npu",
        "delegraph lower my-npu/example.py --backend my-npu --verify",
        "delegraph check my-npu",
    ]


def test_the_command_as_json(tmp_path, capsys):
    folder = tmp_path / "a folder"
    code, out, _ = run(capsys, "my-npu", folder, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "delegraph.new-backend/1"
    assert (found["name"], found["distribution"], found["package"]) == ("my-npu", "my-npu", "my_npu")
    assert (found["backend_id"], found["folder"]) == ("MyNpuBackend", str(folder))
    assert set(found["files"]) == set(contents(folder))
    assert found["next"][0] == f"pip install -e '{folder}'"


def test_a_backend_called_as_the_compiler_that_is_installed(tmp_path, monkeypatch, capsys):
    """The package needs a name of its own, which pip and Python have not yet; what users type has not."""
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "torch")
    assert code == 2 and "such as: delegraph new-backend delegraph-torch --backend torch" in err
    code, out, err = run(capsys, "delegraph-torch", "--backend", "torch", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["name"], found["distribution"]) == ("torch", "delegraph-torch")
    assert (found["package"], found["backend_id"], found["folder"]) == (
        "delegraph_torch",
        "TorchBackend",
        "delegraph-torch",
    )
    written = contents(tmp_path / "delegraph-torch")
    assert 'name = "delegraph-torch"' in written["pyproject.toml"]
    assert 'name="torch"' in written["src/delegraph_torch/plugin.py"]
    assert "delegraph check torch" in found["next"]


@pytest.mark.parametrize(("backend", "message"), [("2fast", "no backend can be called '2fast'"), ("host", "reserved")])
def test_a_backend_s_own_name_is_checked(backend, message, capsys):
    code, _, err = run(capsys, "delegraph-npu", "--backend", backend)
    assert code == 2 and message in err


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("2fast", 2, "error [usage-invalid]: no backend can be called '2fast': a name has letters"),
        ("torch", 2, "error [usage-invalid]: the name 'torch' is taken: the distribution torch"),
        ("npu", 1, "error [write-failed]: cannot write npu: the folder is not empty"),
    ],
)
def test_the_command_refuses(name, code, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "npu").mkdir()
    (tmp_path / "npu" / "mine").touch()
    got, out, err = run(capsys, name)
    assert (got, out) == (code, "")
    assert message in err
    assert [p.name for p in tmp_path.rglob("*")] == ["npu", "mine"]


def test_the_command_imports_no_torch(tmp_path):
    code = "import sys; from delegraph.cli import main; main(['new-backend', 'my-npu']); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


# --- what it does


@pytest.fixture
def made(tmp_path, site):
    """The template under another name, importable."""
    scaffold.generate(Names.of("my-npu"), tmp_path / "made")
    sys.path.insert(0, str(tmp_path / "made" / "src"))
    return tmp_path / "made"


def test_the_example_runs_on_the_new_backend(made):
    from my_npu.backend import MyNpuBackend
    from my_npu.partitioner import MyNpuPartitioner
    from my_npu.runtime import MyNpuRuntime

    module, inputs = runpy.run_path(str(made / "example.py"))["model"]()
    registry = Registry(discover=False)
    with registry.register(MyNpuBackend, partitioner=MyNpuPartitioner, runtime=MyNpuRuntime, name="my-npu"):
        lowered = delegraph.lower(module, inputs, backends=["my-npu"], registry=registry)
        assert [len(d.nodes) for d in lowered.delegates] == [4]
        assert [(r.operator, r.reason) for r in lowered.report.refusals] == [
            ("aten.softmax.int", "my-npu has no instruction for it")
        ]
        assert lowered.verify(*inputs).relative_error == 0


def test_what_it_declares_is_what_it_has(made):
    from my_npu import plugin

    declared = [*plugin.delegraph_backends(), *plugin.delegraph_partitioners(), *plugin.delegraph_runtimes()]
    for one in declared:
        module, _, name = one.target.partition(":")
        assert getattr(__import__(module, fromlist=[name]), name).__name__ == name
    assert declared[0].backend_id == "MyNpuBackend"
    assert declared[0].api == delegraph.plugin.API_VERSION

"""Imports follow the layers of docs/architecture.md, and its paths exist."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [
    ROOT / "programs/src",
    ROOT / "core/src",
    *sorted(ROOT.glob("plugins/*/src")),
]
PAGE = (ROOT / "docs/architecture.md").read_text()
CONTRACT = (
    "backend",
    "compiler",
    "errors",
    "formats",
    "named_data",
    "plugin",
    "runtime",
)


def lint(*sources):
    """Return the exit code and the output of import-linter."""
    command = [
        Path(sys.executable).with_name("lint-imports"),
        "--config",
        ROOT / "pyproject.toml",
        "--no-cache",
    ]
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
        "COLUMNS": "200",
    }
    completed = subprocess.run(
        command, env=environ, capture_output=True, text=True, cwd=ROOT
    )
    return completed.returncode, completed.stdout + completed.stderr


def test_imports_follow_the_layers_and_contracts():
    code, printed = lint(*SOURCES)
    assert code == 0, printed
    contracts = (
        (ROOT / "pyproject.toml").read_text().count("[[tool.importlinter.contracts]]")
    )
    assert f"{contracts} kept, 0 broken" in printed


def test_the_contract_for_tosa_lists_all_that_is_not_public():
    source = ROOT / "plugins/tosa_backend/src/delegraph_tosa"
    paths = [*source.glob("[a-z]*.py"), *source.glob("[a-z]*/")]
    public = {"borders", "plugin", "quantizer"}
    private = {path.stem for path in paths} - public

    listed = re.findall(r'"delegraph_tosa\.(\w+)",', _contract("composing"))
    assert set(listed) == private


def test_the_contract_lists_all_private_modules_of_the_core():
    core = ROOT / "core/src/delegraph"
    packages = ("command", "delegates", "engine", "host", "report")
    private = set()
    for package in packages:
        for path in (core / package).iterdir():
            if not path.name.startswith("__"):
                private.add(f"{package}.{path.stem}")

    listed = re.findall(r'"delegraph\.(\w+\.\w+)",', _contract("contract"))
    assert set(listed) == private


def _contract(name):
    """Return the lines of a contract in pyproject.toml."""
    return next(
        part
        for part in (ROOT / "pyproject.toml").read_text().split("[[")
        if f'id = "{name}"' in part
    )


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        (
            "delegraph/discovery/records.py",
            "from ..engine import pipeline",
            "delegraph.discovery.records -> delegraph.engine",
        ),
        (
            "delegraph_analysis/drawing/svg.py",
            "from ..page import tables",
            "No cycles are allowed in delegraph_analysis",
        ),
        (
            "delegraph_demo/plugin.py",
            "from delegraph.engine import pipeline",
            "delegraph_demo is not allowed to import",
        ),
        (
            "delegraph_tosa/lowering/builder/emitter.py",
            "from ..geometry import layout",
            (
                "delegraph_tosa.lowering.builder.emitter ->"
                " delegraph_tosa.lowering.geometry"
            ),
        ),
        (
            "delegraph_devkit/contract.py",
            "from delegraph_tosa.ir import graph",
            "delegraph_devkit is not allowed to import delegraph_tosa.ir",
        ),
        (
            "delegraph_tosa/text/literals.py",
            "import torch",
            "delegraph_tosa.text.literals -> torch",
        ),
        (
            "delegraph_tosa/ir/graph.py",
            "from ..text import printing",
            "delegraph_tosa.ir.graph -> delegraph_tosa.text",
        ),
    ],
)
def test_a_forbidden_import_is_found(file, line, said, tmp_path):
    for source in SOURCES:
        shutil.copytree(
            source,
            tmp_path,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    with open(tmp_path / file, "a") as module:
        module.write(f"\n{line}\n")
    code, printed = lint(tmp_path)

    assert code == 1
    assert said in printed


def test_the_contract_is_flat_and_declares_public_names():
    core = ROOT / "core/src/delegraph"
    modules = {p.stem for p in core.glob("*.py")}
    assert modules == {*CONTRACT, "__init__", "__main__", "api", "lowered_program"}
    assert len(modules - {"__init__", "__main__"}) <= 14
    packages = (core / "partitioner/__init__.py", *core.glob("io/[a-z]*.py"))
    packages += tuple(
        core / name / "__init__.py"
        for name in ("command", "delegates", "engine", "host", "report")
    )
    for module in (*(core / f"{name}.py" for name in CONTRACT), *packages):
        assert re.search(r"^__all__ = ", module.read_text(), re.MULTILINE), module


def named_paths():
    """Yield each path of the architecture page: its line, the path, its base folders.

    A path is relative to the root, the core, or the path before it in its row.
    """
    for line in PAGE.splitlines():
        folder = None
        for name in re.findall(r"`([\w./-]+)`", line):
            if "/" not in name and not name.endswith((".py", ".md", ".toml")):
                continue
            places = [ROOT, ROOT / "core/src/delegraph"]
            if folder is not None:
                places.append(folder)
            yield line, name, places
            for place in places:
                path = place / name
                if path.exists():
                    folder = path if path.is_dir() else path.parent
                    break


def test_every_path_in_the_architecture_page_exists():
    paths = list(named_paths())
    missing = [
        (name, line)
        for line, name, places in paths
        if not any((place / name).exists() for place in places)
    ]

    assert len(paths) > 20
    assert missing == []


def test_lowering_imports_nothing_that_only_reads_results():
    code = """
import sys, torch, delegraph
delegraph.lower(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), backends=[])
heavy = ("delegraph_analysis.", "delegraph_quantize.", "torchao")
print([m for m in sys.modules if m.startswith(heavy) and not m.endswith(".plugin")])
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert completed.stdout == "[]\n"


def test_no_test_module_imports_another():
    """Helpers of several modules belong in a folder ``support``."""
    modules = [
        path
        for folder in ("tests", "*/tests", "plugins/*/tests")
        for path in ROOT.glob(f"{folder}/**/test_*.py")
    ]

    assert len(modules) > 200
    assert [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules
        for name in imported_names(path)
        if re.search(r"\btest_", name)
    ] == []


def imported_names(path):
    """Return the modules that a file imports, and the names that it takes from them."""
    names = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.Import():
                names += [alias.name for alias in node.names]
            case ast.ImportFrom():
                names += [f"{node.module}.{alias.name}" for alias in node.names]
            case ast.Call(func=ast.Name("import_module"), args=[name, *_]):
                names.append(ast.unparse(name))
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[name, *_]):
                names.append(ast.unparse(name))
    return names

"""``delegraph_programs`` and the errors of delegraph are imported without torch."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import delegraph_programs
import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "module", ["delegraph_programs", "delegraph_programs.errors", "delegraph.errors"]
)
def test_importing_delegraph_programs_imports_no_torch(module):
    if find_spec(module.partition(".")[0]) is None:
        pytest.skip("delegraph is not installed")
    code = f"import sys, {module}; print('torch' in sys.modules)"
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stdout == "False\n"


def test_at_most_forty_documented_names_are_public():
    names = [name for name in delegraph_programs.__all__ if name != "__version__"]
    assert len(names) <= 40
    values = [getattr(delegraph_programs, name) for name in names]
    assert [value for value in values if callable(value) and not value.__doc__] == []
    assert set(names) <= set(dir(delegraph_programs))
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        delegraph_programs.absent  # noqa: B018


def test_neither_the_package_nor_its_tests_import_delegraph():
    found = []
    for file in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else names
            )
            found += [
                name for name in names if name and name.partition(".")[0] == "delegraph"
            ]

    assert found == []

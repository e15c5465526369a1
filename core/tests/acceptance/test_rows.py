"""Each row of ``rows.txt`` has a test in this folder. A row names a test of ExecuTorch."""

import ast
from pathlib import Path

HERE = Path(__file__).parent


def named(file):
    """Yield the name and the docstring of each test in a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""


def words_of(text):
    """Return the words of a docstring. ``group.name`` is one word."""
    return {word.strip(":;,()`").rstrip(".") for word in text.split()}


def covered_rows():
    """Return the rows that have a test.

    A test covers ``group.name`` if it is called ``test_name`` in ``test_group.py``, or
    if its docstring has the row.
    """
    found = set()
    for file in HERE.glob("test_*.py"):
        group = file.stem.removeprefix("test_").removesuffix("_rows")
        for name, doc in named(file):
            found |= {
                f"{group}.{name}",
                f"{group}.{name.removeprefix('test_')}",
                *words_of(doc),
            }
    return found


def test_every_row_has_a_test():
    rows = (HERE / "rows.txt").read_text().split()
    assert len(rows) == len(set(rows)) > 130
    have = covered_rows()
    missing = [row for row in rows if row not in have]
    assert not missing, "\n".join(["rows without a test:", *missing])

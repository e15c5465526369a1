"""Every row of ``rows.txt``, one case of ExecuTorch's own tests each, has a test in
this folder.
"""

import ast
from pathlib import Path

HERE = Path(__file__).parent


def named(file):
    """Name and docstring of each test in a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node.name, ast.get_docstring(node) or ""


def words_of(text):
    """The words of a docstring, ``group.name`` being one."""
    return {word.strip(":;,()`").rstrip(".") for word in text.split()}


def covered_rows():
    """Rows as ``group.name``: a test in ``test_group.py`` is called so, or a test's
    docstring names the row.
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

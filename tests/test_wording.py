"""Reasons, notes, hints and errors name no internals of torch or delegraph."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [
    *sorted(ROOT.glob("programs/src/**/*.py")),
    *sorted(ROOT.glob("core/src/**/*.py")),
    *sorted(ROOT.glob("plugins/*/src/**/*.py")),
]
INSIDE = re.compile(
    r"fake ?tensor|fake"
    r" ?mode|shape_?env|\bguards?\b|\bSym(Int|Float|Bool|Node)\b|\bproxy\b|\bsympy\b|\bdry"
    r" run\b"
    r"|\bmeta"
    r" tensor|\btorch\.(fx|_(?!check)\w+)|\b_(?-i:[A-Z])\w+|\bdelegraph(_tosa)?\.(engine|lowering|ir|passes)\b",
    re.IGNORECASE,
)
"""Of what torch calls private, users write ``torch._check``, and read operators' names
(``aten._softmax``).
"""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of string literals with several words.

    Docstrings and generated code are left out.
    """
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    docstrings = {
        n.value
        for n in nodes
        if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)
    }
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in docstrings
        ):
            if (
                re.search(r"[a-z]{2,} [a-z]", node.value)
                and "import " not in node.value
            ):
                yield node.lineno, node.value


def test_messages_name_no_internals_of_torch():
    found = [
        f"{p.relative_to(ROOT)}:{line}: {text}"
        for p in SOURCES
        for line, text in texts(p)
        if INSIDE.search(text)
    ]
    assert not found


def reasons(kept: object) -> Iterator[str]:
    """Yield the reasons of nested dictionaries: file, operator, target, reason."""
    if isinstance(kept, dict):
        for key, value in kept.items():
            yield key
            yield from reasons(value)


@pytest.mark.parametrize(
    "path",
    sorted(ROOT.glob("plugins/*/tests/support/verdicts/*.json")),
    ids=lambda p: p.stem,
)
def test_recorded_reasons_name_no_internals_of_torch(path):
    assert not [
        reason
        for reason in reasons(json.loads(path.read_text()))
        if INSIDE.search(reason)
    ]


def test_the_check_finds_internal_names_in_texts():
    assert INSIDE.search("tracing gave _ShapeEnvGuardError: Guard attempted")
    assert not INSIDE.search(
        "aten._softmax.default takes float32 only; input_1 is int32"
    )

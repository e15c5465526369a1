"""Golden texts, for the tests of every package: ``pytest --refresh-golden`` writes them anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-golden", action="store_true", help="write golden texts instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)``: the text is that of ``golden/NAME.txt`` beside the test."""

    def compare(name: str, text: str) -> None:
        file: Path = request.path.parent / "golden" / f"{name}.txt"
        if request.config.getoption("refresh_golden"):
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, "utf-8")
        if not file.exists():
            pytest.fail(f"there is no {file}: write it with pytest --refresh-golden")
        assert text == file.read_text("utf-8"), f"if the change is wanted: pytest --refresh-golden ({file})"

    return compare

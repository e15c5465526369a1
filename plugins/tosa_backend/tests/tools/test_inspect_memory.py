"""``delegraph inspect`` uses memory and prints text in proportion to the size of the file,
even if parts of the file are shared.
"""

from __future__ import annotations

import contextlib
import io
import tracemalloc

import pytest
from delegraph.cli import main

from ..support import hostile

MOST_TIMES = {"text": 32, "json": 32, "html": 80}
"""Bytes of memory for each byte of a file, at the peak of showing it: the graph itself
takes 10 to 17.
"""
LONGEST = {"text": 8, "json": 8, "html": 16}
"""Characters for each byte of a file."""
ALWAYS = 1 << 17
"""Bytes besides, such as a page's style sheet."""


class Sink(io.TextIOBase):
    """Counts what is written and keeps none of it."""

    encoding = "utf-8"

    def __init__(self):
        self.characters = 0

    def write(self, text):
        self.characters += len(text)
        return len(text)


def peak_and_length(folder, form):
    """(bytes of memory at the peak, characters of the result) of one command."""
    options = {
        "text": [],
        "json": ["--json"],
        "html": ["--html", str(folder / "page.html")],
    }[form]
    sink = Sink()
    tracemalloc.start()
    try:
        with contextlib.redirect_stdout(sink):
            assert main(["inspect", str(folder / "a.tosa"), *options]) == 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak, (
        (folder / "page.html").stat().st_size if form == "html" else sink.characters
    )


@pytest.fixture(scope="module")
def tables_loaded(tmp_path_factory):
    """The tables of the specification are in memory, since a small file was shown."""
    folder = tmp_path_factory.mktemp("small")
    for kind in hostile.PRINTED:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hostile, "SIZE", 1 << 8)
            (folder / "a.tosa").write_bytes(hostile.file(kind))
        for form in MOST_TIMES:
            peak_and_length(folder, form)


@pytest.mark.parametrize("form", MOST_TIMES)
@pytest.mark.parametrize("kind", hostile.PRINTED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "size", [1 << 14, pytest.param(590_000, marks=pytest.mark.slow)]
)
@pytest.mark.usefixtures("tables_loaded")
def test_memory_and_output_are_in_proportion_to_the_file(
    kind, form, size, tmp_path, monkeypatch
):
    monkeypatch.setattr(hostile, "SIZE", size)
    data = hostile.file(kind)
    (tmp_path / "a.tosa").write_bytes(data)
    peak, characters = peak_and_length(tmp_path, form)
    assert peak < ALWAYS + MOST_TIMES[form] * len(data), f"{peak / len(data):.1f}"
    assert characters < ALWAYS + LONGEST[form] * len(data), (
        f"{characters / len(data):.1f}"
    )

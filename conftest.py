"""For the tests of every package: texts that are refreshed, and the same randomness in
every run and in every order.
"""

from __future__ import annotations

import gc
import os
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
import torch

# of processes that tests start: one thread each, beside other workers
os.environ.setdefault("OMP_NUM_THREADS", "1")
torch.set_num_threads(1)
# an export makes many objects; by default collecting them takes 5 % longer
gc.set_threshold(20_000, 20, 50)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--refresh-golden",
        action="store_true",
        help="write golden texts instead of comparing with them",
    )
    parser.addoption(
        "--refresh-docs",
        action="store_true",
        help="write what the blocks of the guides print into them",
    )


# before hypothesis reads --hypothesis-profile, which is stronger
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """The default suite draws the same examples each time: what fails in it is the
    change's. Slow sweeps draw anew.
    """
    if config.getoption("markexpr") != "slow":
        hypothesis.settings.load_profile("ci")


@pytest.hookimpl(tryfirst=True)
def pytest_make_collect_report(collector: pytest.Collector) -> None:
    _seed(collector)  # some modules draw inputs while they are imported


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _seed(item)


def _seed(node: pytest.Item | pytest.Collector) -> None:
    """What a test draws does not depend on those that ran before it, or on the worker
    that it runs in.
    """
    seed = zlib.crc32(node.nodeid.encode())
    random.seed(seed)
    torch.default_generator.manual_seed(seed)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt the modules of torch and the tests from garbage collection: they stay to
    the end. Saves 8 %.
    """
    gc.freeze()


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
        assert text == file.read_text("utf-8"), (
            f"if the change is wanted: pytest --refresh-golden ({file})"
        )

    return compare

"""One small matrix for all tests that only read rows."""

import shutil
from pathlib import Path

import pytest
from delegraph.cli import main
from delegraph_analysis.matrix import cells, description, forking
from delegraph_analysis.matrix.store import Store

ZOO = Path(__file__).parent / "zoo.py"


@pytest.fixture(scope="session", autouse=True)
def processes():
    """End the processes for cells after the last test."""
    yield
    forking.close_all()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder with the zoo, in which a command is called."""
    shutil.copy(ZOO, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cells_for(folder):
    """The cells of some models of the zoo for a few targets."""

    def make(*names, backends=(("tosa",),), types=("float",), **settings):
        models = tuple(description.Model(f"zoo.py:{name}", name) for name in names)
        targets = tuple(description.target_of(group, {}) for group in backends)
        kinds = tuple(description.Quantization(kind) for kind in types)
        chosen = description.settings_of({"runs": 1, "files": [], **settings})
        return cells.cells_of(
            description.Matrix(models, targets, kinds, chosen, folder)
        )

    return make


@pytest.fixture
def store(tmp_path):
    made = Store(tmp_path / "store")
    made.create()
    return made


@pytest.fixture(scope="session")
def finished(tmp_path_factory, processes):
    """The store of a matrix of four models, for TOSA, a backend without a runtime, and
    the host.
    """
    folder = tmp_path_factory.mktemp("finished")
    shutil.copy(ZOO, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        models = [f"zoo.py:{name}" for name in ("small", "inverse", "methods", "wrong")]
        given = [
            "--backends",
            "tosa",
            "demo",
            "--host-only",
            "--executor",
            "process:2",
            "--runs",
            "3",
        ]
        assert main(["matrix", *models, *given, "--store", "store", "--json"]) == 1
        assert (
            main(
                [
                    "matrix",
                    "zoo.py:small",
                    "--backends",
                    "tosa",
                    "--quantize",
                    "int8",
                    "--store",
                    "store",
                ]
            )
            == 0
        )
    return folder / "store"

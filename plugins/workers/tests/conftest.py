"""A distribution of troubled backends on the path, which workers find there as well."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from delegraph.discovery.registry import Registry

torch.set_num_threads(1)
SUPPORT = Path(__file__).parent / "support"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("site")
    shutil.copy(SUPPORT / "troubled.py", made)
    info = made / "troubled-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: troubled\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text("[delegraph]\ntroubled = troubled\n")
    return made


@pytest.fixture
def registry(folder, monkeypatch):
    """The registry of a process that has the troubled backends."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv("DELEGRAPH_PLUGINS", raising=False)
    registry = Registry()
    monkeypatch.setattr("delegraph.discovery.registry._default", registry)
    yield registry
    sys.modules.pop("troubled", None)

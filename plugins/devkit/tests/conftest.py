"""Write plugins into a folder at the front of the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from delegraph.discovery.registry import Registry

torch.set_num_threads(1)
BAD_BACKENDS = Path(__file__).parent / "support" / "bad_backends.py"


class Site:
    """Distributions that are a light module and its metadata."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def plugin(self, distribution, source):
        module = distribution.replace("-", "_")
        (self.folder / f"{module}.py").write_text(source)
        info = self.folder / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(
            f"[delegraph]\n{distribution} = {module}\n"
        )


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return an empty site; its modules are removed from sys.modules afterwards."""
    made = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(made.folder))
    for variable in ("DELEGRAPH_PLUGINS", "DELEGRAPH_DISABLE_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    yield made
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


PLUGIN = """
{heavy}
from delegraph.plugin import BackendSpec, PartitionerSpec, RuntimeSpec, hookimpl

@hookimpl
def delegraph_backends():
    return [BackendSpec(name="good", backend_id="GoodBackend", target="bad_backends:GoodBackend", api=1)]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec("good", backend="good", target="bad_backends:GoodPartitioner", default=True)]

@hookimpl
def delegraph_runtimes():
    return [RuntimeSpec("good", target="bad_backends:GoodRuntime")]
"""


@pytest.fixture
def installed(site, monkeypatch):
    """Return a function that installs the good backend.

    Its light module begins with the given text.
    """

    def install(heavy=""):
        site.plugin("good-plugin", PLUGIN.format(heavy=heavy))
        (site.folder / "bad_backends.py").write_text(BAD_BACKENDS.read_text())
        registry = Registry()
        monkeypatch.setattr("delegraph.discovery.registry._default", registry)
        return registry

    return install

"""Fixtures: an echo backend, which runs the original program, and plugins on disk."""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.engine import normalize, planner
from delegraph.runtime import BackendRuntime
from delegraph_programs.fold_scalars import Folded

from .support.zip_plugin import zipped as zipped

torch.set_num_threads(1)
COMPILED = {}


class EchoBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        name = f"program {len(COMPILED)}".encode()
        COMPILED[name] = edge_program
        return PreprocessResult(name)


class EchoRuntime(BackendRuntime):
    @staticmethod
    def load(processed_bytes, compile_specs, named_data):
        module = COMPILED[processed_bytes].module(check_guards=False)
        return lambda *args: tuple(module(*args))


@pytest.fixture
def no_folding(monkeypatch):
    """Turn off the computation of constant calls while lowering."""
    monkeypatch.setattr(planner, "fold_constants", lambda program, may_fold: None)
    monkeypatch.setattr(normalize, "fold_scalars", lambda program: Folded())


@pytest.fixture
def registry():
    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=EchoRuntime)
    yield registry
    COMPILED.clear()


@pytest.fixture(scope="module")
def echo_registry():
    """A registry for property tests, which share one fixture over all examples."""
    registry = Registry(discover=False)
    registry.register(EchoBackend, runtime=EchoRuntime)
    return registry


class Site:
    """A folder on the path with distributions of a light module and its metadata."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def plugin(
        self, distribution, source, version="1.0", module=None, name=None, value=None
    ):
        module = module or distribution.replace("-", "_")
        (self.folder / f"{module}.py").write_text(textwrap.dedent(source))
        self.metadata(
            distribution, f"{name or distribution} = {value or module}", version
        )

    def metadata(self, distribution, entry, version="1.0"):
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[delegraph]\n{entry}\n")

    def backend(self, distribution, name, **fields):
        """A distribution with one backend that works; ``fields`` are of its
        BackendSpec, ``formats`` are suffixes.
        """
        self.plugin(
            distribution,
            backend_source(distribution.replace("-", "_"), name, **fields),
            name=name,
        )


def backend_source(module, name, formats=(), **fields):
    spec = {"name": name, "backend_id": f"{name.title()}Backend", "api": 1, **fields}
    spec.setdefault("target", f"{module}:{spec['backend_id']}")
    return f"""
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.formats import ProgramFormat
from delegraph.plugin import BackendSpec, FormatSpec, OptionSpec, PartitionerSpec, RuntimeSpec, hookimpl

class Format(ProgramFormat):
    pass

class {spec["backend_id"]}(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"")

@hookimpl
def delegraph_backends():
    return [BackendSpec({", ".join(f"{k}={v!r}" for k, v in spec.items())})]

@hookimpl
def delegraph_formats():
    return [FormatSpec(suffix, "{module}:Format") for suffix in {formats!r}]
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty installation folder first on the path. Its imports are forgotten
    afterwards.
    """
    made = Site(tmp_path / "site")
    monkeypatch.syspath_prepend(str(made.folder))
    for variable in ("DELEGRAPH_PLUGINS", "DELEGRAPH_DISABLE_PLUGINS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("delegraph.discovery.registry._warned", set())
    yield made
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]

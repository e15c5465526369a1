"""The light module of the demo declares its backends without importing torch."""

import importlib
import subprocess
import sys

import pytest
from delegraph_demo import plugin


@pytest.mark.parametrize(
    "hook", ["delegraph_backends", "delegraph_partitioners", "delegraph_runtimes"]
)
def test_declared_targets_exist(hook):
    for declared in getattr(plugin, hook)():
        module, name = declared.target.split(":")
        assert getattr(importlib.import_module(module), name).__name__ == name


BACKENDS = {spec.name: spec for spec in plugin.delegraph_backends()}


def test_targets_of_backends_have_the_name_of_their_id():
    for spec in BACKENDS.values():
        assert spec.target.endswith(f":{spec.backend_id}")


def test_each_backend_has_one_default_partitioner():
    partitioners = plugin.delegraph_partitioners()

    assert sorted(spec.backend for spec in partitioners) == sorted(BACKENDS)
    assert all(spec.default is True for spec in partitioners)


def test_only_the_compiler_demo_has_a_runtime():
    """Blobs of the backend demo only list operators, so they cannot run."""
    runtimes = plugin.delegraph_runtimes()

    assert [spec.backend for spec in runtimes] == ["compiler-demo"]


def test_the_light_module_imports_neither_torch_nor_numpy():
    code = """
import sys
import delegraph_demo.plugin
print([name for name in ("torch", "numpy") if name in sys.modules])
"""
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert completed.stdout.strip() == "[]"

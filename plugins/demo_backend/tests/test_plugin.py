"""The light module: what it declares, and that it is light."""

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


def test_the_declarations_fit_together():
    backends = {b.name: b for b in plugin.delegraph_backends()}
    assert all(b.target.endswith(f":{b.backend_id}") for b in backends.values())
    assert {
        p.backend: p.default for p in plugin.delegraph_partitioners()
    } == dict.fromkeys(backends, True)
    assert [r.backend for r in plugin.delegraph_runtimes()] == ["compiler-demo"], (
        "nothing can run a blob of demo"
    )


def test_the_light_module_imports_neither_torch_nor_numpy():
    code = (
        "import sys, delegraph_demo.plugin; print([m for m in ('torch', 'numpy') if m"
        " in sys.modules])"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert completed.stdout.strip() == "[]"

"""The light module: what it declares, and that it is light."""

import importlib
import subprocess
import sys

from delegraph_demo import plugin


def test_the_declarations_name_what_exists():
    [backend], [partitioner] = plugin.delegraph_backends(), plugin.delegraph_partitioners()
    for declared in (backend, partitioner):
        module, name = declared.target.split(":")
        assert getattr(importlib.import_module(module), name).__name__ == name
    assert backend.target.endswith(f":{backend.backend_id}")
    assert partitioner.backend == backend.name


def test_no_runtime_is_declared():
    assert not hasattr(plugin, "delegraph_runtimes")


def test_the_light_module_imports_neither_torch_nor_numpy():
    code = "import sys, delegraph_demo.plugin; print([m for m in ('torch', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

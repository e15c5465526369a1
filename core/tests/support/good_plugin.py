"""A plugin that works, and ``delegraph doctor`` in a process of its own."""

import os
import subprocess
import sys

GOOD = """
from delegraph.plugin import BackendSpec, PartitionerSpec, hookimpl

@hookimpl
def delegraph_backends():
    return [BackendSpec("good", "good_target:GoodBackend", "GoodBackend", 1)]

@hookimpl
def delegraph_partitioners():
    return [PartitionerSpec("good", "good", "good_target:Everything")]
"""
GOOD_TARGET = """
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.partitioner import CapabilityPartitioner

class GoodBackend(BackendDetails):
    @staticmethod
    def preprocess(edge_program, compile_specs):
        return PreprocessResult(b"made by the good one")

class Everything(CapabilityPartitioner):
    def __init__(self):
        super().__init__(lambda node: None, "GoodBackend")
"""


def doctor(site, *arguments, **variables):
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith("DELEGRAPH")
    } | variables
    folders = [
        *map(str, sorted(site.folder.parent.iterdir(), reverse=True)),
        os.environ.get("PYTHONPATH", ""),
    ]
    environ["PYTHONPATH"] = os.pathsep.join(folders).rstrip(os.pathsep)
    command = [sys.executable, "-m", "delegraph", "doctor", "--json", *arguments]
    return subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=120
    )

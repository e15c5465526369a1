"""A plugin that works: its light module and the module with its targets."""

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

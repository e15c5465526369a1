"""A backend that counts its compiles, models for it, and the entries of a cache."""

import hashlib
import struct
from typing import ClassVar

import delegraph
import pytest
import torch
from delegraph.backend import BackendDetails, NamedDataStore, PreprocessResult
from delegraph.discovery.registry import Registry
from delegraph.errors import Unsupported
from delegraph.io.blob_pieces import TensorBlob, join
from delegraph.partitioner import CapabilityPartitioner
from delegraph_programs import constant_tensor, placeholders
from delegraph_workers import Compiler
from torch import nn


class Weights:
    """A blob of some bytes and the memory of tensors."""

    def __init__(self, head, tensors):
        self.parts = [head, *map(TensorBlob, tensors)]

    def __len__(self):
        return sum(map(len, self.parts))

    def write_to(self, file):
        for part in self.parts:
            file.write(part) if isinstance(part, bytes) else part.write_to(file)


class CountingBackend(BackendDetails):
    """Its blob tells all that it was given, names and handles too."""

    thread_safe = True
    calls: ClassVar[list] = []
    version: ClassVar = "1"

    @staticmethod
    def fingerprint(compile_specs):
        return CountingBackend.version

    @staticmethod
    def preprocess(edge_program, compile_specs):
        graph = edge_program.graph
        CountingBackend.calls.append([node.name for node in graph.nodes])
        refused = [node for node in graph.nodes if "digamma" in str(node.target)]
        if refused:
            raise Unsupported("unsupported", f"no {refused[0].name} here", refused[0])
        calls = [node for node in graph.nodes if node.op == "call_function"]
        constants = [
            constant_tensor(edge_program, s)
            for _, s in placeholders(edge_program)
            if s.target
        ]
        told = [(n.name, str(n.target), n.meta["debug_handle"]) for n in calls]
        store = NamedDataStore()
        for k, tensor in enumerate(constants[:1]):
            store.add_named_data(f"first {k}", tensor, 16)
        store.add_named_data("extra", b"more", 4, "elsewhere")
        handles = {k: (n.meta["debug_handle"],) for k, n in enumerate(calls)}
        facts = {"needs": "FP", "shape": (1, 2.5, None), "figures": {3: [True]}}
        blob = Weights(repr((told, compile_specs)).encode(), constants)
        return PreprocessResult(
            blob, handles, store.get_named_data_store_output(), facts
        )


class Everything(CapabilityPartitioner):
    def __init__(self):
        super().__init__(
            lambda node: "no cos" if "cos" in str(node.target) else None,
            "CountingBackend",
        )


@pytest.fixture
def registry():
    registry = Registry(discover=False)
    registry.register(CountingBackend)
    CountingBackend.calls.clear()
    return registry


class Blocks(nn.Module):
    def __init__(self, count=2):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu().cos()
        return x


def make_model(seed=0, same=False):
    torch.manual_seed(seed)
    made = Blocks().eval()
    if same:
        made.layers[1].load_state_dict(made.layers[0].state_dict())
    return made


X = (torch.randn(1, 64),)


def lower_with_cache(module, registry, folder, executor=None):
    compiler = Compiler(cache=folder, executor=executor)
    return delegraph.lower(
        module, X, backends=[Everything()], registry=registry, compiler=compiler
    )


def contents_of_delegates(program):
    """All that a backend's results have become."""
    return [
        (
            join(delegate.module.blob),
            delegate.module.meta["debug_handle_map"],
            delegate.module.named_data(),
            delegate.module.meta["_delegate_info_meta"],
        )
        for delegate in program.delegates
    ]


def cache_notes(program):
    return [note for note in program.report.notes if "cache" in note]


def entries_in(folder):
    return sorted(folder.glob("*.entry"))


def write_entry(path, header):
    """What delegraph does not write, with the right digest."""
    rest = struct.pack("<Q", len(header)) + header
    return (
        b"delegraph entry2" + hashlib.sha256(path.stem.encode() + rest).digest() + rest
    )

"""Backends whose compilers misbehave, each on an operator of its own, and one that does
not.
"""

import ctypes
import os
import sys
import time

import torch
from delegraph.backend import BackendDetails, PreprocessResult
from delegraph.errors import Unsupported
from delegraph.partitioner import CapabilityPartitioner
from delegraph.plugin import BackendSpec, BackendTraits, PartitionerSpec, hookimpl

aten = torch.ops.aten


def crash():
    print("crashing soon", flush=True)
    ctypes.string_at(0)


def hang():
    print("patience", file=sys.stderr)
    time.sleep(3600)


def greedy():
    torch.ones(4 << 30, dtype=torch.uint8)


def refuse():
    raise Unsupported("unsupported", "no plan for it", hint="none")


def fail():
    raise ValueError("a defect")


def compile_well():
    print("compiled well")
    time.sleep(float(os.environ.get("TROUBLED_SECONDS", "0")))


WAYS = {
    "crashing": (aten.sin.default, crash),
    "exiting": (aten.cos.default, lambda: os._exit(0)),
    "hanging": (aten.tan.default, hang),
    "greedy": (aten.exp.default, greedy),
    "refusing": (aten.sinh.default, refuse),
    "failing": (aten.cosh.default, fail),
    "leaving": (aten.tanh.default, lambda: sys.exit("no licence")),
    "good": (aten.add.Tensor, compile_well),
}


def backend_of(name, operator, way):
    def preprocess(edge_program, compile_specs):
        way()
        tensors = [*edge_program.state_dict.values(), *edge_program.constants.values()]
        text = [
            str(edge_program.graph),
            *(str(t.double().sum().item()) for t in tensors),
        ]
        return PreprocessResult(
            "\n".join(text).encode(),
            {0: tuple(_handles(edge_program))},
            facts={"way": name},
        )

    body = {
        "preprocess": staticmethod(preprocess),
        "__module__": __name__,
        "keeps_names": True,
    }
    body["fingerprint"] = staticmethod(lambda compile_specs: "1")
    return type(f"{name.title()}Backend", (BackendDetails,), body)


def _handles(program):
    return sorted(
        {
            node.meta["debug_handle"]
            for node in program.graph.nodes
            if "debug_handle" in node.meta
        }
    )


def partitioner_of(name, operator):
    def __init__(self):
        CapabilityPartitioner.__init__(
            self,
            lambda n: None if n.target is operator else f"only {operator}",
            f"{name.title()}Backend",
        )

    return type(
        f"{name.title()}Partitioner",
        (CapabilityPartitioner,),
        {"__init__": __init__, "__module__": __name__},
    )


for _name, (_operator, _way) in WAYS.items():
    globals()[f"{_name.title()}Backend"] = backend_of(_name, _operator, _way)
    globals()[f"{_name.title()}Partitioner"] = partitioner_of(_name, _operator)


@hookimpl
def delegraph_backends():
    return [
        BackendSpec(
            n,
            f"troubled:{n.title()}Backend",
            f"{n.title()}Backend",
            1,
            traits=BackendTraits(isolated=n == "leaving"),
        )
        for n in WAYS
    ]


@hookimpl
def delegraph_partitioners():
    return [
        PartitionerSpec(n, n, f"troubled:{n.title()}Partitioner", default=True)
        for n in WAYS
    ]

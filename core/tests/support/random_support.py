"""Random programs of which a partitioner takes operators by chance."""

from __future__ import annotations

import delegraph.api as api
import torch
from delegraph.partitioner import CapabilityPartitioner

from programs.tests.support import aliasing_programs as programs

MASK = 61


def refused(node, mask):
    return bool(mask >> (node.meta["debug_handle"] % MASK) & 1)


def partitioner(mask, **options):
    return CapabilityPartitioner(
        lambda n: "by chance" if refused(n, mask) else None, "EchoBackend", **options
    )


def lowered_program(seed, mask, registry, **options):
    module = programs.Program(seed).eval()
    exported = torch.export.export(module, programs.inputs(0))
    backends = [partitioner(mask, **options)]
    return module, exported, api.lower(exported, backends=backends, registry=registry)

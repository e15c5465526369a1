"""Declares the parts of this package to delegraph.

delegraph imports this module of every installed plugin, so it must not import torch or a compiler.
delegraph imports a ``target`` at its first use.
"""

from __future__ import annotations

from delegraph.plugin import BackendSpec, PartitionerSpec, RuntimeSpec, hookimpl


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            name="acme-npu",  # what users type
            backend_id="AcmeNpuBackend",  # what files store: the name of the class
            target="acme_npu.backend:AcmeNpuBackend",
            api=1,  # the version of delegraph.plugin that this module was written for
            summary="Linear layers on acme-npu",
            # Settings for users go here: options=(OptionSpec("clock", int, default=100, help="in MHz"),).
            # The partitioner gets their values as keyword arguments.
        )
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    return [
        PartitionerSpec(
            name="acme-npu",
            backend="acme-npu",
            target="acme_npu.partitioner:AcmeNpuPartitioner",
            default=True,
        )
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    return [
        RuntimeSpec(
            backend="acme-npu",
            target="acme_npu.runtime:AcmeNpuRuntime",
        )
    ]

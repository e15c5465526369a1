"""What this distribution offers. Imports neither torch nor numpy: ``delegraph backends`` reads this page and no other.

The entry point in pyproject.toml (group ``delegraph``) names this module.
"""

from __future__ import annotations

from delegraph.plugin import BackendSpec, PartitionerSpec, hookimpl


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            name="demo",
            backend_id="BackendWithDelegateMappingDemo",
            target="delegraph_demo.backend:BackendWithDelegateMappingDemo",
            api=1,  # a number, not API_VERSION: the version that this page was written for, whatever is installed
            summary="Teaching backend: conv-relu and tan become a text that maps back to the program",
        )
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    return [
        PartitionerSpec(
            name="demo",
            backend="demo",
            target="delegraph_demo.partitioner:DelegateMappingDemoPartitioner",
            default=True,
        )
    ]


# No delegraph_runtimes: the blob names operators and holds no weights, so nothing could run it. Calling a program that
# was lowered to this backend raises NoRuntime instead of showing numbers that a delegate did not compute.

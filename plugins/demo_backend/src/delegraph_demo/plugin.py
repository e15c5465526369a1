"""What this distribution offers. Imports neither torch nor numpy: ``delegraph
backends`` reads this page and no other.

The entry point in pyproject.toml (group ``delegraph``) names this module.
"""

from __future__ import annotations

from delegraph.plugin import (
    BackendSpec,
    OptionSpec,
    PartitionerSpec,
    RuntimeSpec,
    hookimpl,
)


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            name="demo",
            backend_id="BackendWithDelegateMappingDemo",
            target="delegraph_demo.backend:BackendWithDelegateMappingDemo",
            # a number, not API_VERSION: the version that this page was written for,
            # whatever is installed
            api=1,
            summary=(
                "Teaching backend: conv-relu and tan become a text that maps back to"
                " the program"
            ),
        ),
        BackendSpec(
            name="compiler-demo",
            backend_id="BackendWithCompilerDemo",
            target="delegraph_demo.compiler.backend:BackendWithCompilerDemo",
            api=1,
            summary=(
                "Teaching backend: six float32 operators become a checked blob that a"
                " runtime executes"
            ),
            options=(
                OptionSpec(
                    "max_value",
                    float,
                    help="largest absolute value of inputs and results at run time",
                ),
            ),
        ),
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    return [
        PartitionerSpec(
            name="demo",
            backend="demo",
            target="delegraph_demo.partitioner:DelegateMappingDemoPartitioner",
            default=True,
        ),
        PartitionerSpec(
            name="compiler-demo",
            backend="compiler-demo",
            target="delegraph_demo.compiler.partitioner:CompilerDemoPartitioner",
            default=True,
        ),
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    """None for "demo": its blob names operators and holds no weights, so nothing could
    run it.

    Calling a program that was lowered to it raises NoRuntime instead of showing numbers
    that no delegate computed.
    """
    return [
        RuntimeSpec(
            "compiler-demo",
            target="delegraph_demo.compiler.runtime:CompilerDemoRuntime",
        )
    ]

"""Declares the backends of this distribution, without importing torch or numpy.

``delegraph backends`` imports only this module. The entry point in pyproject.toml
(group ``delegraph``) names it.
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
            # a number, not API_VERSION: this module was written for that version,
            # independent of the installed one
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
    """Declare the runtime of "compiler-demo".

    "demo" has none: its blob names operators and holds no weights. Calling a program
    that was lowered to it raises NoRuntime instead of returning numbers that no
    delegate computed.
    """
    return [
        RuntimeSpec(
            "compiler-demo",
            target="delegraph_demo.compiler.runtime:CompilerDemoRuntime",
        )
    ]

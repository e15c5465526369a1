"""The light module: declares the parts of this distribution, and imports little."""

from __future__ import annotations

import platform
import sys
from importlib.util import find_spec

from delegraph.plugin import (
    BackendSpec,
    FormatSpec,
    PartitionerSpec,
    QuantizerSpec,
    RuntimeSpec,
    hookimpl,
)

NEEDS = ("coreai", "coreai_torch")
GLIBC = (2, 34)
"""The oldest C library for which there are wheels of coreai-core."""


def install_hint() -> str:
    """Return how to get Core AI's packages here, or which system they need."""
    command = "pip install 'delegraph-coreai[runtime]'"
    if find_spec("coreai") is not None:
        return command
    if sys.platform == "darwin":
        return f"{command}; it needs macOS on Apple silicon"
    if sys.platform != "linux":
        return f"use Linux or macOS: Core AI has no wheels for {sys.platform}"
    name, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".") if part.isdecimal())
    if name != "glibc" or numbers < GLIBC:
        found = f"{name} {version}".strip() or "another C library"
        return f"use a system with glibc 2.34 or later: this one has {found}"
    return command


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            name="coreai",
            backend_id="CoreAIBackend",
            target="delegraph_coreai.backend:CoreAIBackend",
            api=1,
            summary="Apple's Core AI: .aimodel files, and its runtime on this host",
            requires=NEEDS,
            install_hint=install_hint(),
        )
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    return [
        PartitionerSpec(
            "coreai",
            "coreai",
            "delegraph_coreai.support:CoreAIPartitioner",
            default=True,
        )
    ]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    return [
        RuntimeSpec(
            "coreai",
            "delegraph_coreai.runtime:CoreAIRuntime",
            requires=("coreai",),
            native="a program for Core AI's compiler",
        )
    ]


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    return [
        FormatSpec(
            ".aimodel",
            "delegraph_coreai.format:CoreAIFormat",
            "a Core AI model, one whole delegate",
            requires=NEEDS,
            install_hint=install_hint(),
            folder=True,
        ),
        FormatSpec(
            ".aimodel.zip",
            "delegraph_coreai.zipped:ZippedCoreAIFormat",
            "a Core AI model in one archive",
            requires=NEEDS,
            install_hint=install_hint(),
        ),
    ]


@hookimpl
def delegraph_quantizers() -> list[QuantizerSpec]:
    return [
        QuantizerSpec(
            "coreai",
            "delegraph_coreai.quantizer:CoreAIQuantizer",
            requires=("torchao",),
            install_hint="pip install delegraph-quantize",
        )
    ]

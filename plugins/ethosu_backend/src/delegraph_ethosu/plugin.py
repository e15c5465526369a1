"""The light module of delegraph-ethosu; it imports neither torch, numpy nor Vela."""

from __future__ import annotations

from delegraph.plugin import (
    BackendSpec,
    BackendTraits,
    OptionSpec,
    PartitionerSpec,
    QuantizerSpec,
    RuntimeSpec,
    hookimpl,
)
from delegraph_tosa.plugin import KNOWN_DIFFERENCES
from delegraph_tosa.plugin import OPTIONS as TOSA_OPTIONS

INSTALL = "pip install ethos-u-vela"
MACS = {
    "u55": (32, 64, 128, 256),
    "u65": (256, 512),
    "u85": (128, 256, 512, 1024, 2048),
}
"""Processor -> the numbers of multiplications in a cycle that it is available with."""
ACCELERATORS = tuple(
    f"ethos-{processor}-{macs}" for processor, sizes in MACS.items() for macs in sizes
)
OPTIONS = (
    OptionSpec(
        "accelerator",
        str,
        "ethos-u85-256",
        choices=ACCELERATORS,
        help="the NPU, by its name in Vela",
    ),
    OptionSpec(
        "system_config",
        str,
        help="clocks and bandwidths, a section of the configuration file",
    ),
    OptionSpec(
        "memory_mode",
        str,
        help="the use of memories, a section of the configuration file",
    ),
    OptionSpec(
        "config",
        str,
        "Arm/vela.ini",
        help="configuration file: one of Vela's own, or a path",
    ),
    OptionSpec(
        "optimise",
        str,
        "Performance",
        choices=("Performance", "Size"),
        help="the goal of Vela's optimisation",
    ),
    OptionSpec("flags", str, "", help="further arguments of vela, separated by spaces"),
    OptionSpec("seconds", int, 3600, help="how long Vela may take for a partition"),
    OptionSpec(
        "weights_tag",
        str,
        help="the .ptd file for the weights; by default the payload has them",
    ),
    OptionSpec(
        "commands_tag",
        str,
        help="the .ptd file for the commands; by default the payload has them",
    ),
    OptionSpec(
        "keep_tosa",
        bool,
        False,
        help="whether to store the TOSA file, too, to run it on this host",
    ),
    *(option for option in TOSA_OPTIONS if option.name == "debug_artifact_path"),
)


@hookimpl
def delegraph_backends() -> list[BackendSpec]:
    return [
        BackendSpec(
            name="ethosu",
            backend_id="EthosUBackend",
            target="delegraph_ethosu.backend:EthosUBackend",
            api=1,
            summary="Arm Ethos-U55, U65 and U85 NPUs, by way of TOSA and Vela",
            requires=("ethosu.vela",),
            install_hint=INSTALL,
            options=OPTIONS,
            traits=BackendTraits(
                checksum=False,
                known_differences=KNOWN_DIFFERENCES,
                composes=("delegraph-tosa",),
            ),
        )
    ]


@hookimpl
def delegraph_partitioners() -> list[PartitionerSpec]:
    target = "delegraph_ethosu.partitioner:EthosUPartitioner"
    return [PartitionerSpec("ethosu", backend="ethosu", target=target, default=True)]


@hookimpl
def delegraph_runtimes() -> list[RuntimeSpec]:
    return [RuntimeSpec("ethosu", target="delegraph_ethosu.runtime:EthosURuntime")]


@hookimpl
def delegraph_quantizers() -> list[QuantizerSpec]:
    hint = "pip install delegraph-quantize"
    target = "delegraph_tosa.quantizer:TOSAQuantizer"
    return [QuantizerSpec("ethosu", target, requires=("torchao",), install_hint=hint)]

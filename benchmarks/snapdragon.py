"""Quantized networks for the Hexagon NPU of a Snapdragon, in Qualcomm's simulator.

    python benchmarks/snapdragon.py [NAME ...] [--bits 8|16] [--soc SM8750]

Needs `pip install delegraph-onnx[qnn]`. The networks have random weights, and are
calibrated with 8 random batches. "whole" means one delegate, and no operator on ONNX
Runtime's CPU. Compiling is CPU seconds in a process of its own. The error is the
largest difference from the quantized program in eager PyTorch, relative to the largest
result, over 4 other batches. SNR compares with the same program.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import measuring
import publishing
import torch
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parents[1]))
CALIBRATED = 8
COMPARED = 4
COLUMNS = (
    "network",
    "activations",
    "whole",
    "compile, s",
    "blob, MB",
    "error",
    "SNR, dB",
)


class Network(NamedTuple):
    """A network in eval mode, and a function that returns random inputs."""

    module: torch.nn.Module
    draw: Callable[[], tuple[torch.Tensor, ...]]


def main() -> None:
    """Print the table; each row is measured in a process of its own."""
    parser = publishing.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--bits", type=int, action="append", choices=(8, 16))
    parser.add_argument("--soc", default="SM8750")
    arguments = measuring.parse(
        parser, lambda name, rest: lambda: _row(name, *rest.split(":"))
    )
    rows = []
    for name in arguments.names or NETWORKS:
        for bits in arguments.bits or (8, 16):
            found = measuring.once(__file__, name, f"{bits}:{arguments.soc}")
            rows.append(publishing.told([name, f"int{bits}", *found["cells"]]))  # type: ignore[misc]
    packages = ["torch", "torchao", "onnxscript", "onnxruntime", "onnxruntime-qnn"]
    publishing.report(
        arguments, "snapdragon", packages, publishing.Table(COLUMNS, rows, keys=2)
    )


def _row(name: str, bits: str, soc: str) -> dict[str, Any]:
    """Return the cells of a network."""
    import delegraph
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    network = NETWORKS[name]()
    batches = [network.draw() for _ in range(CALIBRATED + COMPARED)]
    activations = {"8": torch.int8, "16": torch.int16}[bits]
    program = delegraph.quantize(
        network.module,
        batches[:CALIBRATED],
        quantizer=TOSAQuantizer(Precision(activations)),
    )
    options = {"onnx": {"ep": "qnn", "soc": soc}}
    lowered, seconds = measuring.cpu_seconds(
        lambda: delegraph.lower(program, backends=["onnx"], options=options)
    )
    print(lowered.report, file=sys.stderr)
    facts = [delegate.facts for delegate in lowered.delegates]
    is_whole = len(facts) == 1 and lowered.host_operators == 0
    if is_whole:
        is_whole = facts[0]["on ONNX Runtime's CPU"] == "nothing"
    size = sum(len(delegate.processed_bytes) for delegate in lowered.delegates)
    error, ratio = _compare(lowered, program, batches[CALIBRATED:])
    return {
        "cells": [
            "yes" if is_whole else "no",
            f"{seconds:.1f}",
            f"{size / 1e6:.1f}",
            f"{error:.1e}",
            f"{ratio:.1f}",
        ]
    }


def _compare(lowered: Any, program: Any, batches: list[Any]) -> tuple[float, float]:
    """Return the largest relative error, and the ratio of signal and noise in dB."""
    eager = program.module(check_guards=False)
    found = [pytree.tree_leaves(lowered(*batch)) for batch in batches]
    wanted = [pytree.tree_leaves(eager(*batch)) for batch in batches]
    ours = torch.cat([value.flatten() for results in found for value in results])
    theirs = torch.cat([value.flatten() for results in wanted for value in results])
    difference = (ours - theirs).double()
    noise = difference.square().sum()
    ratio = 10 * torch.log10(theirs.double().square().sum() / noise)
    return float(difference.abs().max() / theirs.abs().max()), float(ratio)


# --- networks -------------------------------------------------------------------------


def _example(name: str) -> Network:
    module, args = measuring.model(name)
    return Network(module, lambda: (torch.randn_like(args[0]),))


def _of_tests(name: str) -> Network:
    from plugins.tosa_backend.tests.support.quantized_networks import network

    module, batches = network(name, CALIBRATED + COMPARED)
    remaining = iter(batches)
    return Network(module, lambda: next(remaining))


def _of_matrix(name: str) -> Network:
    import matrix_models

    made = getattr(matrix_models, matrix_models.function_of(name))()
    return Network(made["model"], lambda: _like(made["args"]))


def _like(args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return random floats in place of floats; other inputs stay."""
    return tuple(torch.randn_like(a) if a.is_floating_point() else a for a in args)


NETWORKS: dict[str, Callable[[], Network]] = {
    "MobileNetV2": lambda: _example("MobileNetV2"),
    "ResNet-18": lambda: _example("ResNet-18"),
    "ViT-tiny": lambda: _of_matrix("vit-tiny, small"),
    "keyword spotter": lambda: _of_tests("audio"),
    "YOLO head": lambda: _of_matrix("YOLO head"),
    "transformer": lambda: _of_tests("padded transformer"),
}
"""Name -> a function that makes the network. The keyword spotter is a small
convolutional network on spectrograms.
"""

if __name__ == "__main__":
    main()

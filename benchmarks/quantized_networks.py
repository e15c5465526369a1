"""Small networks of many kinds, quantized to 8 and 16 bits: how near the TOSA files
are, and cycles on an Ethos-U85.

    python benchmarks/quantized_networks.py [NAME ...] [--vela VELA]

The networks are those of plugins/tosa_backend/tests/support/quantized_networks.py, with
random weights. They are calibrated with 8 random batches, lowered for TOSA-1.0+INT (and
int16), and compared on these and 8 others.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import delegraph
import publishing
import torch
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[1]))
from quantized import judged

from plugins.tosa_backend.tests.support.quantized_networks import NETWORKS, network

COLUMNS = (
    "network", "bits", "delegates", "on the host", "operators", "RESCALE", "TRANSPOSE", "RESHAPE", "equal",
    "within a step", "SNR, dB", "against floats, dB", "on the NPU", "cycles",
)  # fmt: skip


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    parser = publishing.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NETWORKS))
    parser.add_argument("--vela")
    options = parser.parse_args()
    torch.set_num_threads(1)
    types = ((8, torch.int8), (16, torch.int16))
    rows = [
        [name, str(bits), *_row(name, dtype, options.vela)]
        for name in options.names or NETWORKS
        for bits, dtype in types
    ]
    packages = ["torch", "torchao", "delegraph-tosa", *publishing.of_vela(options.vela)]
    publishing.report(
        options, "quantized_networks", packages, publishing.Table(COLUMNS, rows, keys=2)
    )


def _row(name: str, activations: torch.dtype, vela: str | None) -> list[str]:
    from delegraph_tosa.quantizer import Precision, TOSAQuantizer

    module, batches = network(name, 16)
    program = delegraph.quantize(
        module, batches[:8], quantizer=TOSAQuantizer(Precision(activations))
    )
    spec = "TOSA-1.0+INT" if activations is torch.int8 else "TOSA-1.0+INT+int16"
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": spec}}
    )
    host = sum(
        "quantize_per_tensor" not in refusal.operator
        for refusal in lowered.report.refusals
    )
    counts = judged(bytes(lowered.delegates[0].processed_bytes), vela)
    nearness = _nearness(lowered, program, module, batches)
    return [str(len(lowered.delegates)), str(host), *counts[:4], *nearness, *counts[4:]]


def _nearness(
    lowered: Any, program: Any, module: torch.nn.Module, batches: list[Any]
) -> list[str]:
    """Shares of results that equal those of the Q/DQ graph, and that are a step off;
    SNR against it, and to floats.
    """
    eager = program.module(check_guards=False)
    with torch.no_grad():
        found, wanted, floats = (
            [tree_leaves(run(*batch))[0].double() for batch in batches]
            for run in (lowered, eager, module)
        )
    ours, theirs, exact = map(torch.stack, (found, wanted, floats))
    off = ((ours - theirs) / program.graph.output_node().args[0][0].args[1]).abs()
    shares = [f"{(off < steps).double().mean():.2%}" for steps in (0.5, 1.5)]
    return [*shares, _ratio(ours, theirs), _ratio(ours, exact)]


def _ratio(found: torch.Tensor, wanted: torch.Tensor) -> str:
    noise = (found - wanted).square().sum()
    return (
        f"{10 * torch.log10(wanted.square().sum() / noise):.1f}" if noise else "exact"
    )


if __name__ == "__main__":
    main()

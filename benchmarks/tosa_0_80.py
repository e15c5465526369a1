"""Cycles of quantized networks as TOSA 0.80 by Vela 4.2, beside the same as TOSA 1.0 by
Vela 5.2.

    python benchmarks/tosa_0_80.py --vela-4-2 VELA --vela-5-2 VELA [NAME ...]

"converted" is the file of 0.80 as ``delegraph_tosa.convert`` makes one of 1.0, by Vela
5.2: what is left of the difference lies between the compilers. Each Vela needs an
environment of its own. Networks: those of quantized.py.
"""

from __future__ import annotations

import csv
import subprocess
import tempfile
import warnings
from pathlib import Path

import delegraph
import delegraph_tosa
import publishing
import torch
from quantized import NETWORKS

COLUMNS = (
    "network",
    "accelerator",
    "0.80, Vela 4.2",
    "1.0, Vela 5.2",
    "of it",
    "converted, Vela 5.2",
)
NAMES = ("keyword spotter", "MobileNetV2", "ResNet-18")


def main() -> None:
    """Print the table."""
    parser = publishing.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--vela-4-2", required=True)
    parser.add_argument("--vela-5-2", required=True)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = []
    for name in options.names or NAMES:
        old, new = (_file(name, spec) for spec in ("TOSA-0.80+BI", "TOSA-1.0+INT"))
        converted = delegraph_tosa.convert(old, "TOSA-1.0+INT").join()
        for accelerator in ("ethos-u85-256", "ethos-u55-128"):
            by_4_2 = _cycles(options.vela_4_2, old, accelerator)
            by_5_2, again = (
                _cycles(options.vela_5_2, data, accelerator)
                for data in (new, converted)
            )
            rows.append(
                [
                    name,
                    accelerator,
                    f"{by_4_2:,}",
                    f"{by_5_2:,}",
                    f"{by_4_2 / by_5_2:.2f}",
                    f"{again:,}",
                ]
            )
    packages = ["torch", "delegraph-tosa", "ethos-u-vela 4.2.0 and 5.2.0"]
    publishing.report(
        options, "tosa_0_80", packages, publishing.Table(COLUMNS, rows, keys=2)
    )


def _file(name: str, spec: str) -> bytes:
    module, inputs = NETWORKS[name]()
    torch.manual_seed(0)
    batches = [tuple(map(torch.randn_like, inputs)) for _ in range(4)]
    program = delegraph.quantize(module, batches, backend="tosa")
    lowered = delegraph.lower(
        program, backends=["tosa"], options={"tosa": {"spec": spec}}
    )
    (delegate,) = lowered.delegates
    return bytes(delegate.processed_bytes)


def _cycles(vela: str, data: bytes, accelerator: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "network.tosa")
        file.write_bytes(data)
        command = [
            vela,
            str(file),
            "--accelerator-config",
            accelerator,
            "--output-dir",
            folder,
        ]
        subprocess.run(command, check=True, capture_output=True)
        (summary,) = Path(folder).glob("*summary*.csv")
        with open(summary) as table:
            return int(float(next(csv.DictReader(table))["cycles_total"]))


if __name__ == "__main__":
    main()

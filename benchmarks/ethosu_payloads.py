"""Payloads of whole networks beside those of ExecuTorch's packer, of the same TOSA file
and with the same Vela.

    python benchmarks/ethosu_payloads.py [NAME ...]

Needs `executorch`, whose `backends/arm/arm_vela.py` packs, and whose
`get_ethosu_scratch_from_pte.py` reads. The networks are those of `ethos_u.py`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import delegraph
import publishing
import torch
from delegraph_ethosu.payload import blocks
from delegraph_tosa.borders import integer_borders
from ethos_u import network

WANTED = [
    (name, "ethos-u85-256")
    for name in ("MobileNetV2", "ResNet-18", "DS-CNN", "ViT-tiny")
]
WANTED += [
    (name, "ethos-u55-128")
    for name in ("MobileNetV2", "ResNet-18", "DS-CNN", "MobileNetV3-small")
]
COLUMNS = (
    "network",
    "accelerator",
    "delegates",
    "bytes",
    "equal to ExecuTorch's",
    "its reader",
)


def _from_executorch(path: str, name: str) -> Any:
    """A file of ExecuTorch's as a module, without the package around it, which imports
    for long.
    """
    folder = importlib.util.find_spec("executorch").submodule_search_locations[0]  # type: ignore[union-attr,index]
    spec = importlib.util.spec_from_file_location(name, Path(folder, path))
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _row(
    name: str, accelerator: str, pack: Callable[..., Any], reader: Any
) -> list[str]:
    module, batches = network(name)
    program = delegraph.quantize(module, batches[:2], backend="ethosu")
    options = {"ethosu": {"accelerator": accelerator, "keep_tosa": True}}
    lowered = delegraph.lower(
        program, backends=["ethosu"], options=options, transforms=[integer_borders]
    )
    equal = []
    same_blocks = []
    size = 0
    files = {
        key: bytes(lowered.named_data.buffers[entry.buffer_index])
        for key, entry in _named(lowered).items()
    }
    for delegate, file in zip(lowered.delegates, files.values(), strict=True):
        [flags] = [
            spec.value for spec in delegate.compile_specs if spec.key == "ethosu_flags"
        ]
        payload = bytes(delegate.processed_bytes)
        equal.append(
            payload
            == pack(file, [*json.loads(flags), "--output-format=raw"]).processed_bytes
        )
        same_blocks.append(
            list(blocks(payload)) == list(reader.iter_vela_blocks(payload))
        )
        size += len(payload)
    with tempfile.TemporaryDirectory() as folder:
        lowered.save(Path(folder, "m.pte"))
        scratch = reader.get_scratch_from_pte(Path(folder, "m.pte"))
    words = "equal blocks" if all(same_blocks) else "other blocks"
    said = f"{words}, {scratch:,} bytes of scratch"
    return [
        name,
        accelerator,
        str(len(equal)),
        f"{size:,}",
        "yes" if all(equal) else "no",
        said,
    ]


def _named(lowered: Any) -> dict[str, Any]:
    """The TOSA files that were kept, in the order of the delegates."""
    return {
        key: entry
        for entries in lowered.named_data.external_data.values()
        for key, entry in entries.items()
    }


def main() -> None:
    """Print a row for each network."""
    parser = publishing.parser(__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="networks, in place of all"
    )
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    pack = _from_executorch("backends/arm/arm_vela.py", "arm_vela").vela_compile
    from executorch.backends.arm.scripts import get_ethosu_scratch_from_pte as reader

    rows = []
    for name, accelerator in [
        pair for pair in WANTED if not given.names or pair[0] in given.names
    ]:
        rows.append(publishing.told(_row(name, accelerator, pack, reader)))
    packages = ["torch", "executorch", "ethos-u-vela", "delegraph-ethosu"]
    publishing.report(
        given, "ethosu_payloads", packages, publishing.Table(COLUMNS, rows, keys=2)
    )


if __name__ == "__main__":
    main()

"""Have ExecuTorch write the program files that the tests read; needs
``executorch==1.5.1`` beside delegraph.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

HERE = Path(__file__).parents[1]
sys.path.insert(0, str(HERE))


def main() -> None:
    """Write one file a fixture."""
    warnings.simplefilter("ignore")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower
    from tests.support.fixtures import FIXTURES

    for name, (module, calls, shapes) in FIXTURES.items():
        exported = torch.export.export(module.eval(), calls[0], dynamic_shapes=shapes)
        partitioners = [XnnpackPartitioner()] if name == "xnnpack" else []
        program = to_edge_transform_and_lower(
            exported, partitioner=partitioners
        ).to_executorch()
        (HERE / "tests" / "fixtures" / f"{name}.pte").write_bytes(program.buffer)


if __name__ == "__main__":
    main()

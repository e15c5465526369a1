"""``VgfPartitioner``: gives Arm's converter what TOSA's rules lower to operators that it converts."""

from __future__ import annotations

from typing import Any

import delegraph
from delegraph.backend import CompileSpec
from delegraph.partitioner import WrappingPartitioner
from delegraph_tosa import Operator, TosaSpec, narrow

DEVICE = "vgf"
"""The word that narrows a TOSA target to what becomes a VGF file."""


def why_not_vgf(operator: Operator) -> str | None:
    """Why model-converter 0.11 makes no VGF of a TOSA operator; None if it does."""
    return None


narrow(DEVICE, why_not_vgf)


class VgfPartitioner(WrappingPartitioner):
    """``flags`` are model-converter's; the other options are TOSA's."""

    def __init__(self, flags: str = "", **tosa: Any) -> None:
        spec = tosa.pop("spec", "TOSA-1.0+FP+INT")
        if DEVICE not in TosaSpec.parse(spec).devices:
            spec = f"{spec}+{DEVICE}"
        inner = delegraph.get_partitioner("tosa", spec=spec, **tosa)
        super().__init__(inner, "VgfBackend", [CompileSpec("vgf_flags", flags.encode())])

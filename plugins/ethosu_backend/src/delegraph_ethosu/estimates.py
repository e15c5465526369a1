"""Vela's estimates of cycles and memory of a delegate, for the report.

They are computed by Vela, not measured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from delegraph_tosa import Operator

from .vela import Compiled

CYCLES = "estimated cycles"
MOVED = "estimated bytes moved"
_MOVED = re.compile("(Sram|Dram|OnChipFlash|OffChipFlash)[A-Z].*_(read|write)")
"""Columns of Vela's table with the bytes that a layer reads or writes in a memory."""
_MEMORIES = {
    "SRAM": "sram",
    "DRAM": "dram",
    "on-chip flash": "on_chip_flash",
    "off-chip flash": "off_chip_flash",
}
"""Memory -> its name in Vela's summary."""
_HINT_SHARE = 0.01
"""The share of all cycles above which a hint shows how to save them."""


def figures(
    compiled: Compiled, handles: Mapping[Any, tuple[int, ...]]
) -> dict[int | str, dict[str, int]]:
    """Return Vela's estimates by number of an operator in the TOSA file.

    A layer of Vela includes operators that were fused into its operator. Layers without
    debug handles in ``handles`` are left out, such as copies that Vela added.
    """
    found: dict[int | str, dict[str, int]] = {}
    for layer in _layers(compiled):
        if layer.operator in handles:
            amounts = found.setdefault(layer.operator, {CYCLES: 0, MOVED: 0})
            amounts[CYCLES] += int(layer.row["op_cycles"])
            moved = filter(_MOVED.fullmatch, layer.row)
            amounts[MOVED] += sum(int(layer.row[name] or 0) for name in moved)
    return found


def facts(compiled: Compiled, numbers: Mapping[Operator, int]) -> dict[str, str]:
    """Return the delegate's memory by kind, and a hint if cycles can be saved."""
    summary = compiled.summary
    found: dict[str, str] = {}
    for memory, name in _MEMORIES.items():
        size = float(summary.get(f"{name}_memory_used") or 0)
        if size:
            found[f"estimated {memory}"] = f"{size:,.1f} KiB"
    total = float(summary.get("cycles_total") or 0)
    borders = _transposes_at_borders(numbers)
    spent = 0
    for layer in _layers(compiled):
        if layer.operator in borders:
            spent += int(layer.row["op_cycles"])
    if total and spent > _HINT_SHARE * total:
        share = f"{spent:,} estimated cycles of {total:,.0f}"
        found["hint"] = (
            f"transposes of inputs and results take {share}; to avoid them, lower with"
            " transforms=[delegraph_tosa.borders.channels_last_borders]"
        )
    return found


class _Layer(NamedTuple):
    """A layer of Vela.

    ``operator``: the number of its operator in the TOSA file; -1 if Vela added it.
    ``row``: its columns in Vela's tables, by name.
    """

    operator: int
    row: dict[str, str]


def _layers(compiled: Compiled) -> list[_Layer]:
    """Return the layers in Vela's debug database."""
    sources = {
        row["id"]: int(row["ext_key"]) for row in compiled.tables.get("source", [])
    }
    details = {row["id"]: row for row in compiled.tables.get("perf_debug", [])}
    rows = compiled.tables.get("perf", [])
    layers: list[_Layer] = []
    for row in rows:
        number = sources.get(row["source_id"], -1)
        layers.append(_Layer(number, {**details.get(row["id"], {}), **row}))
    return layers


def _transposes_at_borders(numbers: Mapping[Operator, int]) -> set[int]:
    """Return the numbers of the TRANSPOSEs of inputs and results of the delegate."""
    used = {value for operator in numbers for value in operator.inputs}
    found: set[int] = set()
    for operator, number in numbers.items():
        if operator.name == "TRANSPOSE":
            operand = operator.inputs[0]
            is_input = operand.producer is None and operand.constant is None
            if is_input or operator.outputs[0] not in used:
                found.add(number)
    return found

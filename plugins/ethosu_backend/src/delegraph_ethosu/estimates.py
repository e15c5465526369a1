"""What Vela expects of a delegate: cycles and memory, for the report. Vela counts;
nothing is measured.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from delegraph_tosa import Operator

from .vela import Compiled

CYCLES = "estimated cycles"
MOVED = "estimated bytes moved"
_MOVED = re.compile("(Sram|Dram|OnChipFlash|OffChipFlash)[A-Z].*_(read|write)")
"""Columns of Vela's table with the bytes that a layer reads from a memory, or writes to
it.
"""
_MEMORIES = {
    "SRAM": "sram",
    "DRAM": "dram",
    "on-chip flash": "on_chip_flash",
    "off-chip flash": "off_chip_flash",
}
"""Memory -> how Vela's summary calls it."""
_WORTH = 0.01
"""The share of all cycles from which on the user is told how to save them."""


def figures(
    compiled: Compiled, handles: Mapping[Any, tuple[int, ...]]
) -> dict[int | str, dict[str, int]]:
    """Number of an operator in the TOSA file -> Vela's estimates of what it takes.

    A layer of Vela's stands for an operator and those that were fused into it. What
    Vela added by itself, such as a copy, and what belongs to no line of the user, is
    left out.
    """
    found: dict[int | str, dict[str, int]] = {}
    for number, row in _layers(compiled):
        if number in handles:
            amounts = found.setdefault(number, {CYCLES: 0, MOVED: 0})
            amounts[CYCLES] += int(row["op_cycles"])
            amounts[MOVED] += sum(
                int(row[name] or 0) for name in row if _MOVED.fullmatch(name)
            )
    return found


def facts(compiled: Compiled, numbers: Mapping[Operator, int]) -> dict[str, str]:
    """The memory that the delegate takes of each kind, its cycles, and how to save
    some.
    """
    summary = compiled.summary
    sizes = {
        memory: float(summary.get(f"{name}_memory_used") or 0)
        for memory, name in _MEMORIES.items()
    }
    told = {
        f"estimated {memory}": f"{size:,.1f} KiB"
        for memory, size in sizes.items()
        if size
    }
    total = float(summary.get("cycles_total") or 0)
    borders = _transposes_at_borders(numbers)
    by_number: dict[int, int] = defaultdict(int)
    for number, row in _layers(compiled):
        by_number[number] += int(row["op_cycles"])
    spent = sum(by_number[number] for number in borders)
    if total and spent > _WORTH * total:
        share = f"{spent:,} estimated cycles of {total:,.0f}"
        told["hint"] = (
            f"transposes of inputs and results take {share}:"
            " transforms=[delegraph_tosa.borders.channels_last_borders]"
        )
    return told


def _layers(compiled: Compiled) -> list[tuple[int, dict[str, str]]]:
    """Vela's layers: the number of an operator in the TOSA file, from 0, and what is
    known of the layer.
    """
    sources = {
        row["id"]: int(row["ext_key"]) for row in compiled.tables.get("source", [])
    }
    details = {row["id"]: row for row in compiled.tables.get("perf_debug", [])}
    rows = compiled.tables.get("perf", [])
    return [
        (sources.get(row["source_id"], -1), {**details.get(row["id"], {}), **row})
        for row in rows
    ]


def _transposes_at_borders(numbers: Mapping[Operator, int]) -> set[int]:
    """The numbers of the TRANSPOSEs whose operand enters the delegate, or whose result
    leaves it.
    """
    used = {value for operator in numbers for value in operator.inputs}
    return {
        number
        for operator, number in numbers.items()
        if operator.name == "TRANSPOSE"
        and (
            (operator.inputs[0].producer or operator.inputs[0].constant) is None
            or operator.outputs[0] not in used
        )
    }

"""Render a program file as one HTML page: figures, memory over time, and text.

The page needs no network.
"""

from __future__ import annotations

from collections.abc import Iterator

from delegraph_analysis.drawing import head, text

from ..program.pte_tables import ExecutionPlan, Program, Tensor
from .arena import Extent, live_extents
from .facts import ProgramFacts
from .text import describe_tensor

_WIDTH = 960
_HEIGHT = 360
"""Size of the drawing of a memory, in pixels."""
_MOST_BOXES = 4000
"""The most extents that are drawn of one memory, the largest first."""
_MOST_LINES = 20_000
"""The most lines of text that a page shows of one method."""
_COLORS = 8
"""The number of colors of boxes."""


def render_page(program: Program, facts: ProgramFacts, title: str) -> str:
    """Return the page of a file."""
    return "".join(_parts(program, facts, title))


def _parts(program: Program, facts: ProgramFacts, title: str) -> Iterator[str]:
    """Yield the parts of the page, from top to bottom."""
    yield head(title, script="")
    yield f"<body>\n<h1>{text(title)}</h1>\n<ul>\n"
    yield from (f"<li>{text(line)}</li>\n" for line in facts.lines())
    yield "</ul>\n"
    for plan, method in zip(program.plans, facts.methods, strict=True):
        yield f"<h2>Method {text(method.name)}</h2>\n"
        yield from _memories(plan)
        lines = method.text.splitlines()
        if len(lines) > _MOST_LINES:
            lines = [*lines[:_MOST_LINES], f"... {len(lines) - _MOST_LINES} more lines"]
        shown = "\n".join(text(line) for line in lines)
        yield f"<pre>{shown}</pre>\n"
    yield "</body></html>\n"


def _memories(plan: ExecutionPlan) -> Iterator[str]:
    """Yield a drawing of each memory in use."""
    extents = live_extents(plan)
    for number, size in enumerate(plan.memory_sizes[1:], 1):
        in_memory = [e for e in extents if e.memory == number]
        if size and in_memory:
            yield f"<h3>Memory {number}: {size:,} bytes</h3>\n"
            yield _drawing(plan, in_memory, size)


def _drawing(plan: ExecutionPlan, extents: list[Extent], size: int) -> str:
    """Draw time to the right, one step an instruction, and offsets downwards."""
    end = 1 + max(e.last for e in extents)
    drawn = sorted(extents, key=lambda e: -e.size)[:_MOST_BOXES]
    boxes = "".join(_box(plan, e, end, size) for e in drawn)
    label = f"memory over {end} instructions"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img"'
        f' aria-label="{label}">\n{boxes}</svg>\n'
    )


def _box(plan: ExecutionPlan, extent: Extent, end: int, size: int) -> str:
    """Return the box of an extent; the drawing has ``end`` instructions, ``size`` bytes."""
    x = _WIDTH * extent.first / end
    width = max(1.0, _WIDTH * (extent.last + 1 - extent.first) / end)
    y = _HEIGHT * extent.offset / size
    height = max(0.5, _HEIGHT * extent.size / size)
    hue = 360 * (extent.values[0] % _COLORS) // _COLORS
    value = plan.values[extent.values[0]].value
    described = describe_tensor(value) if isinstance(value, Tensor) else ""
    tip = (
        f"%{extent.values[0]}: {described}, {extent.size:,} bytes, instructions"
        f" {extent.first} to {extent.last}"
    )
    corners = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return (
        f'<rect {corners} fill="hsl({hue} 50% 60%)"'
        f' stroke="#0004"><title>{text(tip)}</title></rect>\n'
    )

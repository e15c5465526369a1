"""Draw a picture as SVG for a page with a style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import east_asian_width

from .condense import condense
from .escape import lines, text
from .layout import BELOW, LINE, PADDING, Leg, Place, lay_out
from .picture import Box, Picture, Wire
from .style import TONES

_CHARACTERS = 31
"""The most columns of a line in a box; the tooltip has the whole line."""


def figure(picture: Picture, title: str, id: str = "") -> str:
    """Return the drawing of any picture, which is condensed if it is large: see ``frame``."""
    small, note = condense(picture)
    return frame(small, note, title, id)


def frame(picture: Picture, note: str, title: str, id: str = "") -> str:
    """Return the drawing of a small picture in a frame that scrolls, also by keyboard.

    ``note`` comes before it. ``id`` begins the ids of boxes: see ``box_id``.
    """
    before = f"<p>{text(note)}</p>\n" if note else ""
    around = (
        f'<div class="picture" tabindex="0" role="region" aria-label="{text(title)}">'
    )
    label = f"{len(picture.boxes)} boxes, {len(picture.wires)} values"
    return f"{before}{around}\n{svg(picture, label, id)}</div>\n"


def svg(picture: Picture, label: str, id: str = "") -> str:
    """Return the drawing. ``label`` describes it for screen readers; ``id``: see ``frame``."""
    layout = lay_out(picture)
    size = (
        f'width="{layout.width}" height="{layout.height}" viewBox="0 0 {layout.width}'
        f' {layout.height}"'
    )
    drawn = [f'<svg {size} role="group" aria-label="{text(label)}">\n']
    for wire, legs in zip(picture.wires, layout.routes, strict=True):
        if legs:
            drawn.append(_wire(wire, legs))
    for k, (box, place) in enumerate(zip(picture.boxes, layout.places, strict=True)):
        # the page links only to boxes that an element is about
        own_id = box_id(id, k) if id and box.about else ""
        drawn.append(_box(box, place, own_id))
    return "".join([*drawn, "</svg>\n"])


def box_id(id: str, box: int) -> str:
    """Return the id of the box with the number ``box`` in the picture ``id``."""
    return f"{id}b{box}"


def share(parts: Sequence[tuple[str, int, str]]) -> str:
    """Return a bar of parts side by side, each given by its classes, size and text."""
    total = sum(size for _, size, _ in parts) or 1
    left = 0.0
    drawn = []
    for classes, count, what in parts:
        width = 1000 * count / total
        place = f'x="{left:.2f}" y="0" width="{width:.2f}" height="10"'
        drawn.append(
            f'<g class="{classes}"><title>{text(what)}</title><rect {place}/></g>'
        )
        left += width
    label = text(", ".join(what for _, _, what in parts))
    size = 'viewBox="0 0 1000 10" preserveAspectRatio="none"'
    return (
        f'<svg class="share" {size} role="img"'
        f' aria-label="{label}">{"".join(drawn)}</svg>\n'
    )


def swatch(classes: str) -> str:
    """Return a small box with the look of ``classes``, for a legend."""
    box = '<rect x="2" y="2" width="22" height="12" rx="3"/>'
    return (
        '<svg width="26" height="16" aria-hidden="true"><g'
        f' class="{classes}">{box}</g></svg>'
    )


def _wire(wire: Wire, legs: list[Leg]) -> str:
    """Return the line of a wire, and a broad invisible one that is easier to point at."""
    path = "".join(map(_path, legs))
    return (
        f'<g><title>{text(wire.tell())}</title><path class="wire" d="{path}"/><path'
        f' class="near" d="{path}"/></g>\n'
    )


def _path(leg: Leg) -> str:
    """Return the path of a leg: straight down, then in a curve to the next row."""
    bend = BELOW // 2
    below = leg.y1 + leg.drop
    down = f"V{below}" if leg.drop else ""
    arrow = "m-3 -6l3 6l3 -6" if leg.end else ""
    return (
        f"M{leg.x1} {leg.y1}{down}C{leg.x1} {below + bend} {leg.x2} {leg.y2 - bend}"
        f" {leg.x2} {leg.y2}{arrow}"
    )


def _box(box: Box, place: Place, id: str) -> str:
    """Return the rectangle and text of a box, as a link if it has a target."""
    area = (
        f'<rect x="{place.x}" y="{place.y}" width="{place.width}"'
        f' height="{place.height}" rx="4"/>'
    )
    free = _CHARACTERS - 2 if box.marked else _CHARACTERS  # room for the mark
    shown = "".join(
        _line(k, _short(line, free), place) for k, line in enumerate(box.shown())
    )
    mark = (
        f'<text class="mark" x="{place.x + place.width - 13}"'
        f' y="{place.y + LINE}">!</text>'
        if box.marked
        else ""
    )
    tooltip = f"<title>{lines(box.tell())}</title>"
    tone = f"t{box.tone % TONES}"
    look = {"backend": tone, "mixed": f"several {tone}"}.get(box.kind, box.kind)
    if box.marked:
        look += " marked"
    if box.heat:
        look += f" e{box.heat}"
    named = f' id="{id}"' if id else ""
    drawn = f'<g{named} class="{look}">{tooltip}{area}{shown}{mark}</g>'
    link = box.link or (box.about[0] if box.about else "")
    kind = ' class="delegate"' if box.kind == "backend" and box.link else ""
    return f'<a{kind} href="#{link}">{drawn}</a>\n' if link else f"{drawn}\n"


def _line(k: int, line: str, place: Place) -> str:
    kind = ' class="title"' if k == 0 else ""
    return (
        f'<text{kind} x="{place.x + 7}"'
        f' y="{place.y + PADDING + LINE * (k + 1) - 4}">{text(line)}</text>'
    )


def _short(line: str, room: int) -> str:
    """Return the part of a line that fits into ``room`` columns.

    Wide characters take two columns. Characters that do not print take six, since they
    are shown as escapes.
    """
    if len(line) <= room and line.isascii() and line.isprintable():
        return line
    kept = ""
    for character in line:
        if east_asian_width(character) in "WF":
            room -= 2
        elif character.isprintable():
            room -= 1
        else:
            room -= 6
        if room < 0:
            return kept[:-1] + "…"
        kept += character
    return kept

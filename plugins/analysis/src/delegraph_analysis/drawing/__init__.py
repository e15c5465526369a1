"""Draw graphs of boxes and wires, laid out in layers, as SVG for a page.

Imports neither torch nor a plugin.
"""

from delegraph.io.escape_for_terminal import printable

from .condense import condense, overview
from .escape import text
from .picture import HEATS, Box, Picture, Wire
from .style import STYLE, TONES, head
from .svg import box_id, figure, frame, share, svg, swatch

__all__ = [
    "HEATS",
    "STYLE",
    "TONES",
    "Box",
    "Picture",
    "Wire",
    "box_id",
    "condense",
    "figure",
    "frame",
    "head",
    "overview",
    "printable",
    "share",
    "svg",
    "swatch",
    "text",
]

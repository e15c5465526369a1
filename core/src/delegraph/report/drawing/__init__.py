"""Drawing graphs: boxes and wires, laid out in layers, as SVG for a page. It imports neither torch nor a plugin."""

from ...io.escape import printable, text
from .condense import condense
from .picture import HEATS, Box, Picture, Wire
from .style import STYLE, TONES, head
from .svg import figure, svg, swatch

__all__ = [
    "HEATS",
    "STYLE",
    "TONES",
    "Box",
    "Picture",
    "Wire",
    "condense",
    "figure",
    "head",
    "printable",
    "svg",
    "swatch",
    "text",
]

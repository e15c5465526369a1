"""The errors of a quantized program's layers as a page: a table, with a bar for each signal-to-noise ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape


@dataclass(frozen=True)
class LayerError:
    """A layer of a quantized program beside the same layer in floats, over all batches.

    ``snr`` is the signal-to-noise ratio in dB: 10 log10(sum of squares in floats / sum of squared differences), of all
    that was lost up to this layer; infinite if nothing was. ``node`` is its name in the quantized program.
    """

    layer: str
    node: str
    operator: str
    source: str
    snr: float
    max_abs_error: float
    max_abs_value: float


FULL = 60.0
"""dB at which a bar is full: little is lost then."""
STYLE = """body { font: 14px system-ui, sans-serif; margin: 2em } td, th { text-align: left; padding: 2px 12px 2px 0 }
td:nth-child(3) { width: 240px } svg { vertical-align: middle }"""


def page(rows: Sequence[LayerError]) -> str:
    """HTML without anything from elsewhere."""
    head = "".join(f"<th>{name}</th>" for name in ("layer", "operator", "signal to noise, dB", "max error", "source"))
    body = "\n".join(map(_row, rows))
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>Quantization errors</title>"
        f"<style>{STYLE}</style></head>\n<body><h1>Quantization errors by layer</h1>\n"
        f"<table><tr>{head}</tr>\n{body}\n</table></body></html>\n"
    )


def _row(row: LayerError) -> str:
    share = min(max(row.snr / FULL, 0.0), 1.0)
    bar = (
        f"<svg width='160' height='12' role='img' aria-label='{row.snr:.1f} dB'>"
        f"<rect width='{160 * share:.1f}' height='12' fill='hsl({120 * share:.0f} 60% 45%)'/></svg> {row.snr:.1f}"
    )
    cells = escape(row.layer), escape(row.operator), bar, f"{row.max_abs_error:.3g}", escape(row.source)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"

"""Show the contents of a file on one screen: the text of a ``Summary``.

Imports neither torch nor numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from delegraph.formats import MethodSummary, Summary
from delegraph.io.escape_for_terminal import printable

_LISTED = 12
"""Most methods, inputs, outputs, delegates and kinds of operators in the text."""
_NAME = 60
"""The most characters of a name in the text."""


def summary_text(summary: Summary) -> str:
    """Return the text of ``delegraph inspect --summary``.

    Control characters in names of the file are escaped.
    """
    return printable("\n".join(_lines(summary)), kept="\n")


def _lines(summary: Summary) -> Iterator[str]:
    """Yield the lines about a file: its kind, methods and constants."""
    made = f", made by {_short(summary.producer)}" if summary.producer else ""
    yield f"{summary.kind}, version {summary.version}, {summary.bytes:,} bytes{made}"
    for need, names in summary.needs.items():
        if names:
            yield f"needs {need}: {_listed(names)}"
    for method in summary.methods[:_LISTED]:
        yield from _method_lines(method)
    if len(summary.methods) > _LISTED:
        yield f"and {len(summary.methods) - _LISTED} more methods"
    largest = ", largest:" if summary.largest else ""
    yield f"constants: {summary.constants:,}, {summary.constant_bytes:,} bytes{largest}"
    # sizes are aligned to the right
    width = max((len(f"{c.bytes:,}") for c in summary.largest), default=0)
    for constant in summary.largest:
        tensor = f"{constant.dtype}{list(constant.shape)}"
        yield f"  {constant.bytes:>{width},} bytes  {_short(constant.name)}: {tensor}"


def _method_lines(method: MethodSummary) -> Iterator[str]:
    """Yield the lines about a method: inputs, outputs, delegates and operators."""
    yield f"method {_short(method.name)}"
    for side, tensors in (("in ", method.inputs), ("out", method.outputs)):
        for tensor in tensors[:_LISTED]:
            yield f"  {side}  {tensor}"
        if len(tensors) > _LISTED:
            yield f"  {side}  and {len(tensors) - _LISTED} more"
    for delegate in method.delegates[:_LISTED]:
        made = f" ({delegate.producer})" if delegate.producer else ""
        yield f"  delegate  {_short(delegate.backend)}{made}, {delegate.bytes:,} bytes"
    if len(method.delegates) > _LISTED:
        yield f"  delegate  and {len(method.delegates) - _LISTED} more"
    ordered = sorted(method.operators.items(), key=lambda item: (-item[1], item[0]))
    counts = _listed([f"{count} {name}" for name, count in ordered])
    kinds = f" ({counts})" if method.operators else ""
    yield f"  operators: {sum(method.operators.values()):,}{kinds}"


def _listed(names: Sequence[str]) -> str:
    """Join names by commas; later ones are only counted."""
    shown = [_short(name) for name in names[:_LISTED]]
    if len(names) > _LISTED:
        shown.append(f"and {len(names) - _LISTED} more")
    return ", ".join(shown) or "none"


def _short(name: str) -> str:
    """Return a name without the characters beyond ``_NAME``."""
    return name if len(name) <= _NAME else f"{name[:_NAME]}…"

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
"""Characters of a name."""


def summary_text(summary: Summary) -> str:
    """Return the text of ``delegraph inspect --summary``.

    Control characters in names of the file are escaped.
    """
    return printable("\n".join(_lines(summary)), kept="\n")


def _lines(summary: Summary) -> Iterator[str]:
    made = f", made by {_short(summary.producer)}" if summary.producer else ""
    yield f"{summary.kind}, version {summary.version}, {summary.bytes:,} bytes{made}"
    for need, names in summary.needs.items():
        if names:
            yield f"needs {need}: {_listed(names)}"
    for method in summary.methods[:_LISTED]:
        yield from _method_lines(method)
    yield from (
        [f"and {len(summary.methods) - _LISTED} more methods"]
        if len(summary.methods) > _LISTED
        else []
    )
    largest = ", largest:" if summary.largest else ""
    yield f"constants: {summary.constants:,}, {summary.constant_bytes:,} bytes{largest}"
    rows = [
        (f"{c.bytes:,}", f"{_short(c.name)}: {c.dtype}{list(c.shape)}")
        for c in summary.largest
    ]
    width = max((len(size) for size, _ in rows), default=0)
    yield from (f"  {size:>{width}} bytes  {shown}" for size, shown in rows)


def _method_lines(method: MethodSummary) -> Iterator[str]:
    yield f"method {_short(method.name)}"
    for what, tensors in (("in ", method.inputs), ("out", method.outputs)):
        yield from (f"  {what}  {tensor}" for tensor in tensors[:_LISTED])
        yield from (
            [f"  {what}  and {len(tensors) - _LISTED} more"]
            if len(tensors) > _LISTED
            else []
        )
    for delegate in method.delegates[:_LISTED]:
        made = f" ({delegate.producer})" if delegate.producer else ""
        yield f"  delegate  {_short(delegate.backend)}{made}, {delegate.bytes:,} bytes"
    if len(method.delegates) > _LISTED:
        yield f"  delegate  and {len(method.delegates) - _LISTED} more"
    ordered = sorted(method.operators.items(), key=lambda item: (-item[1], item[0]))
    counts = _listed([f"{count} {name}" for name, count in ordered])
    yield f"  operators: {sum(method.operators.values()):,}" + (
        f" ({counts})" if method.operators else ""
    )


def _listed(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return ", ".join([*(_short(name) for name in names[:_LISTED]), *more]) or "none"


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[:_NAME]}…"

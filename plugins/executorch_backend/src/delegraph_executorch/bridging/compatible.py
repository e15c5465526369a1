"""Whether ExecuTorch's runtime here runs a stored blob of one of its backends."""

from __future__ import annotations

import re

from delegraph.errors import NoRuntime
from delegraph.runtime import BlobHeader, Compatibility

from ..wheel import stock_runtime, version_of

_COMPILED_BY = re.compile(r"executorch (\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?")
_XNNPACK = {b"XN00", b"XN01"}
"""The identifiers of XNNPACK's graphs that ExecuTorch 1.5 reads."""


def compatible(
    backend_id: str, header: BlobHeader, device: str | None = None
) -> Compatibility | None:
    """``cannot`` without the backend, or for a graph of another kind; ``rebuild`` if a
    newer ExecuTorch compiled it.

    ExecuTorch promises that a runtime reads what an older ExecuTorch compiled, and not
    what a newer one did. None where the file does not say which it was.
    """
    if device not in (None, "cpu"):
        return Compatibility(
            "cannot",
            "ExecuTorch's runtime here computes on the cpu, and has no device"
            f" {device!r}",
        )
    try:
        known = stock_runtime().backend_registry.registered_backend_names
    except NoRuntime as e:
        return Compatibility(
            "cannot", f"{e.message}; {e.hint}" if e.hint else e.message
        )
    if backend_id not in known:
        return Compatibility(
            "cannot",
            f"ExecuTorch's runtime here has no {backend_id}; it has {', '.join(known)}",
        )
    if backend_id == "XnnpackBackend" and (why := _no_graph(header.beginning)):
        return Compatibility("cannot", why)
    return _by_version(header.fingerprint)


def _by_version(fingerprint: str) -> Compatibility | None:
    here = version_of("executorch")
    theirs = _COMPILED_BY.match(fingerprint)
    ours = _COMPILED_BY.match(f"executorch {here}")
    if theirs is None or ours is None:
        return None
    compiled, runs = (
        [int(number or 0) for number in match.groups()] for match in (theirs, ours)
    )
    text = f"compiled by {theirs.group()}, and the runtime here is {here}"
    if compiled > runs:
        return Compatibility(
            "rebuild",
            f"{text}: ExecuTorch promises to read older files, not newer ones",
        )
    if compiled[0] < runs[0]:
        return Compatibility(
            "rebuild", f"{text}: support for older files ends with a later release"
        )
    return Compatibility("runs", text)


def _no_graph(blob: bytes) -> str | None:
    """Why the beginning of a blob is none of XNNPACK's; None if it is: a header names
    where the graph begins.
    """
    start = int.from_bytes(blob[10:14], "little") if blob[4:8] == b"XH00" else 0
    identifier = blob[start + 4 : start + 8]
    if identifier in _XNNPACK or (start and start + 8 > len(blob)):
        return None
    return (
        f"it begins with {blob[:16]!r}, and is no graph of XNNPACK that ExecuTorch's"
        " runtime reads"
    )

"""Check whether ExecuTorch's runtime on this host runs a stored blob."""

from __future__ import annotations

import re

from delegraph.errors import NoRuntime
from delegraph.runtime import BlobHeader, Compatibility

from ..wheel import stock_runtime, version_of

_EXECUTORCH_VERSION = re.compile(r"executorch (\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?")
_XNNPACK = {b"XN00", b"XN01"}
"""Identifiers of XNNPACK's graphs that ExecuTorch 1.5 reads."""


def compare_with_stock_runtime(
    backend_id: str, header: BlobHeader, device: str | None = None
) -> Compatibility | None:
    """Compare a blob with the runtime of the wheel ``executorch`` that is installed.

    The result is "cannot" if the runtime lacks the device or the backend, or if a blob
    for XNNPACK does not begin like a graph. It is "rebuild" if the ExecuTorch that
    compiled the blob is newer than the installed one, or has an older major version. It
    is None if one of these versions is unknown.
    """
    if device not in (None, "cpu"):
        why = f"ExecuTorch's runtime here computes on the cpu; it has no device {device!r}"
        return Compatibility("cannot", why)
    try:
        known = stock_runtime().backend_registry.registered_backend_names
    except NoRuntime as e:
        why = f"{e.message}; {e.hint}" if e.hint else e.message
        return Compatibility("cannot", why)
    if backend_id not in known:
        why = (
            f"ExecuTorch's runtime here has no backend {backend_id}; it has"
            f" {', '.join(known)}"
        )
        return Compatibility("cannot", why)
    if backend_id == "XnnpackBackend":
        no_graph = _why_no_graph(header.beginning)
        if no_graph is not None:
            return Compatibility("cannot", no_graph)
    return _compare_versions(header.fingerprint)


def _compare_versions(fingerprint: str) -> Compatibility | None:
    """Compare ExecuTorch's version in a blob's fingerprint with the installed one.

    Return None if one of these versions is unknown.
    """
    here = version_of("executorch")
    compiler_match = _EXECUTORCH_VERSION.match(fingerprint)
    runtime_match = _EXECUTORCH_VERSION.match(f"executorch {here}")
    if compiler_match is None or runtime_match is None:
        return None
    # the third number may be missing
    compiler = [int(number or 0) for number in compiler_match.groups()]
    runtime = [int(number or 0) for number in runtime_match.groups()]
    text = f"compiled by {compiler_match.group()}, and the runtime here is {here}"
    if compiler > runtime:
        why = f"{text}: ExecuTorch promises to read older files, not newer ones"
        return Compatibility("rebuild", why)
    if compiler[0] < runtime[0]:
        why = f"{text}: support for older files ends with a later release"
        return Compatibility("rebuild", why)
    return Compatibility("runs", text)


def _why_no_graph(blob: bytes) -> str | None:
    """Return why a blob does not begin like a graph of XNNPACK, or None.

    ``blob`` may be only the first bytes of the blob.
    """
    start = 0
    if blob[4:8] == b"XH00":
        # A header is in front of the graph. Its bytes 10 to 13 are the graph's offset.
        start = int.from_bytes(blob[10:14], "little")
    # Bytes 4 to 7 of a flatbuffer are its identifier.
    identifier = blob[start + 4 : start + 8]
    is_beyond_first_bytes = start > 0 and start + 8 > len(blob)
    if identifier in _XNNPACK or is_beyond_first_bytes:
        return None
    return (
        f"the blob begins with {blob[:16]!r}, which is no graph of XNNPACK that"
        " ExecuTorch's runtime reads"
    )

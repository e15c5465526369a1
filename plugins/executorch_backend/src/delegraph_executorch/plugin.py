"""The light module of delegraph-executorch: what it offers, without importing torch or numpy."""

from __future__ import annotations

from delegraph.plugin import FormatSpec, hookimpl


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    return [FormatSpec(".pte", "delegraph_executorch.format:PteFormat", "a whole program for ExecuTorch's runtime")]

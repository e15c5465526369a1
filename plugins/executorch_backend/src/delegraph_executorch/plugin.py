"""The light module of delegraph-executorch: what it offers, without importing torch or numpy."""

from __future__ import annotations

from delegraph.plugin import FormatSpec, hookimpl


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    summary = "a whole program for ExecuTorch's runtime"
    return [FormatSpec(".pte", "delegraph_executorch.format:PteFormat", summary, runtimes=("executorch",))]

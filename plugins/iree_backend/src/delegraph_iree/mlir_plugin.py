"""The light module for ``.mlir`` files; separate, because writing them needs no IREE."""

from __future__ import annotations

from delegraph.plugin import FormatSpec, hookimpl


@hookimpl
def delegraph_formats() -> list[FormatSpec]:
    return [
        FormatSpec(
            ".mlir",
            "delegraph_iree.format:MlirFormat",
            "TOSA in MLIR's generic form, one whole delegate",
        )
    ]

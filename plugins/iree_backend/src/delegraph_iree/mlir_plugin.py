"""The light module for ``.mlir`` files, apart from IREE's, since writing them needs
nothing of IREE.
"""

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

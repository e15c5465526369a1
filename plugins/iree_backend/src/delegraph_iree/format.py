"""``.vmfb`` files, which IREE's own tools run, and ``.mlir`` files, the text that IREE
and other MLIR tools compile.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

from delegraph.formats import DelegateFormat, ProgramContents, join

from .mlir import write_mlir


class VmfbFormat(DelegateFormat):
    """An IREE module, the blob of one delegate; ``iree-run-module --module=m.vmfb
    --function=main`` runs it as well.
    """

    backend_id = "IREEBackend"


class MlirFormat(DelegateFormat):
    """The TOSA graph of one delegate in MLIR's generic form. It is written, and read by
    other tools.
    """

    backend_id = "TOSABackend"

    @classmethod
    def serialize(cls, program: ProgramContents, options: Mapping[str, Any]) -> bytes:
        """The text of the delegate's TOSA file; InputError unless one delegate of TOSA
        is all.
        """
        import delegraph_tosa

        text = BytesIO()
        write_mlir(
            delegraph_tosa.read(join(super().serialize(program, options))), text.write
        )
        return text.getvalue()

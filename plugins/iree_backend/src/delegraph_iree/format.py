"""``.vmfb`` files for IREE's tools, and ``.mlir`` files for MLIR tools."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

from delegraph.formats import DelegateFormat, ProgramContents, join

from .mlir import write_mlir


class VmfbFormat(DelegateFormat):
    """An IREE module, the blob of one delegate.

    ``iree-run-module --module=m.vmfb --function=main`` runs it as well.
    """

    backend_id = "IREEBackend"


class MlirFormat(DelegateFormat):
    """The TOSA graph of one delegate in MLIR's generic form; only other tools read it."""

    backend_id = "TOSABackend"

    @classmethod
    def serialize(cls, program: ProgramContents, options: Mapping[str, Any]) -> bytes:
        """Return the text of the delegate's TOSA file.

        Raises InputError unless the program is a single delegate of TOSA.
        """
        import delegraph_tosa

        text = BytesIO()
        blob = super().serialize(program, options)
        write_mlir(delegraph_tosa.read(join(blob)), text.write)
        return text.getvalue()

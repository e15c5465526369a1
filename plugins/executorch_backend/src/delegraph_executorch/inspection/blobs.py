"""Describe the delegates of a program file without loading them. Imports no torch."""

from __future__ import annotations

from delegraph.backend import CompileSpec
from delegraph.formats import StoredBlob
from delegraph.runtime import BEGINNING, BlobHeader

from ..program.calling import fingerprints, producers
from ..program.pte_tables import ExecutionPlan
from ..serialize.reader import ProgramFile, blob_of


def stored_blobs(file: ProgramFile, plan: ExecutionPlan) -> list[StoredBlob]:
    """Return the delegates of a method, in the order of the file.

    Only the beginning of each blob is read.
    """
    made_by = producers(plan.container)
    depends_on = fingerprints(plan.container)
    stored = []
    for k, delegate in enumerate(plan.delegates):
        blob = blob_of(file, delegate)
        # The lists of a damaged file, or of another tool, may be shorter.
        header = BlobHeader(
            delegate.id,
            len(blob),
            bytes(blob[:BEGINNING]),
            made_by[k] if k < len(made_by) else "",
            depends_on[k] if k < len(depends_on) else "",
        )
        specs = [CompileSpec(spec.key, spec.value) for spec in delegate.compile_specs]
        stored.append(StoredBlob(plan.name, header, specs))
    return stored

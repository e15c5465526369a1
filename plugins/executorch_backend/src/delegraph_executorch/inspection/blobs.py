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
    producer_of = producers(plan.container)
    fingerprint_of = fingerprints(plan.container)
    stored = []
    for k, delegate in enumerate(plan.delegates):
        blob = blob_of(file, delegate)
        # the lists in a damaged file, or in one of another tool, may be shorter
        header = BlobHeader(
            delegate.id,
            len(blob),
            bytes(blob[:BEGINNING]),
            producer_of[k] if k < len(producer_of) else "",
            fingerprint_of[k] if k < len(fingerprint_of) else "",
        )
        specs = [CompileSpec(spec.key, spec.value) for spec in delegate.compile_specs]
        stored.append(StoredBlob(plan.name, header, specs))
    return stored

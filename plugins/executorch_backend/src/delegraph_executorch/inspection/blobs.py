"""What a program file says of its delegates before any of them is loaded. Imports no
torch.
"""

from __future__ import annotations

from itertools import chain, repeat

from delegraph.backend import CompileSpec
from delegraph.formats import StoredBlob
from delegraph.runtime import BEGINNING, BlobHeader

from ..program.calling import fingerprints, producers
from ..program.tables import ExecutionPlan
from ..serialize.reader import ProgramFile, blob_of


def stored_blobs(file: ProgramFile, plan: ExecutionPlan) -> list[StoredBlob]:
    """The delegates of a method, in the order of the file; of each blob only the
    beginning is read.
    """
    # files of other tools, or damaged ones, say it of fewer delegates than they have,
    # or of more
    made, told = (
        chain(texts(plan.container), repeat("")) for texts in (producers, fingerprints)
    )
    stored = []
    for delegate, producer, fingerprint in zip(
        plan.delegates, made, told, strict=False
    ):
        blob = blob_of(file, delegate)
        header = BlobHeader(
            delegate.id, len(blob), bytes(blob[:BEGINNING]), producer, fingerprint
        )
        specs = [CompileSpec(spec.key, spec.value) for spec in delegate.compile_specs]
        stored.append(StoredBlob(plan.name, header, specs))
    return stored

"""What a program file says of its delegates before any of them is loaded. Imports no torch."""

from __future__ import annotations

from delegraph.backend import CompileSpec
from delegraph.formats import StoredBlob
from delegraph.runtime import BEGINNING, BlobHeader

from ..program.calling import fingerprints, producers
from ..program.tables import ExecutionPlan
from ..serialize.reader import ProgramFile, blob_of


def stored_blob(file: ProgramFile, plan: ExecutionPlan, number: int) -> StoredBlob:
    """The delegate of that number in a method; of its blob only the beginning is read."""
    delegate = plan.delegates[number]
    blob = blob_of(file, delegate)
    made, told = (dict(enumerate(texts(plan.container))) for texts in (producers, fingerprints))
    beginning = bytes(blob[:BEGINNING])
    header = BlobHeader(delegate.id, len(blob), beginning, made.get(number, ""), told.get(number, ""))
    return StoredBlob(plan.name, header, [CompileSpec(spec.key, spec.value) for spec in delegate.compile_specs])

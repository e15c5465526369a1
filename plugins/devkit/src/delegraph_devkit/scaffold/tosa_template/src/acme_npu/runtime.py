"""Runs blobs on this host with the runtime of delegraph-tosa. Replace it by your simulator or driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import delegraph
from delegraph.backend import CompileSpec
from delegraph.runtime import BackendRuntime, Delegate
from delegraph_engines import from_specs, unseal

from .backend import MARK
from .instructions import WORD


class AcmeNpuRuntime(BackendRuntime):
    """Runs delegates for ``lowered(...)`` and ``delegraph lower --verify``."""

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Return a function that runs a blob on its inputs. Raises FormatError if the blob is damaged."""
        file, _ = unseal(processed_bytes, MARK)
        _, tosa = from_specs(compile_specs, f"{WORD}_", {})
        return delegraph.get_runtime("tosa").load(bytes(file), tosa, named_data)

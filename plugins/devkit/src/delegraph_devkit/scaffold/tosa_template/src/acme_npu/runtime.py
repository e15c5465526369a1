"""Runs blobs on this host. Here TOSA's own runtime does; your simulator or driver goes here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import delegraph
from delegraph.backend import CompileSpec
from delegraph.runtime import BackendRuntime, Delegate
from delegraph_engines import from_specs, unseal

from .backend import MARK
from .instructions import WORD


class AcmeNpuRuntime(BackendRuntime):
    """What ``lowered(...)`` and ``delegraph lower --verify`` call."""

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Make a blob callable, with its inputs in calling order. Raises FormatError if it is damaged."""
        file, _ = unseal(processed_bytes, MARK)
        _, tosa = from_specs(compile_specs, f"{WORD}_", {})
        return delegraph.get_runtime("tosa").load(bytes(file), tosa, named_data)

"""``EthosURuntime``: runs the TOSA file that a payload was compiled from, where it was
kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import delegraph
from delegraph.backend import CompileSpec
from delegraph.errors import NoRuntime
from delegraph.runtime import BackendRuntime, BlobHeader, Compatibility, Delegate

from .backend import TOSA_KEY, separated
from .payload import blocks


class EthosURuntime(BackendRuntime):
    """No host has an Ethos-U. What its compiler was given, TOSA's runtime computes,
    integer by integer.
    """

    thread_safe = True

    @staticmethod
    def load(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        """Load the TOSA file of a payload. NoRuntime without one, FormatError if the
        payload is damaged.
        """
        list(blocks(processed_bytes))
        file = named_data.get(TOSA_KEY + hashlib.sha256(processed_bytes).hexdigest())
        if file is None:
            text = (
                "no host runs what was compiled for an Ethos-U, and its TOSA file was"
                " not kept"
            )
            hint = (
                "lower it with the option ethosu.keep_tosa=true: this host then"
                " computes what Vela was given"
            )
            raise NoRuntime("no-runtime", text, hint=hint)
        return delegraph.get_runtime("tosa").load(file, separated(compile_specs)[0], {})

    @staticmethod
    def compatible(
        header: BlobHeader,
        compile_specs: Sequence[CompileSpec],
        device: str | None = None,
    ) -> Compatibility | None:
        """Whether ``device``, an accelerator as Vela calls it, is the one that the blob
        was compiled for.
        """
        made = {
            spec.key: spec.value.decode(errors="replace") for spec in compile_specs
        }.get("ethosu_accelerator")
        if device is None or made is None:
            return None
        if device != made:
            return Compatibility(
                "cannot",
                f"it was compiled for {made}, and a command stream fits one"
                " configuration",
            )
        return Compatibility("runs", f"it was compiled for {made}")

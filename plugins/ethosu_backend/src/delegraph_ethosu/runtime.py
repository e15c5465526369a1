"""``EthosURuntime``: runs the TOSA file of a payload on this host, if it was kept."""

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
    """Computes the TOSA file that Vela compiled, integer by integer.

    No host has an Ethos-U.
    """

    thread_safe = True

    @staticmethod
    def load(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        """Load the TOSA file of a payload.

        Raises NoRuntime without one, FormatError if the payload is damaged.
        """
        # reads all blocks, for the FormatError of a damaged payload
        list(blocks(processed_bytes))
        file = named_data.get(TOSA_KEY + hashlib.sha256(processed_bytes).hexdigest())
        if file is None:
            text = (
                "this host has no Ethos-U, and the TOSA file of the payload was not"
                " kept"
            )
            hint = (
                "lower it with the option ethosu.keep_tosa=true: this host then"
                " computes the TOSA file"
            )
            raise NoRuntime("no-runtime", text, hint=hint)
        return delegraph.get_runtime("tosa").load(file, separated(compile_specs)[0], {})

    @staticmethod
    def compatible(
        header: BlobHeader,
        compile_specs: Sequence[CompileSpec],
        device: str | None = None,
    ) -> Compatibility | None:
        """Return whether the blob was compiled for ``device``, an accelerator of Vela."""
        values = {s.key: s.value.decode(errors="replace") for s in compile_specs}
        accelerator = values.get("ethosu_accelerator")
        if device is None or accelerator is None:
            return None
        text = f"it was compiled for {accelerator}"
        if device != accelerator:
            why = f"{text}, and a command stream fits one configuration"
            return Compatibility("cannot", why)
        return Compatibility("runs", text)

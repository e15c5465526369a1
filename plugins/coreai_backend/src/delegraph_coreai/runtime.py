"""``CoreAIRuntime``: runs blobs with Core AI's runtime on this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version

from delegraph.backend import CompileSpec
from delegraph.errors import FormatError
from delegraph.runtime import BackendRuntime, BlobHeader, Compatibility, Delegate
from delegraph_engines import Signature, compare_releases

from .least_sizes import least_of
from .model import Loaded, load_function, load_model
from .names import MAIN, MARK
from .states import first_values, zeros
from .weights import filled

Specs = Sequence[CompileSpec]
NamedData = Mapping[str, bytes]


class CoreAIRuntime(BackendRuntime):
    """Compiles Core AI programs for this host. Several threads may call a delegate."""

    thread_safe = True
    any_strides = True

    @staticmethod
    def load(
        processed_bytes: bytes, compile_specs: Specs, named_data: NamedData
    ) -> Delegate:
        """Load a blob. Raises FormatError if it is damaged."""
        content, signature, facts = Signature.unseal(processed_bytes, MARK)
        name = facts.get("function", MAIN)
        if not isinstance(name, str):
            raise FormatError(
                "format-invalid",
                f"the blob of CoreAIBackend has the function name {name!r:.40},"
                " which is not a text",
            )
        model = load_model(filled(content, facts, named_data))
        function = load_function(model, name)
        if "states" in facts:
            states = first_values(function, facts, named_data)
        else:
            # an ``.aimodel`` folder lists no first values
            states = zeros(function)
        return Loaded(function, signature, states, least_of(facts, signature))

    @staticmethod
    def compatible(
        header: BlobHeader, compile_specs: Specs, device: str | None = None
    ) -> Compatibility | None:
        """Compare the releases. Core AI reads programs of older releases."""
        here = f"coreai-torch {version('coreai-torch')}"
        return compare_releases(header.fingerprint, here, reads_older=True)

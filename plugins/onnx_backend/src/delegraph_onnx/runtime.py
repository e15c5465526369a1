"""``OnnxRuntime``: runs blobs with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import onnx
import onnxruntime as ort
from delegraph.backend import CompileSpec
from delegraph.runtime import (
    BackendRuntime,
    BlobHeader,
    Compatibility,
    Delegate,
    ProfiledDelegate,
)
from delegraph_engines import Observing, Signature, compare_releases

from .observer import add_outputs
from .profiler import Profiled
from .providers import why_absent
from .session import MARK, Loaded, make_session, read_weights
from .settings import read_settings

Specs = Sequence[CompileSpec]
NamedData = Mapping[str, bytes]


class OnnxRuntime(BackendRuntime):
    """Loads ONNX models into ONNX Runtime. Several threads may call one session."""

    thread_safe = True
    any_strides = True

    @staticmethod
    def load(
        processed_bytes: bytes, compile_specs: Specs, named_data: NamedData
    ) -> Delegate:
        """Load a blob.

        Raises FormatError if it is damaged, NoRuntime without its provider.
        """
        model, signature, facts = Signature.unseal(processed_bytes, MARK)
        weights = read_weights(facts, named_data)
        session = make_session(bytes(model), read_settings(compile_specs), weights)
        return Loaded(session, signature)

    @staticmethod
    def observe(
        processed_bytes: bytes, compile_specs: Specs, named_data: NamedData
    ) -> Observing:
        """Load a blob that also returns the result of each call of the program.

        With the additional results, ONNX Runtime fuses fewer operators. Models that
        were compiled ahead return none of them.
        """
        content, signature, facts = Signature.unseal(processed_bytes, MARK)
        weights = read_weights(facts, named_data)
        model = onnx.ModelProto.FromString(bytes(content))
        observed = add_outputs(model)
        types = [(value.dtype, (-1,) * value.rank) for value in observed]
        signature = replace(signature, outputs=(*signature.outputs, *types))
        session = make_session(
            model.SerializeToString(), read_settings(compile_specs), weights
        )
        return Observing(Loaded(session, signature), [v.call for v in observed])

    @staticmethod
    def profile(
        processed_bytes: bytes, compile_specs: Specs, named_data: NamedData
    ) -> ProfiledDelegate:
        """Load a blob whose delegate returns the times of ONNX Runtime's profiler."""
        content, signature, facts = Signature.unseal(processed_bytes, MARK)
        model = bytes(content)
        weights = read_weights(facts, named_data)
        settings = read_settings(compile_specs)

        def make(prefix: str) -> ort.InferenceSession:
            """Return a session that writes a profile to files of this prefix."""
            return make_session(model, settings, weights, profile=prefix)

        return Profiled(make, model, signature)

    @staticmethod
    def compatible(
        header: BlobHeader, compile_specs: Specs, device: str | None = None
    ) -> Compatibility | None:
        """Check for the provider, and compare releases. ONNX Runtime reads older models."""
        why = why_absent(device or read_settings(compile_specs).ep)
        if why is not None:
            return Compatibility("cannot", why)
        here = f"onnxruntime {ort.__version__}"
        return compare_releases(header.fingerprint, here, reads_older=True)

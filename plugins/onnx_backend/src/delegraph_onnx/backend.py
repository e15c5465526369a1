"""Compile a partition to an ONNX model. Large weights are named data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnxruntime as ort
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    NamedDataStore,
    PreprocessResult,
)
from delegraph.errors import FormatError
from torch.export import ExportedProgram

from .compile_ahead import compile_ahead
from .exporter import Draft
from .model_weights import take_weights
from .session import MARK, make_session
from .settings import Settings, read_settings


class OnnxBackend(BackendDetails):
    """Compiles to ONNX models, which later releases of ONNX Runtime read as well."""

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        return f"onnxruntime {ort.__version__}"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the model and its weights. Raises Unsupported with the reason."""
        settings = read_settings(compile_specs)
        if settings.ep == "cpu":
            return _for_cpu(Draft(edge_program), settings)
        return _for_provider(Draft(edge_program, for_npu=True), settings)


def _for_cpu(draft: Draft, settings: Settings) -> PreprocessResult:
    """Return a model for ONNX Runtime's CPU.

    It is loaded once: ONNX Runtime may refuse a model although it accepts each part.
    """
    store = NamedDataStore()
    weights = take_weights(draft.model, store)
    content = draft.content()
    try:
        make_session(content, settings, {w.name: w.value for w in weights})
    except FormatError as error:
        raise draft.failure(error.message) from error
    rows = {w.name: (w.key, w.dtype, w.sizes) for w in weights}
    blob = _seal(draft, content, rows)
    data = store.get_named_data_store_output()
    return PreprocessResult(blob, draft.debug_handles, data)


def _for_provider(draft: Draft, settings: Settings) -> PreprocessResult:
    """Return a model for an execution provider, compiled ahead if that can be."""
    compiled = compile_ahead(draft, settings)
    on_cpu = [f"{count} {name}" for name, count in compiled.on_cpu.items()]
    facts = {
        "provider": settings.ep,
        "compiled": "ahead" if compiled.contexts else "at load",
        "on ONNX Runtime's CPU": ", ".join(on_cpu) or "nothing",
    }
    blob = _seal(draft, compiled.content, {})
    return PreprocessResult(blob, draft.debug_handles, facts=facts)


def _seal(draft: Draft, content: bytes, weights: dict[str, Any]) -> bytes:
    """Return a model as a blob."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        path.write_bytes(content)
        return draft.signature.seal(path, MARK, weights=weights)

"""A partition becomes an ONNX model, whose large weights are named data."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnxruntime as ort
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    NamedDataStore,
    PreprocessResult,
)
from delegraph.errors import FormatError
from torch.export import ExportedProgram

from .exporter import Draft
from .model_weights import take_weights
from .runtime import MARK, make_session
from .settings import read_settings


class OnnxBackend(BackendDetails):
    """Compiles to ONNX models, which later releases of ONNX Runtime read as well."""

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        return f"onnxruntime {ort.__version__}"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the model and its weights. Raises Unsupported with the reason.

        ONNX Runtime loads the model once: it may refuse a model whose parts it took.
        """
        settings = read_settings(compile_specs)
        draft = Draft(edge_program)
        store = NamedDataStore()
        weights = take_weights(draft.model, store)
        content = draft.content()
        try:
            make_session(content, settings, {w.name: w.value for w in weights})
        except FormatError as error:
            raise draft.refused(error.message) from error
        rows = {w.name: (w.key, w.dtype, w.sizes) for w in weights}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            path.write_bytes(content)
            blob = draft.signature.seal(path, MARK, weights=rows)
        return PreprocessResult(
            blob, draft.debug_handles, store.get_named_data_store_output()
        )

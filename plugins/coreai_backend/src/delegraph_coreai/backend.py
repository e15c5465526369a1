"""Compile a partition to the bytecode of a Core AI program. Weights are named data."""

from __future__ import annotations

import tempfile
from importlib.metadata import version
from pathlib import Path

from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    NamedDataStore,
    PreprocessResult,
)
from delegraph.errors import FormatError
from torch.export import ExportedProgram

from .converter import Draft
from .model import bytecode_of, load_function, load_model
from .names import MAIN, MARK
from .states import list_states
from .weights import take_weights


class CoreAIBackend(BackendDetails):
    """Compiles to Core AI programs, which systems with Core AI specialize on device."""

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str:
        return f"coreai-torch {version('coreai-torch')}"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the sealed bytecode. Raises Unsupported with the reason."""
        draft = Draft(edge_program)
        bytecode = bytecode_of(draft.program)
        try:
            # a test: Core AI's compiler may refuse the program
            load_function(load_model([bytecode]), MAIN)
        except FormatError as error:
            raise draft.refused(error.message) from error
        store = NamedDataStore()
        content, holes = take_weights(bytecode, edge_program, store)
        facts = {
            "weights": holes,
            "states": list_states(draft.states, store),
            "least": draft.least,
        }
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "main.mlirb")
            path.write_bytes(content)
            blob = draft.signature.seal(path, MARK, **facts)
        data = store.get_named_data_store_output()
        return PreprocessResult(blob, draft.debug_handles, data)

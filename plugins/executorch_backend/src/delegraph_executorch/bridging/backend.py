"""A backend of ExecuTorch as one of delegraph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    NamedDataStore,
    NamedDataStoreOutput,
    PreprocessResult,
)
from delegraph.errors import ContractViolation, Unsupported
from delegraph.io.quiet import quietly
from torch.export import ExportedProgram

from ..wheel import version_of
from .convention import add_convention
from .edge import to_edge_dialect
from .loadable import check_loads, has_runtime
from .parts import cut
from .runtime import BridgedRuntime


class BridgedBackend(BackendDetails, abstract=True):
    """Compiles partitions with ``theirs``, the class that ``bridge`` was given, which
    sees them in edge dialect.
    """

    theirs: ClassVar[Any]
    cached: ClassVar[bool] = False
    prepare: ClassVar[Callable[[ExportedProgram], ExportedProgram]] = staticmethod(
        lambda edge: edge
    )
    loaded_by: ClassVar[type[BridgedRuntime] | None] = None

    @classmethod
    def fingerprint(cls, compile_specs: list[CompileSpec]) -> str | None:
        """Versions of ExecuTorch and of the bridge, and whether blobs are loaded, if
        the backend may be cached.
        """
        if not cls.cached:
            return None
        facts = [
            f"{name} {version_of(name)}"
            for name in ("executorch", "delegraph-executorch")
        ]
        if cls.loaded_by is not None and has_runtime():
            facts.append("loaded by the runtime")
        return ", ".join(facts)

    @classmethod
    def preprocess(
        cls, edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        if not any(n.op == "call_function" for n in edge_program.graph.nodes):
            raise Unsupported(
                "unsupported",
                f"there is nothing for {cls.__name__} to compile: the program has no"
                " calls",
            )
        edge = cls.prepare(cut(edge_program) or to_edge_dialect(edge_program))
        specs = _specs(compile_specs)
        # their passes draw example inputs when they run first
        with quietly(), torch.random.fork_rng(devices=()):
            result = cls.theirs.preprocess(edge, specs)
        return cls._translate(edge_program, result)

    @classmethod
    def _translate(cls, program: ExportedProgram, result: Any) -> PreprocessResult:
        """Their result as ours. Debug handles that their passes added are left out: no
        call of ours has them.
        """
        processed = getattr(result, "processed_bytes", None)
        if not isinstance(processed, (bytes, bytearray, memoryview)):
            text = (
                f"preprocess of {cls.theirs.__name__} returned {result!r:.80}, not a"
                " PreprocessResult with bytes"
            )
            raise ContractViolation("contract-violation", text)
        known = {
            n.meta["debug_handle"]
            for n in program.graph.nodes
            if "debug_handle" in n.meta
        }
        handles: dict[Any, tuple[int, ...]] = {}
        # One that says nothing, as XNNPACK's, has the handles of its program in the
        # blob. From a cache they are those of the program with other numbers, so that
        # the map has to say which calls they are.
        told = result.debug_handle_map or (
            dict(zip(known, known, strict=True)) if cls.cached else {}
        )
        for identifier, listed in told.items():
            own = tuple(
                h
                for h in (listed if isinstance(listed, (tuple, list)) else (listed,))
                if h in known
            )
            if own:
                handles[identifier] = own
        blob = bytes(processed)
        store = _named_data(result.data_store_output)
        add_convention(store, cls.__name__, blob, program)
        translated = PreprocessResult(
            blob,
            handles,
            store.get_named_data_store_output(),
            result._delegate_info_meta,
        )
        if cls.loaded_by is not None:
            check_loads(cls.loaded_by, translated)
        return translated


class JointlyBridgedBackend(BridgedBackend, abstract=True):
    """A bridged backend that compiles the partitions of all methods together."""

    @classmethod
    def preprocess_multimethod(
        cls,
        edge_programs: Mapping[str, Sequence[ExportedProgram]],
        compile_specs: Mapping[str, Sequence[list[CompileSpec]]],
    ) -> dict[str, list[PreprocessResult]]:
        programs: dict[str, list[ExportedProgram]] = {}
        for method, listed in edge_programs.items():
            programs[method] = [
                cls.prepare(cut(p) or to_edge_dialect(p)) for p in listed
            ]
        specs = {m: [_specs(s) for s in listed] for m, listed in compile_specs.items()}
        with quietly(), torch.random.fork_rng(devices=()):
            results = cls.theirs.preprocess_multimethod(programs, specs)
        return {
            method: [
                cls._translate(p, r)
                for p, r in zip(listed, results[method], strict=True)
            ]
            for method, listed in edge_programs.items()
        }


def _specs(compile_specs: Sequence[CompileSpec]) -> list[Any]:
    from executorch.exir.backend.compile_spec_schema import CompileSpec as Theirs

    return [Theirs(spec.key, spec.value) for spec in compile_specs]


def _named_data(output: Any) -> NamedDataStore:
    """Return their named data as ours, under the same names."""
    store = NamedDataStore()
    empty = NamedDataStoreOutput()
    for tag, entries in [
        (None, (output or empty).pte_data),
        *(output or empty).external_data.items(),
    ]:
        for key, entry in entries.items():
            store.add_named_data(
                key, bytes(output.buffers[entry.buffer_index]), entry.alignment, tag
            )
    return store

"""Use a backend of ExecuTorch as one of delegraph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from delegraph.backend import (
    BackendDetails,
    CompileSpec,
    NamedDataStore,
    PreprocessResult,
)
from delegraph.errors import ContractViolation, Unsupported
from delegraph_engines import quietly
from torch.export import ExportedProgram

from ..wheel import version_of
from .calling_convention import add_convention
from .cut_partition import cut_partition
from .edge import to_edge_dialect
from .load_check import check_loads, has_runtime
from .runtime import BridgedRuntime


class BridgedBackend(BackendDetails, abstract=True):
    """Compiles partitions with ``theirs``, a backend class of ExecuTorch.

    ``cached``: whether a cache may keep blobs. ``prepare`` changes a partition in edge
    dialect before ``theirs`` gets it. ``loaded_by``: the runtime that must be able to
    load each blob; None for no check.
    """

    theirs: ClassVar[Any]
    cached: ClassVar[bool] = False
    prepare: ClassVar[Callable[[ExportedProgram], ExportedProgram]] = staticmethod(
        lambda edge: edge
    )
    loaded_by: ClassVar[type[BridgedRuntime] | None] = None

    @classmethod
    def fingerprint(cls, compile_specs: list[CompileSpec]) -> str | None:
        """Return the key under which blobs are cached; None if they must not be.

        It contains the versions of ExecuTorch and of this plugin. If each new blob is
        loaded as a check, it also contains that.
        """
        if not cls.cached:
            return None
        names = ("executorch", "delegraph-executorch")
        facts = [f"{name} {version_of(name)}" for name in names]
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
                f"{cls.__name__} cannot compile a program without operators",
            )
        edge = cls._edge_program(edge_program)
        specs = _specs(compile_specs)
        # ExecuTorch's passes draw random example inputs: keep the user's random state.
        with quietly(), torch.random.fork_rng(devices=()):
            result = cls.theirs.preprocess(edge, specs)
        return cls._translate(edge_program, result)

    @classmethod
    def _edge_program(cls, program: ExportedProgram) -> ExportedProgram:
        """Return a partition's program in edge dialect, after ``prepare``."""
        edge = cut_partition(program)
        if edge is None:
            edge = to_edge_dialect(program)
        return cls.prepare(edge)

    @classmethod
    def _translate(cls, program: ExportedProgram, result: Any) -> PreprocessResult:
        """Convert the result of ``theirs`` to delegraph's class, and check the blob.

        Debug handles that ExecuTorch's passes added are left out: ``program`` lacks them.
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
        their_map = result.debug_handle_map
        if not their_map and cls.cached:
            # A blob without a map, such as XNNPACK's, contains the handles of
            # ``program``. The map must list them: the cache may reuse the blob for an
            # equal program with other handles.
            their_map = {handle: handle for handle in known}
        handles: dict[Any, tuple[int, ...]] = {}
        for identifier, listed in (their_map or {}).items():
            if not isinstance(listed, (tuple, list)):
                listed = (listed,)
            of_program = tuple(handle for handle in listed if handle in known)
            if of_program:
                handles[identifier] = of_program
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
            programs[method] = [cls._edge_program(program) for program in listed]
        specs = {}
        for method, specs_of_method in compile_specs.items():
            specs[method] = [_specs(each) for each in specs_of_method]
        # ExecuTorch's passes draw random example inputs: keep the user's random state.
        with quietly(), torch.random.fork_rng(devices=()):
            results = cls.theirs.preprocess_multimethod(programs, specs)
        translated: dict[str, list[PreprocessResult]] = {}
        for method, listed in edge_programs.items():
            translated[method] = []
            for program, result in zip(listed, results[method], strict=True):
                translated[method].append(cls._translate(program, result))
        return translated


def _specs(compile_specs: Sequence[CompileSpec]) -> list[Any]:
    """Convert compile specs to ExecuTorch's class."""
    from executorch.exir.backend.compile_spec_schema import CompileSpec as Theirs

    return [Theirs(spec.key, spec.value) for spec in compile_specs]


def _named_data(output: Any) -> NamedDataStore:
    """Convert ExecuTorch's named data to delegraph's class, under the same names."""
    store = NamedDataStore()
    if output is None:
        return store
    # Data without a tag stays in the program file.
    for tag, entries in [(None, output.pte_data), *output.external_data.items()]:
        for key, entry in entries.items():
            content = bytes(output.buffers[entry.buffer_index])
            store.add_named_data(key, content, entry.alignment, tag)
    return store

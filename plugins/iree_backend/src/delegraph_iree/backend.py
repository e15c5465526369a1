"""``IREEBackend``: compiles a partition to TOSA, MLIR, and an IREE module."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import delegraph
import delegraph_tosa
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.errors import Unsupported
from delegraph.formats import join
from delegraph_engines import Signature, from_specs
from delegraph_tosa import Graph
from torch.export import ExportedProgram

# registers the suffix ``iree`` of TOSA targets, which the compile specs contain
from . import partitioner  # noqa: F401
from .for_iree import write_for_iree

MARK = b"delegraph-iree-3"
"""The end of each blob. A blob has a module, its signature, and two facts.

The facts are "target" and, for llvm-cpu, "driver".
"""
_TRANSPOSES_STAY = "--iree-global-opt-propagate-transposes=false"
"""A flag of iree-compile for a second attempt with programs that contain ARGMAX.

IREE 3.13 fuses an ARGMAX with a following TRANSPOSE into an operation that it refuses
itself. The flag prevents that, but makes other operators slower.
"""
_DEFAULTS = {"target": "llvm-cpu", "cpu": "host", "flags": "", "driver": "local-sync"}


class IREEBackend(BackendDetails):
    """Compiles with iree-compile in a process of its own; a crash becomes a refusal.

    The compile specs are TOSA's, then ``iree_target``, ``iree_cpu``, ``iree_flags`` and
    ``iree_driver``.
    """

    thread_safe = True

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """Return the compiler's version, or None if it compiles for this processor.

        Nothing identifies this host's processor.
        """
        settings, tosa = from_specs(compile_specs, "iree_", _DEFAULTS)
        if settings["target"] == "llvm-cpu" and settings["cpu"] == "host":
            return None
        if delegraph.get_backend("tosa").fingerprint(tosa) is None:
            return None
        return f"iree-base-compiler {version('iree-base-compiler')}"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the partition as an IREE module.

        Its function ``main`` has the delegate's inputs. Delegate debug identifiers are the numbers of operators in the TOSA file. Raises
        Unsupported, with the compiler's message, if iree-compile refuses the program or
        crashes.
        """
        settings, tosa = from_specs(compile_specs, "iree_", _DEFAULTS)
        compiled = delegraph.get_backend("tosa").preprocess(edge_program, tosa)
        graph = delegraph_tosa.read(join(compiled.processed_bytes))
        blob = _compile(graph, settings, Signature.of(edge_program))
        return replace(
            compiled,
            processed_bytes=blob,
            facts={**compiled.facts, "target": settings["target"]},
        )


def _compile(graph: Graph, settings: Mapping[str, str], signature: Signature) -> bytes:
    """Return the blob of a TOSA graph; Unsupported if iree-compile fails."""
    from iree.compiler.tools.binaries import find_tool

    with tempfile.TemporaryDirectory(prefix="delegraph-iree-") as name:
        folder = Path(name)
        with (folder / "main.mlir").open("wb") as text:
            write_for_iree(graph, text.write)
        # The module contains the name of its source file. It is always the same, so
        # that equal partitions have equal modules.
        command = [
            find_tool("iree-compile"),
            "main.mlir",
            "-o",
            "main.vmfb",
            "--iree-input-type=tosa",
        ]
        command.append(f"--iree-hal-target-backends={settings['target']}")
        command += delegraph_tosa.split_flags(settings["flags"])
        if settings["target"] == "llvm-cpu":
            command.append(f"--iree-llvmcpu-target-cpu={settings['cpu']}")
        try:
            delegraph_tosa.run_compiler(command, folder)
        except Unsupported:
            if not any(operator.name == "ARGMAX" for operator in graph.operators):
                raise
            delegraph_tosa.run_compiler([*command, _TRANSPOSES_STAY], folder)
        # a module is native code, and IREE runs it without a check for damage
        facts = {"target": settings["target"]}
        if settings["target"] == "llvm-cpu":
            facts["driver"] = settings["driver"]
        return signature.seal(folder / "main.vmfb", MARK, **facts)

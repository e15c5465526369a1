"""``IREEBackend``: a partition becomes TOSA, MLIR, and what iree-compile makes of that."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import delegraph
import delegraph_tosa
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult, from_specs
from delegraph.errors import Unsupported
from delegraph.formats import join
from delegraph_engines import Signature
from delegraph_tosa import Graph
from torch.export import ExportedProgram

# makes the word of targets that the compile specs have
from . import partitioner  # noqa: F401
from .for_iree import write_for_iree

MARK = b"delegraph-iree-3"
"""What a blob ends with: a module, its signature, and as a fact its target."""
_TRANSPOSES_STAY = "--iree-global-opt-propagate-transposes=false"
"""IREE 3.13 fuses an ARGMAX with a TRANSPOSE behind it into an operation that it
refuses itself. Without that, other operators would be slower, so it is the second
attempt.
"""
_DEFAULTS = {"target": "llvm-cpu", "cpu": "host", "flags": "", "driver": "local-sync"}


class IREEBackend(BackendDetails):
    """Compiles with iree-compile, a process of its own: if it crashes, that is a
    refusal.

    The compile specs are TOSA's, then ``iree_target``, ``iree_cpu``, ``iree_flags`` and
    ``iree_driver``.
    """

    thread_safe = True

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """The compiler's version; None where it compiles for the processor of this
        host, which it does not name.
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
        """The partition as an IREE module whose function ``main`` has the delegate's
        calling convention.

        Delegate debug identifiers are the numbers of operators in the TOSA file. Raises
        Unsupported if iree-compile refuses the program or crashes, with what it said.
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
    """The blob of a TOSA graph. Unsupported if iree-compile makes no module of it."""
    from iree.compiler.tools.binaries import find_tool

    with tempfile.TemporaryDirectory(prefix="delegraph-iree-") as name:
        folder = Path(name)
        with (folder / "main.mlir").open("wb") as text:
            write_for_iree(graph, text.write)
        # The module names its source: by the same name each time, so that equal
        # partitions have equal modules.
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
        # a module is native code, which IREE runs without looking for damage
        facts = {"target": settings["target"]}
        if settings["target"] == "llvm-cpu":
            facts["driver"] = settings["driver"]
        return signature.seal(folder / "main.vmfb", MARK, **facts)

"""``IREEBackend``: a partition becomes TOSA, MLIR, and what iree-compile makes of that."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import delegraph
import delegraph_tosa
from delegraph.backend import BackendDetails, CompileSpec, PreprocessResult
from delegraph.errors import OptionError, Unsupported
from delegraph.exported_program import MUTATIONS, output_values, user_inputs
from delegraph.formats import join
from delegraph_tosa import Graph
from torch.export import ExportedProgram

from .mlir import write_mlir
from .module import Signature, pack
from .partitioner import check_flags  # the module makes the word of targets that the compile specs have

_SETTINGS = ("iree_target", "iree_cpu", "iree_flags")
_LONGEST = 400
"""Characters of the compiler's output that an error shows."""


class IREEBackend(BackendDetails):
    """Compiles with iree-compile, a process of its own: if it crashes, that is a refusal.

    The compile specs are TOSA's, then ``iree_target``, ``iree_cpu`` and ``iree_flags``.
    """

    thread_safe = True

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """The compiler's version; None where it compiles for the processor of this host, which it does not name."""
        _, settings = separated(compile_specs)
        if settings["iree_target"] == "llvm-cpu" and settings["iree_cpu"] == "host":
            return None
        return f"iree-base-compiler {version('iree-base-compiler')}"

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """The partition as an IREE module whose function ``main`` has the delegate's calling convention.

        Delegate debug identifiers are the numbers of operators in the TOSA file. Raises Unsupported if iree-compile
        refuses the program or crashes, with what it said.
        """
        tosa, settings = separated(compile_specs)
        compiled = delegraph.get_backend("tosa").preprocess(edge_program, tosa)
        signature = _signature(edge_program, settings["iree_target"])
        module = _compile(delegraph_tosa.read(join(compiled.processed_bytes)), settings)
        facts = {**compiled.facts, "target": settings["iree_target"]}
        return replace(compiled, processed_bytes=pack(module, signature), facts=facts)


def separated(compile_specs: Sequence[CompileSpec]) -> tuple[list[CompileSpec], dict[str, str]]:
    """The compile specs of TOSA, and those of IREE by key. OptionError if one is missing, or the flags are no words."""
    settings = {spec.key: spec.value.decode(errors="replace") for spec in compile_specs if spec.key in _SETTINGS}
    if len(settings) != len(_SETTINGS):
        raise OptionError("option-invalid", f"the compile specs of IREEBackend have {', '.join(_SETTINGS)}")
    check_flags(settings["iree_flags"])
    return [spec for spec in compile_specs if spec.key not in _SETTINGS], settings


def _signature(program: ExportedProgram, target: str) -> Signature:
    """What the partition takes and returns. TOSA's types have no sign, so its file cannot tell uint8 from int8."""
    outputs = zip(program.graph_signature.output_specs, output_values(program), strict=True)
    results = [value for spec, value in outputs if spec.kind not in MUTATIONS]
    return Signature(target, _described(user_inputs(program)), _described(results))


def _described(nodes: Iterable[Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    tensors = (node.meta["val"] for node in nodes)
    return tuple(
        (str(t.dtype).removeprefix("torch."), tuple(size if isinstance(size, int) else -1 for size in t.shape))
        for t in tensors
    )


def _compile(graph: Graph, settings: dict[str, str]) -> bytes:
    """The IREE module of a TOSA graph. Unsupported if iree-compile makes none."""
    from iree.compiler.tools.binaries import find_tool

    with tempfile.TemporaryDirectory(prefix="delegraph-iree-") as folder:
        source, module = Path(folder, "main.mlir"), Path(folder, "main.vmfb")
        with source.open("wb") as text:
            write_mlir(graph, text.write)
        # The module names its source: by the same name each time, so that equal partitions have equal modules.
        command = [find_tool("iree-compile"), source.name, "-o", module.name, "--iree-input-type=tosa"]
        command += [f"--iree-hal-target-backends={settings['iree_target']}", *shlex.split(settings["iree_flags"])]
        if settings["iree_target"] == "llvm-cpu":
            command.append(f"--iree-llvmcpu-target-cpu={settings['iree_cpu']}")
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            raise _refused(done)
        return module.read_bytes()


def _refused(done: subprocess.CompletedProcess[str]) -> Unsupported:
    """The error for a compiler that made no module."""
    said = done.stderr.splitlines()
    errors = [line for line in said if "error:" in line] or said[-3:]
    ended = f"iree-compile ended with {done.returncode}" if done.returncode > 0 else "iree-compile crashed"
    return Unsupported("unsupported", f"{ended}: {'; '.join(errors)[:_LONGEST]}")

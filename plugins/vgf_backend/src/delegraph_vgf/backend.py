"""``VgfBackend``: a partition becomes TOSA, and what Arm's model-converter makes of that."""

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
import model_converter
from delegraph.backend import BackendDetails, Blob, CompileSpec, PreprocessResult
from delegraph.errors import OptionError, Unsupported
from delegraph.exported_program import MUTATIONS, output_values, user_inputs
from delegraph.formats import write_whole
from torch.export import ExportedProgram

from . import partitioner  # noqa: F401  # makes the word of targets that the compile specs have
from .blob import Side, Signature, seal
from .content import content_of

_FLAGS = "vgf_flags"
_LONGEST = 400
"""Characters of the converter's output that an error shows."""


class VgfBackend(BackendDetails):
    """Converts with model-converter, a process of its own: if it crashes, that is a refusal.

    The compile specs are TOSA's, and ``vgf_flags``.
    """

    thread_safe = True

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """The converter's version; None where TOSA's files depend on more than the program."""
        tosa, _ = separated(compile_specs)
        if delegraph.get_backend("tosa").fingerprint(tosa) is None:
            return None
        return f"ai-ml-sdk-model-converter {version('ai-ml-sdk-model-converter')}"

    @staticmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """The partition as a VGF file whose inputs and outputs have the delegate's order, types and shapes.

        Delegate debug identifiers are the numbers of operators in the TOSA file. Raises Unsupported if model-converter
        refuses the program, crashes, or makes a file that is called otherwise.
        """
        tosa, flags = separated(compile_specs)
        compiled = delegraph.get_backend("tosa").preprocess(edge_program, tosa)
        return replace(compiled, processed_bytes=_convert(compiled.processed_bytes, flags, _signature(edge_program)))


def separated(compile_specs: Sequence[CompileSpec]) -> tuple[list[CompileSpec], str]:
    """The compile specs of TOSA, and the converter's flags. OptionError if these are missing."""
    flags = [spec.value.decode() for spec in compile_specs if spec.key == _FLAGS]
    if len(flags) != 1:
        raise OptionError("option-invalid", f"the compile specs of VgfBackend have {_FLAGS} once")
    return [spec for spec in compile_specs if spec.key != _FLAGS], flags[0]


def _signature(program: ExportedProgram) -> Signature:
    """What the partition takes and returns. TOSA's types have no sign, so its file cannot tell uint8 from int8."""
    outputs = zip(program.graph_signature.output_specs, output_values(program), strict=True)
    results = [value for spec, value in outputs if spec.kind not in MUTATIONS]
    return Signature(_described(user_inputs(program)), _described(results))


def _described(nodes: Iterable[Any]) -> Side:
    tensors = (node.meta["val"] for node in nodes)
    return tuple((str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors)


def _convert(tosa: bytes | Blob, flags: str, signature: Signature) -> bytes:
    """The blob of a TOSA file. Unsupported if model-converter makes none, or one that is called otherwise."""
    with tempfile.TemporaryDirectory(prefix="delegraph-vgf-") as folder:
        source, target = Path(folder, "main.tosa"), Path(folder, "main.vgf")
        write_whole(source, tosa)
        tool = Path(model_converter.__file__).parent / "binaries/bin/model-converter"
        command = [str(tool), "-i", str(source), "-o", str(target), *shlex.split(flags)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0 or not target.exists():
            raise _refused(done)
        if (why := _why_called_otherwise(target.read_bytes(), signature)) is not None:
            raise Unsupported("unsupported", why)
        seal(target, signature)
        return target.read_bytes()


def _refused(done: subprocess.CompletedProcess[str]) -> Unsupported:
    """The error for a converter that made no file."""
    said = done.stderr.splitlines()
    errors = [line for line in said if "error:" in line] or said[-3:]
    ended = f"model-converter ended with {done.returncode}" if done.returncode >= 0 else "model-converter crashed"
    return Unsupported("unsupported", f"{ended}: {'; '.join(errors)[:_LONGEST]}")


def _why_called_otherwise(vgf: bytes, signature: Signature) -> str | None:
    """Why the file cannot be called as the partition; None if it can."""
    content = content_of(vgf)
    for does, tensors, side in (
        ("takes", content.inputs, signature.inputs),
        ("returns", content.outputs, signature.outputs),
    ):
        there = [(tensor.dtype, tensor.shape) for tensor in tensors]
        wanted = [("int8" if dtype == "uint8" else dtype, shape) for dtype, shape in side]  # TOSA's types have no sign
        if there != wanted:
            return f"the file that model-converter made {does} {there}, and the partition {wanted}"
    return None

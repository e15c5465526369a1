"""``VgfBackend``: converts a partition to TOSA, and then to a VGF file."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import delegraph
import delegraph_tosa
import model_converter
from delegraph.backend import BackendDetails, Blob, CompileSpec, PreprocessResult
from delegraph.errors import Unsupported
from delegraph.formats import write_whole
from delegraph_engines import Signature, from_specs
from torch.export import ExportedProgram

# registers the suffix ``vgf`` of TOSA targets, which the compile specs contain
from . import partitioner  # noqa: F401
from .content import MARK, content_of

_TOOL = Path(model_converter.__file__).parent / "binaries/bin/model-converter"


class VgfBackend(BackendDetails):
    """Converts with Arm's model-converter in a process of its own.

    If it crashes, the partition is refused. The compile specs are TOSA's, and
    ``vgf_flags``.
    """

    thread_safe = True

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """Return the converter's version.

        None if TOSA's files depend on more than the program.
        """
        _, tosa = from_specs(compile_specs, "vgf_", {"flags": ""})
        if delegraph.get_backend("tosa").fingerprint(tosa) is None:
            return None
        return f"ai-ml-sdk-model-converter {version('ai-ml-sdk-model-converter')}"

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the partition as a VGF file with the delegate's inputs and outputs.

        Delegate debug identifiers are the numbers of operators in the TOSA file. Raises
        Unsupported if model-converter refuses the program, crashes, or makes a file
        with other inputs or outputs.
        """
        settings, tosa = from_specs(compile_specs, "vgf_", {"flags": ""})
        compiled = delegraph.get_backend("tosa").preprocess(edge_program, tosa)
        blob = _convert(
            compiled.processed_bytes, settings["flags"], Signature.of(edge_program)
        )
        return replace(compiled, processed_bytes=blob)


def _convert(tosa: bytes | Blob, flags: str, signature: Signature) -> bytes:
    """Return the blob of a TOSA file; Unsupported if model-converter fails."""
    with tempfile.TemporaryDirectory(prefix="delegraph-vgf-") as name:
        folder = Path(name)
        write_whole(folder / "main.tosa", tosa)
        command: list[str | Path] = [_TOOL, "-i", "main.tosa", "-o", "main.vgf"]
        command += delegraph_tosa.split_flags(flags)
        delegraph_tosa.run_compiler(command, folder)
        if not (folder / "main.vgf").exists():
            raise Unsupported(
                "unsupported", "model-converter reported success, but wrote no file"
            )
        content = content_of((folder / "main.vgf").read_bytes())
        why = content.why_mismatch(signature)
        if why is not None:
            raise Unsupported(
                "unsupported", f"model-converter made a wrong file: {why}"
            )
        # sealed, because Vulkan drivers compile SPIR-V without a check for damage
        return signature.seal(folder / "main.vgf", MARK)

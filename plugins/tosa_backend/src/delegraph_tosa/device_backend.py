"""Parts for backends that compile TOSA files: a partitioner and a compiler process."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import delegraph
from delegraph.errors import OptionError, Unsupported
from delegraph_engines import WrappingPartitioner, to_specs

from .spec import TosaSpec

_LONGEST = 400
"""Largest number of characters of a compiler's output in an error."""


class DevicePartitioner(WrappingPartitioner):
    """Gives a backend the operators that TOSA's rules lower and its device supports.

    ``device`` is a word registered with ``narrow``; it is added to the target ``spec``
    if missing. ``settings`` are the backend's own. They become compile specs with the
    prefix ``device`` and an underscore. ``tosa`` are further TOSA options.
    """

    def __init__(
        self,
        backend_id: str,
        device: str,
        settings: Mapping[str, str],
        spec: str = "TOSA-1.0+FP+INT",
        **tosa: Any,
    ) -> None:
        if device not in TosaSpec.parse(spec).devices:
            spec = f"{spec}+{device}"
        backend_specs = to_specs(f"{device}_", settings)
        partitioner = delegraph.get_partitioner("tosa", spec=spec, **tosa)
        super().__init__(partitioner, backend_id, backend_specs)


def split_flags(flags: str) -> list[str]:
    """Split compiler flags as a shell does.

    Raises OptionError for unbalanced quotes.
    """
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise OptionError(
            "option-invalid", f"option 'flags' is {flags!r:.80}: {error}"
        ) from error


def run_compiler(command: Sequence[str | Path], folder: Path) -> None:
    """Run a compiler in ``folder``.

    Raises Unsupported, with the compiler's error lines, if it fails or crashes.
    """
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        output = done.stderr.splitlines()
        errors = [line for line in output if "error:" in line] or output[-3:]
        ended = f"exited with status {done.returncode}"
        if done.returncode < 0:
            ended = f"crashed (signal {-done.returncode})"
        name = Path(command[0]).name
        raise Unsupported(
            "unsupported", f"{name} {ended}: {'; '.join(errors)[:_LONGEST]}"
        )

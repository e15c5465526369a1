"""What a backend is made of whose compiler reads TOSA: its partitioner, and its
compiler as a process of its own.
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import delegraph
from delegraph.backend import to_specs
from delegraph.errors import OptionError, Unsupported
from delegraph.partitioner import WrappingPartitioner

from .spec import TosaSpec

_LONGEST = 400
"""Characters of a compiler's output that an error shows."""


class DevicePartitioner(WrappingPartitioner):
    """Gives a backend what TOSA's rules lower to operators that its device takes.

    ``device``: a word that ``narrow`` made; it becomes part of the target ``spec`` if
    it is not. ``settings``: those of the backend, which become compile specs whose keys
    begin with ``device`` and an underscore. ``tosa``: TOSA's other options.
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
        own = to_specs(f"{device}_", settings)
        super().__init__(
            delegraph.get_partitioner("tosa", spec=spec, **tosa), backend_id, own
        )


def split_flags(flags: str) -> list[str]:
    """A user's arguments for a compiler. Raises OptionError for flags that a shell
    would not take apart.
    """
    try:
        return shlex.split(flags)
    except ValueError as error:
        raise OptionError(
            "option-invalid", f"option 'flags' is {flags!r:.80}: {error}"
        ) from error


def run_compiler(command: Sequence[str | Path], folder: Path) -> None:
    """Run a compiler in ``folder``. Raises Unsupported with what it said if it refuses
    its file or crashes.
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
        said = done.stderr.splitlines()
        errors = [line for line in said if "error:" in line] or said[-3:]
        ended = (
            f"ended with {done.returncode}"
            if done.returncode > 0
            else f"crashed (signal {-done.returncode})"
        )
        name = Path(command[0]).name
        raise Unsupported(
            "unsupported", f"{name} {ended}: {'; '.join(errors)[:_LONGEST]}"
        )

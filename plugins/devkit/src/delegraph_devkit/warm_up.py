"""Export and lower the common programs once, before a process forks for checks."""

from __future__ import annotations

import delegraph

from .lowering_attempt import quiet
from .programs import PROGRAMS, Exported
from .random_programs import random_program

RANDOM_PROGRAMS = 10
"""The default number of random programs among the samples."""


def warm_up() -> None:
    """Export and lower the common programs: forks then start with them, and with all
    of torch.
    """
    for program in (*PROGRAMS, *map(random_program, range(RANDOM_PROGRAMS))):
        if program.exported is not None:
            run_on_host(program.exported)


def run_on_host(exported: Exported) -> None:
    """Lower and run a program without any backend."""
    program, inputs = exported
    with quiet():
        try:
            registry = delegraph.Registry(discover=False)
            lowered = delegraph.lower(program, backends=[], registry=registry)
            lowered(*inputs)
        except Exception:
            # a limit of torch or of delegraph, which is the same for every backend
            return

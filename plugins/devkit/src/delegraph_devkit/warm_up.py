"""What a process does once, before it forks for checks: export and lower the common
programs.
"""

from __future__ import annotations

import delegraph

from .lowering_attempt import quiet
from .programs import PROGRAMS, Exported
from .random_programs import random_program

RANDOM_PROGRAMS = 10
"""How many random programs are among the samples, unless a test wants fewer."""


def warm_up() -> None:
    """Export and lower the common programs, so that forks find them exported, and all
    of torch imported.
    """
    for program in (*PROGRAMS, *map(random_program, range(RANDOM_PROGRAMS))):
        if program.exported is not None:
            run_on_host(program.exported)


def run_on_host(exported: Exported) -> None:
    """Lower and run a program without any backend."""
    program, inputs = exported
    with quiet():
        try:
            delegraph.lower(
                program, backends=[], registry=delegraph.Registry(discover=False)
            )(*inputs)
        except Exception:
            # a limit of torch or of delegraph, which every backend meets again
            return

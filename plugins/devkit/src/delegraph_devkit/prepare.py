"""Arguments and warm-up of the programs that checks run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from delegraph.api import lower
from delegraph.discovery.registry import Registry

from .lowering_attempt import quiet
from .programs import Exported

if TYPE_CHECKING:
    pass
from .backend_under_test import Subject


def prepare() -> None:
    """Export and lower the common programs once, so that forks find them, and torch loaded what it loads lazily."""
    for program in Subject("").programs:
        made = program.kept()
        if made is not None:
            warm_up(made)


def warm_up(made: Exported) -> None:
    """Lower and run a program on the host alone."""
    with quiet():
        try:
            lower(made[0], backends=[], registry=Registry(discover=False))(*made[1])
        except Exception:  # a limit of torch or of the engine, which is met again with every backend
            return

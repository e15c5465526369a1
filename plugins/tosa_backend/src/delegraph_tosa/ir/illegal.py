"""The errors that the inference of an operator raises."""

from __future__ import annotations


class Illegal(ValueError):
    """An operator breaks a rule of the specification; ``rule`` is its name."""

    def __init__(self, text: str, rule: str = "unnamed") -> None:
        super().__init__(text)
        self.rule = rule


class Undecided(Illegal):
    """A result depends on a size that is known at run time only."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "size-known")

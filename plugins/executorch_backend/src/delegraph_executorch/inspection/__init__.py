"""What is in a program file, for people and for programs. Imports no torch."""

from .facts import MethodFacts, ProgramFacts, collect_facts
from .summary import summarize

__all__ = ["MethodFacts", "ProgramFacts", "collect_facts", "summarize"]

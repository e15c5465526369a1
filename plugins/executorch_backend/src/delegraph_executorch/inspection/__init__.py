"""Describe the content of a program file, for people and programs. Imports no torch."""

from .facts import MethodFacts, ProgramFacts, collect_facts
from .summary import summarize

__all__ = ["MethodFacts", "ProgramFacts", "collect_facts", "summarize"]

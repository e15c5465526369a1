"""What is in a program file, for people and for programs. Imports no torch."""

from .facts import MethodFacts, ProgramFacts, collect_facts
from .page import render_page
from .summary import summarize

__all__ = ["MethodFacts", "ProgramFacts", "collect_facts", "render_page", "summarize"]

"""Write a package for a new backend, from a template that is a working package."""

from .names import Names, taken, why_no_backend, why_not
from .package import FILES, generate

__all__ = ["FILES", "Names", "generate", "taken", "why_no_backend", "why_not"]

"""A package for a new backend, made from a template that is itself one: only its names
are replaced.
"""

from .names import Names, taken, why_no_backend, why_not
from .package import FILES, generate

__all__ = ["FILES", "Names", "generate", "taken", "why_no_backend", "why_not"]

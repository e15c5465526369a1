"""Write programs as bytes: a canonical form for backends, and names and source lines."""

from .arguments import DTYPES
from .constants import INLINE, Memory
from .form import VERSION, Fetch, Form
from .read import canonical, read
from .write import NOT_IN_FORM, write

__all__ = [
    "DTYPES",
    "INLINE",
    "NOT_IN_FORM",
    "VERSION",
    "Fetch",
    "Form",
    "Memory",
    "canonical",
    "read",
    "write",
]

"""Programs as bytes: a canonical form of all that backends may depend on, and beside it names and source lines."""

from .constants import Memory
from .form import VERSION, Fetch, Form
from .read import canonical, read
from .values import DTYPES
from .write import write

__all__ = ["DTYPES", "VERSION", "Fetch", "Form", "Memory", "canonical", "read", "write"]

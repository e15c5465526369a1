"""Programs as bytes: what backends may compute by in one canonical form, and what it leaves out beside it."""

from .constants import Memory
from .form import VERSION, Fetch, Form
from .read import canonical, read
from .values import DTYPES
from .write import write

__all__ = ["DTYPES", "VERSION", "Fetch", "Form", "Memory", "canonical", "read", "write"]

"""Programs as bytes: what backends may compute by in one canonical form, and what it leaves out beside it."""

from .form import VERSION, Fetch, Form
from .read import read
from .write import write

__all__ = ["VERSION", "Fetch", "Form", "read", "write"]

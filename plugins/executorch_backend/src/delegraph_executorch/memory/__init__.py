"""Plan the memory of a method. Imports no torch."""

from .lifetimes import Lifetime, find_lifetimes
from .plan import ALIGNMENT, plan_memory
from .storage import Home, Storage

__all__ = ["ALIGNMENT", "Home", "Lifetime", "Storage", "find_lifetimes", "plan_memory"]

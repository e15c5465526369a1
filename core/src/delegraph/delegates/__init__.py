"""Delegates: the modules that lowered programs call, and facts about them. This package is public."""

from .delegates import DelegateInfo
from .lowered_module import Argument, LoweredBackendModule

__all__ = ["Argument", "DelegateInfo", "LoweredBackendModule"]

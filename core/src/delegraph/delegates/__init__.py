"""Delegates: the modules that lowered programs call, and facts about them. This package
is public.
"""

from .delegates import (
    DelegateDebug,
    DelegateInfo,
    MethodPrograms,
    delegate_calls,
    delegate_map,
    merged_named_data,
)
from .lowered_module import Argument, LoweredBackendModule

__all__ = [
    "Argument",
    "DelegateDebug",
    "DelegateInfo",
    "LoweredBackendModule",
    "MethodPrograms",
    "delegate_calls",
    "delegate_map",
    "merged_named_data",
]

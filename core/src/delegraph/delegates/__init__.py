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
from .lowered_module import LoweredBackendModule

__all__ = [
    "DelegateDebug",
    "DelegateInfo",
    "LoweredBackendModule",
    "MethodPrograms",
    "delegate_calls",
    "delegate_map",
    "merged_named_data",
]

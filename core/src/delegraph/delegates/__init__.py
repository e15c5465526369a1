"""Delegates: the modules that lowered programs call, and facts about them. This package
is public.
"""

from .find_delegates import (
    DelegateInfo,
    MethodPrograms,
    delegate_calls,
    merged_named_data,
)
from .lowered_module import LoweredBackendModule

__all__ = [
    "DelegateInfo",
    "LoweredBackendModule",
    "MethodPrograms",
    "delegate_calls",
    "merged_named_data",
]

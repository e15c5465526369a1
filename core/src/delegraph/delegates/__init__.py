"""Delegates: the modules that lowered programs call, and facts about them. This package is public."""

from .delegates import (
    DelegateDebug,
    DelegateInfo,
    MethodPrograms,
    delegate_calls,
    delegate_map,
    merged_named_data,
)
from .kernels import Border, Kernel, computed_by
from .lowered_module import Argument, LoweredBackendModule
from .signature import Signature

__all__ = [
    "Argument",
    "Border",
    "DelegateDebug",
    "DelegateInfo",
    "Kernel",
    "LoweredBackendModule",
    "MethodPrograms",
    "Signature",
    "computed_by",
    "delegate_calls",
    "delegate_map",
    "merged_named_data",
]

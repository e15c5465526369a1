"""Find the kernels that a runtime has, and the one that computes an operator."""

from ..program.quantized_library import QUANTIZED_LIBRARY
from .kernel_set import KernelSet, kernel_set, stock_kernels
from .limits import loses_values, why_not
from .select import Kernel, find_kernel, kernel_name

__all__ = [
    "QUANTIZED_LIBRARY",
    "Kernel",
    "KernelSet",
    "find_kernel",
    "kernel_name",
    "kernel_set",
    "loses_values",
    "stock_kernels",
    "why_not",
]

"""Chooses the operators for the device: all that become supported TOSA operators, in as few parts as possible."""

from __future__ import annotations

from delegraph_tosa import DevicePartitioner

from .backend import AcmeNpuBackend
from .instructions import WORD


class AcmeNpuPartitioner(DevicePartitioner):
    """Has no options. Options that plugin.py declares become parameters; pass them on as compile specs.

    The empty dictionary is for settings of your compiler, such as {"flags": flags}, which preprocess gets.
    """

    def __init__(self) -> None:
        super().__init__(AcmeNpuBackend.__name__, WORD, {}, spec="TOSA-1.0+FP")

"""Which operators the device gets: all that become TOSA operators that it has, in as few parts as possible."""

from __future__ import annotations

from delegraph_tosa import DevicePartitioner

from .backend import AcmeNpuBackend
from .instructions import WORD


class AcmeNpuPartitioner(DevicePartitioner):
    """Takes no options. Those that plugin.py declares become parameters here, and go on as compile specs.

    The empty settings are those of your compiler, such as {"flags": flags}: preprocess gets them.
    """

    def __init__(self) -> None:
        super().__init__(AcmeNpuBackend.__name__, WORD, {}, spec="TOSA-1.0+FP")

"""Use backends that were written for ExecuTorch as delegraph backends.

Needs the wheel ``executorch``. In this package, ``theirs`` is the class of ExecuTorch
that is bridged: a backend or a partitioner.
"""

from .declaration import Bridge, bridge

__all__ = ["Bridge", "bridge"]

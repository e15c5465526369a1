"""Use backends that were written for ExecuTorch as delegraph backends.

Needs the wheel ``executorch``.
"""

from .declaration import Bridge, bridge

__all__ = ["Bridge", "bridge"]

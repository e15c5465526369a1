"""ExecuTorch's backends, and those that others wrote for it, as delegraph backends.
Needs the wheel ``executorch``.
"""

from .declaration import Bridge, bridge

__all__ = ["Bridge", "bridge"]

"""Files of TOSA 0.80. Imported only if a target or a file has that version."""

from .reader import OlderBlock
from .writer import OlderStructure

__all__ = ["OlderBlock", "OlderStructure"]

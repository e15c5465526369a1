"""Files of TOSA 0.80: the same graph in the schema before 1.0. Imported when a target
or a file names that version.
"""

from .reader import OlderBlock
from .writer import OlderStructure

__all__ = ["OlderBlock", "OlderStructure"]

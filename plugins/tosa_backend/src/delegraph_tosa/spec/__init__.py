"""What a target accepts: versions, profiles, extensions, levels, and the table of
element types and who allows them.
"""

from .requirement import Requirement, required, required_target, required_version
from .target import DEFAULT, TosaSpec, narrow

__all__ = [
    "DEFAULT",
    "Requirement",
    "TosaSpec",
    "narrow",
    "required",
    "required_target",
    "required_version",
]

"""Targets: versions, profiles, extensions, levels and the operator table."""

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

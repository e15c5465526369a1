"""All checks. The order of these imports is the order in which they are run: what is quick and basic comes first."""

# isort: off
from . import declaration, contract, sampling, corners, delivery, threads, separate, damage
# isort: on

__all__ = ["contract", "corners", "damage", "declaration", "delivery", "sampling", "separate", "threads"]

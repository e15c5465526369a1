"""All checks. The order of these imports is the order in which they are run: what is
quick and basic comes first.
"""

# isort: off
from . import (
    declaration,
    contract,
    operator_sweep,
    edge_cases,
    artifacts,
    answers,
    threads,
    determinism,
    malformed_blobs,
)

# isort: on

__all__ = [
    "answers",
    "artifacts",
    "contract",
    "declaration",
    "determinism",
    "edge_cases",
    "malformed_blobs",
    "operator_sweep",
    "threads",
]

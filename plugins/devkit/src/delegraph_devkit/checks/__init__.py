"""Import all checks. They run in the order of these imports: quick, basic ones first."""

# isort: off
from . import (
    declaration,
    contract,
    operator_sweep,
    edge_cases,
    artifacts,
    optional_methods,
    threads,
    determinism,
    malformed_blobs,
)

# isort: on

__all__ = [
    "artifacts",
    "contract",
    "declaration",
    "determinism",
    "edge_cases",
    "malformed_blobs",
    "operator_sweep",
    "optional_methods",
    "threads",
]

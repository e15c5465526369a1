"""The targets ``u55`` and ``u85``: which TOSA operators the NPUs have."""

from __future__ import annotations

from delegraph_tosa import Operator, narrow

TARGETS = {"1.0": "TOSA-1.0+INT+int16+int4", "0.80": "TOSA-0.80+BI"}
"""Version of TOSA -> profiles and extensions that Vela reads of it; the word of a processor stands behind them."""


def why_not_u55(operator: Operator) -> str | None:
    """Why Ethos-U55 and U65 do not have a TOSA operator; None if they do."""
    return None


def why_not_u85(operator: Operator) -> str | None:
    """Why Ethos-U85 does not have a TOSA operator; None if it does."""
    return None


narrow("u55", why_not_u55)
narrow("u85", why_not_u85)

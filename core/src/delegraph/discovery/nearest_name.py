"""Finds the known name that a user probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, where x is the name in ``known`` that is
    nearest to ``name``; "" if no name is near.
    """
    near = nearest(name, known)
    return "" if near is None else f"; did you mean {near!r}?"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name in ``known`` that is most similar to ``name``, without regard to
    case; None if no name is similar.
    """
    from difflib import get_close_matches  # most commands do not need it

    # name in lower case -> name
    by_lower: dict[str, str] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), candidate)
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.66)
    return by_lower[near[0]] if near else None

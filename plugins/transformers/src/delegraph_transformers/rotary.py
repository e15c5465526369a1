"""Rotary embeddings whose frequencies grow with the text (``rope_type`` "dynamic").

transformers looks in each call whether the text is longer than any before, and computes
other frequencies then: a branch on the position, which no program has. Up to the
positions that the model was trained for, nothing grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from delegraph.errors import InputError

_GROWING = "dynamic"


def expect_fixed_positions(model: Any, length: int) -> None:
    """Raise InputError for a model whose frequencies would grow before its cache of
    ``length`` tokens is full.
    """
    fixed = min(
        (getattr(module, "original_max_seq_len", length) for module in _growing(model)),
        default=length,
    )
    if fixed < length:
        text = (
            f"{type(model).__name__} computes its positions anew for each length of"
            f" more than {fixed} tokens (rope_type {_GROWING!r}), which a program of"
            f" fixed sizes cannot; the cache has {length}"
        )
        raise InputError(
            "input-invalid", text, hint=f"generation_steps(model, cache_length={fixed})"
        )


@contextmanager
def fixed_positions(model: Any) -> Iterator[None]:
    """Let calls of ``model`` go without the look at the length."""
    before = [(module, module.rope_type) for module in _growing(model)]
    try:
        for module, kinds in before:
            module.rope_type = (
                {k: _fixed(v) for k, v in kinds.items()}
                if isinstance(kinds, dict)
                else _fixed(kinds)
            )
        yield
    finally:
        for module, kinds in before:
            module.rope_type = kinds


def _fixed(kind: str) -> str:
    return "default" if _GROWING in kind else kind


def _growing(model: torch.nn.Module) -> list[Any]:
    """The modules of rotary embeddings that look at the length."""

    def grows(module: Any) -> bool:
        kinds = getattr(module, "rope_type", "")
        return any(
            _GROWING in str(kind)
            for kind in (kinds.values() if isinstance(kinds, dict) else [kinds])
        )

    return [module for module in model.modules() if grows(module)]

"""Rotary embeddings with frequencies that grow with the text (``rope_type`` "dynamic").

In each call, transformers checks whether the text is longer than before, and then
computes other frequencies. This is a branch on the position, which cannot be exported.
Up to the positions that the model was trained for, the frequencies are fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from delegraph.errors import InputError

_GROWING = "dynamic"


def expect_fixed_positions(model: Any, length: int) -> None:
    """Raise InputError if the frequencies of a model would grow within the cache.

    The cache has ``length`` tokens.
    """
    fixed = min(
        (getattr(module, "original_max_seq_len", length) for module in _growing(model)),
        default=length,
    )
    if fixed < length:
        text = (
            f"{type(model).__name__} recomputes its positions for texts of more than"
            f" {fixed} tokens (rope_type {_GROWING!r}), which a lowered program cannot;"
            f" the cache has {length}"
        )
        raise InputError(
            "input-invalid", text, hint=f"generation_steps(model, cache_length={fixed})"
        )


@contextmanager
def fixed_positions(model: Any) -> Iterator[None]:
    """Let calls of ``model`` in the block use fixed frequencies, without a check."""
    before = [(module, module.rope_type) for module in _growing(model)]
    try:
        for module, kinds in before:
            if isinstance(kinds, dict):
                module.rope_type = {key: _fixed(kind) for key, kind in kinds.items()}
            else:
                module.rope_type = _fixed(kinds)
        yield
    finally:
        for module, kinds in before:
            module.rope_type = kinds


def _fixed(kind: str) -> str:
    """Return the ``rope_type`` with fixed frequencies for ``kind``."""
    return "default" if _GROWING in kind else kind


def _growing(model: torch.nn.Module) -> list[Any]:
    """Return the modules of rotary embeddings that check the length."""

    def grows(module: Any) -> bool:
        kinds = getattr(module, "rope_type", "")
        listed = kinds.values() if isinstance(kinds, dict) else [kinds]
        return any(_GROWING in str(kind) for kind in listed)

    return [module for module in model.modules() if grows(module)]

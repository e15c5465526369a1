"""A language model as steps over one static cache, which is an argument and a result: no step hides a state.

Each method, ``prefill`` for a piece of the prompt and ``decode`` for one token, takes what the other returned. So they
work in formats whose methods do not share memory, and in two files as well.
"""

from __future__ import annotations

from typing import Any

import torch
from delegraph.errors import InputError


class Step(torch.nn.Module):
    """A call of a causal language model with its cache as tensors.

    ``input_ids``: int64 [B, L], the next L tokens. ``position``: int64 [1], how many tokens were given before.
    ``caches``: the keys and values of each layer in turn, each [B, heads, C, head size], where C is the length of the
    cache. Returns the logits of the last token [B, vocabulary], and the new ``caches``.
    """

    def __init__(self, model: Any, batch: int, cache_length: int) -> None:
        """``model``: a PreTrainedModel with a language model's head. Raises InputError if it has no static cache."""
        super().__init__()
        self.exportable = _exportable(model, batch, cache_length)
        # not by train(), which would change the model of the caller
        self.training = self.exportable.training = model.training

    @property
    def empty_caches(self) -> list[torch.Tensor]:
        """Caches before the first token."""
        return [torch.zeros_like(tensor) for layer in self._layers for tensor in (layer.keys, layer.values)]

    @property
    def _layers(self) -> list[Any]:
        """The layers of the static cache, without those that another layer's cache serves."""
        recipe: Any = self.exportable
        cache = recipe.static_cache if hasattr(recipe, "static_cache") else recipe.cache
        return [layer for layer in cache.layers if layer.max_cache_len]

    def forward(
        self, input_ids: torch.Tensor, position: torch.Tensor, caches: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        layers = self._layers
        kept = [(layer.keys, layer.values, layer.cumulative_length) for layer in layers]
        try:
            # the layers write in place: into copies, so that what the caller passed stays as it is
            for k, layer in enumerate(layers):
                layer.keys, layer.values = caches[2 * k].clone(), caches[2 * k + 1].clone()
                layer.cumulative_length = position[0].clone()
            logits = self.exportable(input_ids=input_ids, cache_position=position)
            return logits[:, -1], [tensor for layer in layers for tensor in (layer.keys, layer.values)]
        finally:
            for layer, (keys, values, length) in zip(layers, kept, strict=True):
                layer.keys, layer.values, layer.cumulative_length = keys, values, length


def _exportable(model: Any, batch: int, cache_length: int) -> torch.nn.Module:
    """transformers' own recipe for a model with a static cache. Raises InputError where it has none for the model."""
    from transformers import GenerationConfig
    from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

    hint = "give example inputs: delegraph.lower(model, example_kwargs={...}) lowers a call without a cache"
    if not model.can_generate():
        text = f"{type(model).__name__} does not generate: what it is called with is not known"
        raise InputError("input-invalid", text, hint=hint)
    given = model.generation_config
    settings = given.to_dict() if given is not None else {}
    make: Any = GenerationConfig
    model.generation_config = make(**{**settings, "use_cache": True, "cache_implementation": "static"})
    try:
        return TorchExportableModuleForDecoderOnlyLM(model, batch, cache_length, model.device).model
    except (AttributeError, AssertionError, ValueError, TypeError) as e:  # what the recipe meets first in other models
        text = f"transformers has no static cache for {type(model).__name__}: {e}"
        raise InputError("input-invalid", text, hint=hint) from e
    finally:
        model.generation_config = given

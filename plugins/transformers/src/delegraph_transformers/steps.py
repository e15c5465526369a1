"""A language model as steps over its caches or states, which are arguments and results: no step hides a state.

Each method, ``prefill`` for a piece of the prompt and ``decode`` for one token, takes what the other returned. So they
work in formats whose methods do not share memory, and in two files as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
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
        return self.call(caches, position, input_ids=input_ids)

    def call(
        self, caches: list[torch.Tensor], position: torch.Tensor, **given: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """As ``forward``; ``given``: the next tokens, as ids or as what the model makes of them first."""
        with restored(self._layers, caches, position):
            logits = self.exportable(**given, cache_position=position)
            return logits[:, -1], [tensor for layer in self._layers for tensor in (layer.keys, layer.values)]


@contextmanager
def restored(layers: list[Any], caches: list[torch.Tensor], position: torch.Tensor) -> Iterator[None]:
    """Let the layers of a static cache hold ``caches``, and afterwards what they held before.

    ``position``: int64 [1], how many tokens the caches have.
    """
    kept = [(layer.keys, layer.values, layer.cumulative_length) for layer in layers]
    try:
        # the layers write in place: into copies, so that what the caller passed stays as it is
        for k, layer in enumerate(layers):
            layer.keys, layer.values = caches[2 * k].clone(), caches[2 * k + 1].clone()
            layer.cumulative_length = position[0].clone()
        yield
    finally:
        for layer, (keys, values, length) in zip(layers, kept, strict=True):
            layer.keys, layer.values, layer.cumulative_length = keys, values, length


class RecurrentStep(torch.nn.Module):
    """A call of a causal language model that remembers all tokens in states of one size, such as Mamba.

    ``input_ids``: int64 [B, L], the next L tokens. ``position`` is what ``Step`` takes, and is not read. ``states``: of
    each layer in turn the last inputs of its convolution [B, channels, kernel size] and what its recurrence keeps, such
    as [B, heads, head size, state size]. Returns the logits of the last token [B, vocabulary], and the new ``states``.
    """

    def __init__(self, model: Any, batch: int) -> None:
        """``model``: one for which ``is_recurrent`` holds. Raises InputError if it has states of another kind."""
        super().__init__()
        from transformers import DynamicCache

        self.model, self.cache = model, DynamicCache(config=model.config)
        self.training = model.training
        with torch.no_grad():  # the layers make their states in the first call
            self._call(torch.zeros(batch, 1, dtype=torch.long, device=model.device))
        if unknown := [layer for layer in self.cache.layers if not hasattr(layer, "recurrent_states")]:
            text = f"{type(model).__name__} keeps its tokens in a {type(unknown[0]).__name__}, beside its states"
            raise InputError("input-invalid", text, hint=NO_RECIPE)

    @property
    def empty_caches(self) -> list[torch.Tensor]:
        """States before the first token."""
        return [torch.zeros_like(kept[0]) for kept in self._kept]

    @property
    def _kept(self) -> list[dict[int, torch.Tensor]]:
        """The dictionaries in which the layers keep their states, each under the key 0."""
        cache: Any = self.cache
        return [kept for layer in cache.layers for kept in (layer.conv_states, layer.recurrent_states)]

    def forward(
        self, input_ids: torch.Tensor, position: torch.Tensor, states: list[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        before = [kept[0] for kept in self._kept]
        try:
            # the layers write in place: into copies, so that what the caller passed stays as it is
            for kept, state in zip(self._kept, states, strict=True):
                kept[0] = state.clone()
            return self._call(input_ids)[:, -1], [kept[0] for kept in self._kept]
        finally:
            for kept, state in zip(self._kept, before, strict=True):
                kept[0] = state

    def _call(self, tokens: torch.Tensor) -> torch.Tensor:
        """The logits of each token [B, L, vocabulary]; the layers go on from the states that they have."""
        model: Any = self.model
        logits: torch.Tensor = model(input_ids=tokens, cache_params=self.cache, use_cache=True).logits
        return logits


def is_recurrent(model: Any) -> bool:
    """Whether ``model`` takes ``cache_params``, transformers' name for states instead of keys and values."""
    return model.can_generate() and "cache_params" in inspect.signature(model.forward).parameters


NO_RECIPE = "give example inputs: delegraph.lower(model, example_kwargs={...}) lowers a call without a cache"


def _exportable(model: Any, batch: int, cache_length: int) -> torch.nn.Module:
    """transformers' own recipe for a model with a static cache. Raises InputError where it has none for the model."""
    from transformers import GenerationConfig
    from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

    if not model.can_generate():
        text = f"{type(model).__name__} does not generate: what it is called with is not known"
        raise InputError("input-invalid", text, hint=NO_RECIPE)
    given = model.generation_config
    settings = given.to_dict() if given is not None else {}
    make: Any = GenerationConfig
    model.generation_config = make(**{**settings, "use_cache": True, "cache_implementation": "static"})
    try:
        return TorchExportableModuleForDecoderOnlyLM(model, batch, cache_length, model.device).model
    except (AttributeError, AssertionError, ValueError, TypeError) as e:  # what the recipe meets first in other models
        text = f"transformers has no static cache for {type(model).__name__}: {e}"
        raise InputError("input-invalid", text, hint=NO_RECIPE) from e
    finally:
        model.generation_config = given

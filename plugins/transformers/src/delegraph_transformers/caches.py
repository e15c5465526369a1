"""A cache of transformers whose tensors are taken out and put in, so that they can be
arguments and results.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from delegraph.errors import InputError

NO_RECIPE = (
    "give example inputs: delegraph.lower(model, example_kwargs={...}) lowers a call"
    " without a cache"
)

_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")
"""Names of the argument for a cache: since transformers 5.24, up to 5.23, and of models
with states.
"""


class ModelCall(torch.nn.Module):
    """A module around a model of the user; errors call it by the name of the model's
    class.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        # training not by train(), which would change the model of the caller
        self.model = model
        self.training = model.training

    def _get_name(self) -> str:
        return type(self.model).__name__


class HeldCache:
    """A static cache for one model.

    ``cache``: what the model is called with, under the name ``argument``. Its layers
    make their tensors in the first call, of the shapes that they are given: what a
    config says of heads and their sizes does not hold for all models.
    """

    def __init__(self, model: Any, length: int) -> None:
        """``length``: how many tokens the cache holds. Raises InputError where
        transformers has no cache for it.
        """
        from transformers import StaticCache

        if not model.can_generate():
            text = (
                f"{type(model).__name__} does not generate: what it is called with is"
                " not known"
            )
            raise InputError("input-invalid", text, hint=NO_RECIPE)
        self.argument = cache_argument(model)
        with refusing(model):
            self.cache: Any = StaticCache(
                config=model.config.get_text_config(decoder=True), max_cache_len=length
            )
        self.cache.layers = [
            _of_full_length(layer, length) for layer in self.cache.layers
        ]
        self._places: list[tuple[dict[Any, Any], Any]] = []
        """Where the tensors are: a dictionary and a key of it for each."""
        self.empty: list[torch.Tensor] = []

    def begin(self, model: Any, call: Callable[[], Any]) -> None:
        """Let the layers make their tensors: ``call`` gives the model a token.

        Tensors that calls leave in attributes of modules belong to the cache as well
        (RecurrentGemma has states there).
        """
        call()
        first = {module: _attributes(module) for module in model.modules()}
        for layer in self._layers_with_rows:
            layer.cumulative_length.zero_()
        call()
        states: list[tuple[dict[Any, Any], Any]] = []
        for layer in self.cache.layers:
            self._places += [(vars(layer), key) for key in ("keys", "values")]
            for kept in (
                getattr(layer, "conv_states", {}),
                getattr(layer, "recurrent_states", {}),
            ):
                states += [(kept, key) for key in kept]
        for module, before in first.items():
            changed = [
                name
                for name, value in _attributes(module).items()
                if before.get(name) is not value
            ]
            states += [(vars(module), name) for name in changed]
        places = self._places + states
        self._places = [
            (where, key)
            for where, key in places
            if isinstance(where.get(key), torch.Tensor)
        ]
        self.empty = [torch.zeros_like(tensor) for tensor in self.tensors]

    @property
    def has_rows(self) -> bool:
        """Whether a layer keeps keys and values, a row for each token."""
        return bool(self._layers_with_rows)

    @property
    def _layers_with_rows(self) -> list[Any]:
        return [
            layer for layer in self.cache.layers if hasattr(layer, "cumulative_length")
        ]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Keys and values of each layer in turn, and then all states."""
        return [where[key] for where, key in self._places]

    @property
    def grows(self) -> list[bool]:
        """Of each tensor, whether it has a row for each token, in its third dimension."""
        return [key in ("keys", "values") for _, key in self._places]

    @contextmanager
    def holding(
        self, tensors: list[torch.Tensor], position: torch.Tensor
    ) -> Iterator[None]:
        """Let the cache have copies of ``tensors``, and afterwards what it had before.

        ``position``: int64 [1], how many tokens they are of.
        """
        places = [
            (where, key, value.clone())
            for (where, key), value in zip(self._places, tensors, strict=True)
        ]
        places += [
            (vars(layer), "cumulative_length", position[0].clone())
            for layer in self._layers_with_rows
        ]
        before = [where.get(key) for where, key, _ in places]
        try:
            # the layers write in place: into copies, so that what the caller passed
            # stays as it is
            for where, key, value in places:
                where[key] = value
            yield
        finally:
            for (where, key, _), previous in zip(places, before, strict=True):
                where[key] = previous


def _attributes(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a module that are neither parameters nor buffers, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }


def cache_argument(model: Any) -> str:
    """Return the name of the argument of ``model`` that takes the cache.

    Raises InputError for a model without such an argument.
    """
    for name in _CACHE_ARGUMENTS:
        if takes(model, name):
            return name
    text = (
        f"{type(model).__name__} takes no cache ({', '.join(_CACHE_ARGUMENTS)}): its"
        " calls keep no tokens"
    )
    raise InputError("input-invalid", text, hint=NO_RECIPE)


def takes(model: Any, name: str) -> bool:
    """Whether a call of ``model`` has an argument of this name."""
    return name in inspect.signature(model.forward).parameters


@contextmanager
def refusing(model: Any) -> Iterator[None]:
    """Turn what a call with a cache meets first in models that have none into an
    InputError.
    """
    try:
        yield
    except (
        AttributeError,
        AssertionError,
        ValueError,
        TypeError,
        RuntimeError,
        IndexError,
        KeyError,
    ) as e:
        text = f"transformers has no static cache for {type(model).__name__}: {e}"
        raise InputError("input-invalid", text, hint=NO_RECIPE) from e


def _of_full_length(layer: Any, length: int) -> Any:
    """A layer that can be exported: one that drops what is beyond its window decides by
    numbers how it does so.

    The model masks what is beyond, so that a layer of full length has the same result.
    """
    from transformers.cache_utils import (
        DummyLayer,
        LinearAttentionAndStaticFullAttentionLayer,
        LinearAttentionCacheLayerMixin,
        StaticLayer,
        StaticSlidingWindowLayer,
    )

    # the model reads another layer's cache in its place
    if isinstance(layer, DummyLayer):
        return StaticLayer(0)
    if not isinstance(layer, StaticSlidingWindowLayer):
        return layer
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        return LinearAttentionAndStaticFullAttentionLayer(
            length, number_of_states=layer.number_of_states
        )
    return StaticLayer(length)

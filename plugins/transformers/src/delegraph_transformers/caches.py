"""A cache of transformers whose tensors can be replaced for a call.

So they can be arguments and results of a program.
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
"""Names of the argument for a cache.

They belong to transformers since 5.24, to older ones, and to models with states.
"""


class ModelCall(torch.nn.Module):
    """A module around the user's model; errors name it by the class of the model."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        # assigned, because train() would also change the model of the caller
        self.training = model.training

    def _get_name(self) -> str:
        return type(self.model).__name__


class HeldCache:
    """A static cache for one model.

    ``cache``: the argument of the model, called ``argument``. Its layers create their
    tensors in the first call, with the shapes of their inputs: for some models, the
    numbers and sizes of heads in the config are wrong.
    """

    def __init__(self, model: Any, length: int) -> None:
        """Create a cache for ``length`` tokens.

        Raises InputError if transformers has no cache for the model.
        """
        from transformers import StaticCache

        if not model.can_generate():
            text = (
                f"{type(model).__name__} does not generate text, so the arguments of"
                " its calls are not known"
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
        """The places of the tensors: a dictionary and a key for each."""
        self.empty: list[torch.Tensor] = []

    def begin(self, model: Any, call: Callable[[], Any]) -> None:
        """Find the tensors of the cache. ``call``: calls the model with one token.

        The first call creates the tensors in the layers of the cache. Some models, such
        as RecurrentGemma, also keep states in attributes of modules: these are the
        tensors that a second call replaces.
        """
        call()
        first = {module: _attributes(module) for module in model.modules()}
        for layer in self._layers_with_rows:
            layer.cumulative_length.zero_()
        call()
        states: list[tuple[dict[Any, Any], Any]] = []
        for layer in self.cache.layers:
            self._places += [(vars(layer), key) for key in ("keys", "values")]
            for attribute in ("conv_states", "recurrent_states"):
                kept = getattr(layer, attribute, {})
                states += [(kept, key) for key in kept]
        for module, before in first.items():
            for name, value in _attributes(module).items():
                if before.get(name) is not value:
                    states.append((vars(module), name))
        found = self._places + states
        self._places = [
            (where, key)
            for where, key in found
            if isinstance(where.get(key), torch.Tensor)
        ]
        self.empty = [torch.zeros_like(tensor) for tensor in self.tensors]

    @property
    def has_rows(self) -> bool:
        """Whether a layer keeps keys and values, with a row for each token."""
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
        """For each tensor, whether its third dimension has a row for each token."""
        return [key in ("keys", "values") for _, key in self._places]

    @contextmanager
    def holding(
        self, tensors: list[torch.Tensor], position: torch.Tensor
    ) -> Iterator[None]:
        """Put copies of ``tensors`` into the cache during the block, then restore it.

        ``position``: int64 [1], the number of tokens in them.
        """
        places = list(self._places)
        # copies, because the layers write in place
        values: list[Any] = [tensor.clone() for tensor in tensors]
        for layer in self._layers_with_rows:
            places.append((vars(layer), "cumulative_length"))
            values.append(position[0].clone())
        before = [where.get(key) for where, key in places]
        try:
            for (where, key), value in zip(places, values, strict=True):
                where[key] = value
            yield
        finally:
            for (where, key), value in zip(places, before, strict=True):
                where[key] = value


def _attributes(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors of a module that are neither parameters nor buffers, by name."""
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
        if has_argument(model, name):
            return name
    text = (
        f"{type(model).__name__} has no argument for a cache"
        f" ({', '.join(_CACHE_ARGUMENTS)}), so generate cannot keep earlier tokens"
    )
    raise InputError("input-invalid", text, hint=NO_RECIPE)


def has_argument(model: Any, name: str) -> bool:
    """Return whether a call of ``model`` has an argument of this name."""
    return name in inspect.signature(model.forward).parameters


@contextmanager
def refusing(model: Any) -> Iterator[None]:
    """Turn errors of a first call with a cache into InputError.

    The block makes this call. Models without a static cache raise many kinds of errors.
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
    """Return a cache layer for all ``length`` tokens instead of a window.

    A layer with a window decides by numbers how to drop older tokens. The model masks
    these, so a layer of full length has the same result.
    """
    from transformers.cache_utils import (
        DummyLayer,
        LinearAttentionAndStaticFullAttentionLayer,
        LinearAttentionCacheLayerMixin,
        StaticLayer,
        StaticSlidingWindowLayer,
    )

    # the model reads the cache of another layer here
    if isinstance(layer, DummyLayer):
        return StaticLayer(0)
    if not isinstance(layer, StaticSlidingWindowLayer):
        return layer
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        return LinearAttentionAndStaticFullAttentionLayer(
            length, number_of_states=layer.number_of_states
        )
    return StaticLayer(length)

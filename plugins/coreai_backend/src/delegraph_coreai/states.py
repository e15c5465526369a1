"""States: buffers that Core AI changes in place, such as a cache of keys.

A blob lists each state with its name, its type, its sizes, and the key of its first
value. Zeros need no key. Each load of a blob begins with the first values.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from coreai.runtime import InferenceFunction, NDArray
from delegraph.backend import NamedDataStore
from delegraph.errors import FormatError
from delegraph_engines import add_by_content, expect_data

from .model import value_of
from .weights import WEIGHT


class State(NamedTuple):
    """A buffer that a delegate keeps from call to call.

    ``name``: its name in the program of Core AI. ``buffer``: its name in the model.
    ``key``: the key of its first value among the named data; None for zeros.
    """

    name: str
    buffer: str
    dtype: str
    sizes: list[int]
    key: str | None = None


def list_states(
    tensors: Mapping[str, torch.Tensor], store: NamedDataStore
) -> list[State]:
    """Return the states with these first values, and add values to ``store``."""
    states = []
    for place, (buffer, tensor) in enumerate(tensors.items()):
        value = tensor.detach().resolve_neg().contiguous()
        is_zero = not value.reshape(-1).view(torch.uint8).any()
        key = None if is_zero else add_by_content(store, WEIGHT, value, alignment=64)
        dtype = str(value.dtype).removeprefix("torch.")
        states.append(State(f"s{place}", buffer, dtype, list(value.shape), key))
    return states


def first_values(
    facts: Mapping[str, Any], named_data: Mapping[str, bytes]
) -> dict[str, NDArray]:
    """Return new values for the states of a blob, by name.

    Raises FormatError for facts or data that do not fit.
    """
    values = {}
    for state in states_of(facts):
        kind = "int16" if state.dtype == "bfloat16" else state.dtype
        size = prod(state.sizes) * np.dtype(kind).itemsize
        if state.key is None:
            array: Any = np.zeros(state.sizes, kind)
        else:
            data = expect_data(named_data, state.key, size)
            array = np.frombuffer(data, kind).reshape(state.sizes)
        values[state.name] = value_of(array, state.dtype)
    return values


def zeros(function: InferenceFunction) -> dict[str, NDArray]:
    """Return zeros for the states of a function, by name.

    Raises FormatError for a state without fixed sizes.
    """
    described = function.desc
    values = {}
    for name in described.state_names:
        wanted = described.state_descriptor(name)
        try:
            array = np.zeros([int(size) for size in wanted.shape], wanted.dtype)
        except TypeError as error:
            text = f"the state {name} has no fixed sizes, but {wanted.shape}: {error}"
            raise FormatError("format-invalid", text) from error
        values[name] = NDArray(array)
    return values


def states_of(facts: Mapping[str, Any]) -> list[State]:
    """Return the states that a blob lists. Raises FormatError for other data."""
    try:
        states = [State(*row) for row in facts.get("states", [])]
        for state in states:
            is_valid = isinstance(state.name, str) and prod(state.sizes) >= 0
            if not is_valid or not isinstance(
                getattr(torch, state.dtype, None), torch.dtype
            ):
                raise ValueError(f"{state!r:.80}")
    except (TypeError, ValueError) as error:
        raise FormatError(
            "format-invalid", f"the blob of CoreAIBackend lists no states: {error}"
        ) from error
    return states

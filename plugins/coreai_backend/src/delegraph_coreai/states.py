"""States: buffers that Core AI changes in place, such as a cache of attention keys.

A blob lists each state with its name, its type, its sizes, and the key of its first
value among the named data. Zeros need no key. Each load of a blob begins with the first
values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from coreai.runtime import InferenceFunction, NDArray
from delegraph.backend import NamedDataStore
from delegraph.errors import FormatError
from delegraph_engines import add_by_content, expect_data

from .model import value_of
from .names import DTYPES
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
    """Return the states with these first values, and add the values to ``store``.

    ``tensors``: name of a buffer -> its first value.
    """
    states = []
    for k, (buffer, tensor) in enumerate(tensors.items()):
        value = tensor.detach().resolve_neg().contiguous()
        is_zero = not value.reshape(-1).view(torch.uint8).any()
        key = None if is_zero else add_by_content(store, WEIGHT, value, alignment=64)
        dtype = str(value.dtype).removeprefix("torch.")
        states.append(State(f"s{k}", buffer, dtype, list(value.shape), key))
    return states


def first_values(
    function: InferenceFunction,
    facts: Mapping[str, Any],
    named_data: Mapping[str, bytes],
) -> dict[str, NDArray]:
    """Return new values for the states of a function, by name.

    Raises FormatError for facts or data that do not fit the function.
    """
    states = states_of(facts)
    _expect_states(function, states)
    values = {}
    for state in states:
        kind = "int16" if state.dtype == "bfloat16" else state.dtype
        size = prod(state.sizes) * np.dtype(kind).itemsize
        if state.key is None:
            array: Any = np.zeros(state.sizes, kind)
        else:
            data = expect_data(named_data, state.key, size)
            array = np.frombuffer(data, kind).reshape(state.sizes)
        values[state.name] = value_of(array, state.dtype)
    return values


def _expect_states(function: InferenceFunction, states: Sequence[State]) -> None:
    """Raise FormatError unless a function has exactly ``states``."""
    described = function.desc
    listed = {state.name: (state.dtype, tuple(state.sizes)) for state in states}
    found = {}
    for name in described.state_names:
        wanted = described.state_descriptor(name)
        found[name] = (wanted.dtype, tuple(wanted.shape))
    if found != listed or len(listed) < len(states):
        text = f"the states of the Core AI model are {found!s:.80}; its blob lists"
        raise FormatError("format-invalid", f"{text} {listed!s:.80}")


def zeros(function: InferenceFunction) -> dict[str, NDArray]:
    """Return zeros for the states of a function, by name.

    Raises FormatError for a state without fixed sizes, or of another type.
    """
    described = function.desc
    values = {}
    for name in described.state_names:
        wanted = described.state_descriptor(name)
        sizes = list(wanted.shape)
        if not _are_sizes(sizes) or wanted.dtype not in DTYPES.values():
            text = f"the state {name} has no fixed sizes, or a type that delegraph"
            text += f" does not pass: {wanted.dtype} {sizes}"
            raise FormatError("format-invalid", text)
        kind = "int16" if wanted.dtype == "bfloat16" else wanted.dtype
        try:
            array = np.zeros(sizes, kind)
        except (MemoryError, ValueError) as error:
            text = f"the state {name} is too large for this host: {error}"
            raise FormatError("format-invalid", text) from error
        values[name] = value_of(array, wanted.dtype)
    return values


def states_of(facts: Mapping[str, Any]) -> list[State]:
    """Return the states that a blob lists. Raises FormatError for other data."""
    try:
        states = [State(*row) for row in facts.get("states", [])]
    except TypeError as error:
        raise FormatError(
            "format-invalid",
            f"the list of states in the blob of CoreAIBackend is damaged: {error}",
        ) from error
    for state in states:
        texts = [state.name, state.buffer, state.dtype]
        if state.key is not None:
            texts.append(state.key)
        are_texts = all(isinstance(text, str) for text in texts)
        is_valid = are_texts and state.dtype in DTYPES.values()
        if not is_valid or not _are_sizes(state.sizes):
            raise FormatError(
                "format-invalid", f"the blob lists an invalid state: {state!r:.120}"
            )
    return states


def _are_sizes(sizes: Any) -> bool:
    """Return whether a value is a list of sizes."""
    return isinstance(sizes, list) and all(
        type(size) is int and size >= 0 for size in sizes
    )

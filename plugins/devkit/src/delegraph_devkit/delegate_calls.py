"""Watching the calls of a backend's delegates on this host: do they write inputs, do
they mistake their layout?
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from delegraph.backend import CompileSpec
from delegraph.runtime import Delegate

from .configured_backend import ConfiguredBackend


@contextmanager
def calling(
    backend: ConfiguredBackend,
    call: Callable[[Any, tuple[Any, ...]], Any],
    function: str = "load",
) -> Iterator[None]:
    """Let ``call(delegate, inputs)`` call each delegate that the runtime's ``function``
    makes meanwhile.
    """
    assert backend.runtime is not None
    load = getattr(backend.runtime, function)

    def watched(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        delegate = load(processed_bytes, compile_specs, named_data)
        return lambda *inputs: call(delegate, inputs)

    with mock.patch.object(backend.runtime, function, watched):
        yield


@contextmanager
def written_inputs(backend: ConfiguredBackend) -> Iterator[list[int]]:
    """A list that gets the number of each input that a call of a delegate changes."""
    written: list[int] = []

    def call(delegate: Delegate, inputs: tuple[Any, ...]) -> Any:
        before = copy.deepcopy(inputs)
        results = delegate(*inputs)
        written.extend(
            k
            for k, pair in enumerate(zip(inputs, before, strict=True))
            if not same_values(*pair)
        )
        return results

    with calling(backend, call):
        yield written


@contextmanager
def inputs_in_c_order(backend: ConfiguredBackend) -> Iterator[None]:
    """Delegates get copies of their inputs in which the last dimension is the fastest
    in memory.
    """

    def call(delegate: Delegate, inputs: tuple[Any, ...]) -> Any:
        return delegate(
            *[
                (
                    i.clone(memory_format=torch.contiguous_format)
                    if torch.is_tensor(i)
                    else i
                )
                for i in inputs
            ]
        )

    with calling(backend, call):
        yield


def same_values(a: Any, b: Any) -> bool:
    """Whether two tensors or numbers hold the same elements; NaN is the same as NaN."""
    return not isinstance(a, torch.Tensor) or bool(
        ((a == b) | ((a != a) & (b != b))).all()
    )

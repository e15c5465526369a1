"""Watch the calls of delegates: they must not write inputs or ignore strides."""

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
def intercepted_calls(
    backend: ConfiguredBackend,
    call: Callable[[Any, tuple[Any, ...]], Any],
    function: str = "load",
) -> Iterator[None]:
    """Replace calls of delegates by ``call(delegate, inputs)``.

    This affects the delegates that ``function`` of the runtime makes in the context.
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
    """Yield a list; each call of a delegate adds the indices of inputs that it changed."""
    written: list[int] = []

    def call(delegate: Delegate, inputs: tuple[Any, ...]) -> Any:
        before = copy.deepcopy(inputs)
        results = delegate(*inputs)
        for k, (now, then) in enumerate(zip(inputs, before, strict=True)):
            if not same_values(now, then):
                written.append(k)
        return results

    with intercepted_calls(backend, call):
        yield written


@contextmanager
def inputs_in_c_order(backend: ConfiguredBackend) -> Iterator[None]:
    """Pass inputs to delegates as copies in C order."""

    def call(delegate: Delegate, inputs: tuple[Any, ...]) -> Any:
        copies = [
            value.clone(memory_format=torch.contiguous_format)
            if torch.is_tensor(value)
            else value
            for value in inputs
        ]
        return delegate(*copies)

    with intercepted_calls(backend, call):
        yield


def same_values(a: Any, b: Any) -> bool:
    """Return whether two tensors have the same elements; NaN equals NaN."""
    if not isinstance(a, torch.Tensor):
        return True
    both_nan = (a != a) & (b != b)
    return bool(((a == b) | both_nan).all())

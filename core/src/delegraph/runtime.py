"""What executes a backend's blobs on this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from .backend import CompileSpec

if TYPE_CHECKING:
    import torch


class Delegate(Protocol):
    """A loaded blob, called with its inputs in the recorded calling convention; returns a tuple of its outputs."""

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[Any, ...]: ...


class BackendRuntime:
    """Loads blobs of one backend; declared with a ``RuntimeSpec``."""

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Make a blob callable. Raises FormatError if it is damaged."""
        raise NotImplementedError

"""What executes a backend's blobs on this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from .backend import CompileSpec, check_called_on_class

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule, Node

    from .delegates.delegates import DelegateInfo

__all__ = [
    "BackendRuntime",
    "Delegate",
    "Inside",
    "ObservedDelegate",
    "Observer",
]

Inside = Mapping[Any, "Sequence[torch.Tensor]"]
"""Delegate debug identifier -> values that were computed there."""


class Delegate(Protocol):
    """A loaded blob, called with its inputs in the recorded calling convention; returns a tuple of its outputs."""

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[Any, ...]: ...


class ObservedDelegate(Protocol):
    """As a ``Delegate``; returns a tuple of its outputs, and what was computed on the way to them.

    That is: delegate debug identifier, a key of the ``debug_handle_map`` that the backend returned -> the values that
    the operator of this identifier made. They may be in another memory layout than in the program (NHWC), and need not
    be there for all.
    """

    def __call__(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[tuple[Any, ...], Mapping[Any, Sequence[torch.Tensor]]]: ...


class BackendRuntime:
    """Loads blobs of one backend; declared with a ``RuntimeSpec``. Never instantiated."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("load", "observe"):
            check_called_on_class(cls, name, ("processed_bytes", "compile_specs", "named_data"))

    thread_safe: ClassVar[bool] = False
    """Whether delegates may be loaded and called in several threads at once, each call returning tensors of its own.

    Otherwise all loads and calls of this runtime are made one after the other, and results are copied before the next
    call, which may write over them.
    """
    device_half: ClassVar[Path | None] = None
    """What runs the same blobs in ExecuTorch's runtime: a C++ file that registers the backend there, or a library built
    from one. Program files with delegates of the backend then run in that runtime on this host."""

    @staticmethod
    def is_available() -> bool:
        """Whether delegates can be run now: False, or NoRuntime that says why, for example without a device.

        ``delegraph backends --available`` asks; nothing else does.
        """
        return True

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Make a blob callable. Raises FormatError if it is damaged.

        Buffers that the delegate keeps (BUFFER_MUTATION outputs of the program that was compiled) start from their
        values in that program with every load; the loaded delegate keeps them from call to call and returns only the
        other outputs.
        """
        raise NotImplementedError

    @staticmethod
    def observe(
        processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]
    ) -> ObservedDelegate:
        """As ``load``, for ``verify(per_operator=True)``: what is returned also tells values inside of the delegate.

        Optional: without it the values at the delegate's border are compared.
        """
        raise NotImplementedError

    @classmethod
    def observes(cls) -> bool:
        """Whether ``observe`` is there."""
        return cls.observe is not BackendRuntime.observe


class Observer(Protocol):
    """Sees the values of one call of a lowered program; ``LoweredProgram.observe`` takes one.

    It is told of calls in the order in which they are made, of a delegate's inside before its call. Values belong to
    the program: an observer reads them, and copies what it keeps.
    """

    def begin(self, values: Mapping[Node, Any]) -> None:
        """The run begins with these inputs, parameters and buffers, by placeholder."""

    def see(self, node: Node, value: Any) -> None:
        """``node``, a call of the host's graph or of a delegate, has computed ``value``."""

    def enter(self, owner: Node, module: GraphModule, inputs: Sequence[Any]) -> None:
        """A branch or loop body begins with ``inputs``; what is seen before ``leave`` is of ``module``, its graph.

        ``owner`` is the node that fetches it. Of bodies that torch runs on many elements at a time nothing is seen.
        """

    def leave(self) -> None:
        """The branch or body has ended."""

    def inside(self, delegate: DelegateInfo, values: Inside) -> None:
        """What the runtime of a delegate told of its inside; only of runtimes that have ``observe``."""

    def end(self) -> None:
        """All values have been seen; what a call writes is written after this."""

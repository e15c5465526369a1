"""Runtimes: classes that execute a backend's blobs on this host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

from .backend import CompileSpec, check_called_on_class

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule, Node

    from .delegates.delegates import DelegateInfo

__all__ = [
    "BackendRuntime",
    "BlobHeader",
    "Compatibility",
    "Delegate",
    "Inside",
    "ObservedDelegate",
    "Observer",
]

Verdict = Literal["runs", "rebuild", "cannot"]
"""``rebuild``: it runs, and compiling it anew would be better, or will be needed soon."""
BEGINNING = 4096
"""Bytes of a blob that its header has."""

Inside = Mapping[Any, "Sequence[torch.Tensor]"]
"""Delegate debug identifier -> values that were computed for it."""


@dataclass(frozen=True)
class BlobHeader:
    """What is known of a blob before it is loaded. All of it may come from a file, and nothing of it has to be true.

    ``producer`` is what made the blob, its distribution and version (``acme-npu 1.0``), ``fingerprint`` what
    ``BackendDetails.fingerprint`` said there; both are "" where the file does not say. ``size`` is in bytes,
    ``beginning`` the first ``BEGINNING`` of them.
    """

    backend_id: str
    size: int
    beginning: bytes
    producer: str = ""
    fingerprint: str = ""

    @property
    def distribution(self) -> str:
        """The producer without its version."""
        return self.producer.partition(" ")[0]

    @property
    def version(self) -> str:
        """The producer's version."""
        return self.producer.partition(" ")[2]


@dataclass(frozen=True)
class Compatibility:
    """Whether a stored blob still runs, and why, in a sentence for the user."""

    verdict: Verdict
    reason: str

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict) or not isinstance(self.reason, str):
            raise ValueError(f"a verdict is one of {get_args(Verdict)}, with a reason; not {self!r}")


class Delegate(Protocol):
    """A loaded blob: called with its inputs in the recorded calling convention, it returns a tuple of outputs."""

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[Any, ...]: ...


class ObservedDelegate(Protocol):
    """As a ``Delegate``, but it returns a tuple of its outputs, and the values that were computed on the way to them.

    These are a mapping from delegate debug identifiers, keys of the ``debug_handle_map`` that the backend returned, to
    the values that the operator of that identifier computed. They may have another memory layout than in the program
    (NHWC), and some may be missing.
    """

    def __call__(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[tuple[Any, ...], Mapping[Any, Sequence[torch.Tensor]]]: ...


class BackendRuntime:
    """Loads the blobs of one backend; declared with a ``RuntimeSpec``. It is never instantiated."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("load", "observe"):
            check_called_on_class(cls, name, ("processed_bytes", "compile_specs", "named_data"))

    thread_safe: ClassVar[bool] = False
    """Whether delegates may be loaded and called in several threads at once, each call returning tensors of its own.

    If not, all loads and calls of this runtime are made one after the other, and results are copied before the next
    call, which may overwrite them.
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
    def compatible(
        header: BlobHeader, compile_specs: Sequence[CompileSpec], device: str | None = None
    ) -> Compatibility | None:
        """Whether the blob of ``header`` runs here, on ``device`` if one is named; None if that cannot be told.

        Optional. It is asked before a blob of a file is loaded, which happens only if the verdict is not ``cannot``, so
        that versions that do not fit end in a sentence and not in a crash. It raises nothing, whatever the header says.
        """
        return None

    @staticmethod
    def load(processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]) -> Delegate:
        """Make a blob callable. Raises FormatError if it is damaged.

        Buffers that the delegate keeps (BUFFER_MUTATION outputs of the program that was compiled) start with their
        values in that program in every load. The loaded delegate keeps them from call to call, and returns only the
        other outputs.
        """
        raise NotImplementedError

    @staticmethod
    def observe(
        processed_bytes: bytes, compile_specs: Sequence[CompileSpec], named_data: Mapping[str, bytes]
    ) -> ObservedDelegate:
        """As ``load``, but the delegate also tells values inside of it, for ``verify(per_operator=True)``.

        Optional: without it, the values at the delegate's border are compared.
        """
        raise NotImplementedError

    @classmethod
    def observes(cls) -> bool:
        """Whether the runtime defines ``observe``."""
        return cls.observe is not BackendRuntime.observe


class Observer(Protocol):
    """Sees the values of one call of a lowered program; ``LoweredProgram.observe`` takes one.

    It is told of calls in the order in which they are made, and of a delegate's inside before the delegate's call.
    Values belong to the program: an observer may read them, and has to copy what it keeps.
    """

    def begin(self, values: Mapping[Node, Any]) -> None:
        """The run begins with these inputs, parameters and buffers, by placeholder."""

    def see(self, node: Node, value: Any) -> None:
        """``node``, a call of the host's graph or of a delegate, has computed ``value``."""

    def enter(self, owner: Node, module: GraphModule, inputs: Sequence[Any]) -> None:
        """A branch or loop body begins with ``inputs``; what is seen before ``leave`` is of its graph, ``module``.

        ``owner`` is the node that fetches the graph. Bodies that torch runs on many elements at a time are not seen.
        """

    def leave(self) -> None:
        """The branch or body has ended."""

    def inside(self, delegate: DelegateInfo, values: Inside) -> None:
        """The values that the runtime of a delegate told of its inside; only for runtimes with ``observe``."""

    def end(self) -> None:
        """All values have been seen; inputs and buffers are written after this."""

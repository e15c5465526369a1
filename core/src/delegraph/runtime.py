"""Runtimes: classes that execute the blobs of a backend on this host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

from .backend import CompileSpec, check_called_on_class

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule, Node

    from .delegates.find_delegates import DelegateInfo

__all__ = [
    "BackendRuntime",
    "BlobHeader",
    "Border",
    "Compatibility",
    "Delegate",
    "Inside",
    "ObservedDelegate",
    "Observer",
    "ProfiledDelegate",
    "Spent",
    "Timer",
    "fused",
]

Verdict = Literal["runs", "rebuild", "cannot"]
"""``rebuild``: the blob runs, but compiling it again would be better, or will be needed
soon.
"""
BEGINNING = 4096
"""The number of bytes at the beginning of a blob that its ``BlobHeader`` has."""

Inside = Mapping[Any, "Sequence[torch.Tensor]"]
"""Delegate debug identifier -> the values that its operator computed."""


@dataclass(frozen=True)
class BlobHeader:
    """The facts about a blob that are known before the blob is loaded. These facts may
    come from a file that is not trusted.

    ``producer``: distribution and version of the backend that compiled it (``acme-npu
    1.0``). ``fingerprint``: the result of ``BackendDetails.fingerprint`` when it
    compiled the blob. Both are "" if not known. ``size``: number of bytes.
    ``beginning``: the first BEGINNING bytes.
    """

    backend_id: str
    size: int
    beginning: bytes
    producer: str = ""
    fingerprint: str = ""

    @property
    def distribution(self) -> str:
        """Return the distribution in ``producer``."""
        return self.producer.partition(" ")[0]

    @property
    def version(self) -> str:
        """Return the version in ``producer``; "" if it has none."""
        return self.producer.partition(" ")[2]


@dataclass(frozen=True)
class Compatibility:
    """Whether a stored blob still runs, and why, in a sentence for the user."""

    verdict: Verdict
    reason: str

    def __post_init__(self) -> None:
        if self.verdict not in get_args(Verdict) or not isinstance(self.reason, str):
            raise ValueError(
                f"a verdict is one of {get_args(Verdict)}, with a reason; not {self!r}"
            )


class Delegate(Protocol):
    """A loaded blob. A call takes the inputs that the delegate was recorded with, and
    returns a tuple of outputs.
    """

    def __call__(self, *args: torch.Tensor | int | float | bool) -> tuple[Any, ...]: ...


class ObservedDelegate(Protocol):
    """A loaded blob that also returns values inside of the delegate.

    A call returns (tuple of outputs, values). The values are by delegate debug
    identifier, a key of the backend's ``debug_handle_map``: for each, the results of
    its operator. They may have another memory layout than in the program (NHWC), and
    some may be missing.
    """

    def __call__(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[tuple[Any, ...], Mapping[Any, Sequence[torch.Tensor]]]: ...


@dataclass(frozen=True)
class Border:
    """A key of ``Spent``: the time for handing over, such as copying, the input or
    output at ``place``.

    The time counts for the operator that computes the output, or for the only operator
    that reads the input.
    """

    side: Literal["input", "output"]
    place: int

    def __str__(self) -> str:
        return f"{self.side} {self.place}"


Spent = Mapping[Any, Mapping[str, Any]]
"""Delegate debug identifier -> amounts of its operator: "seconds", or "cycles", and
maybe "bytes" of memory. These are numbers.

Optionally, "intervals" are the pairs (start, end) of each kernel of the operator that
ran, in seconds of ``time.perf_counter()``. Traces then show when the kernels ran.

A key may also be a ``Border``, for handing over an input or an output. A tuple of
identifiers is a key for operators that the engine fused when it loaded the blob.
"""


def fused(key: Any) -> tuple[Any, ...]:
    """Return the debug identifiers in ``key``, a key of ``Spent``.

    A tuple has the identifiers of operators that the engine fused. None stands for time
    of no operator, so the result is (). Any other key is itself the only identifier.
    """
    if isinstance(key, tuple):
        return key
    return () if key is None else (key,)


class ProfiledDelegate(Protocol):
    """A ``Delegate`` that also returns the times of its operators.

    A call returns (tuple of outputs, times of this call). The keys of the times are
    delegate debug identifiers, as for an ``ObservedDelegate``, or tuples of them. Time
    that belongs to no identifier, such as moving data, has the key None. Time that is
    left out counts as not attributed. If reading times takes time, the call may return
    a function that returns the mapping.
    """

    def __call__(
        self, *args: torch.Tensor | int | float | bool
    ) -> tuple[tuple[Any, ...], Spent | Callable[[], Spent]]: ...


class BackendRuntime:
    """Loads the blobs of one backend; declared with a ``RuntimeSpec``. The class is
    never instantiated.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check a runtime when it is defined.

        Raises ContractViolation for a ``load`` or ``observe`` with other parameters.
        """
        super().__init_subclass__(**kwargs)
        for name in ("load", "observe"):
            check_called_on_class(
                cls, name, ("processed_bytes", "compile_specs", "named_data")
            )

    thread_safe: ClassVar[bool] = False
    """Whether delegates may be loaded and called in several threads at once, and each
    call returns new tensors.

    If False, only one thread at a time loads or calls delegates of this runtime, and
    results are copied before the next call, which may overwrite them.
    """
    any_strides: ClassVar[bool] = False
    """Whether delegates take inputs of any strides. If False, delegraph first gives the
    inputs the strides that the backend saw.
    """
    device_half: ClassVar[Path | None] = None
    """The backend's implementation for ExecuTorch's runtime: a C++ file that registers
    it, or a library built from one.

    With such a file, program files that contain delegates of this backend run in
    ExecuTorch's runtime on this host. None if the backend has none.
    """

    @staticmethod
    def is_available() -> bool:
        """Return whether delegates can be run now.

        An example for False is a device that is not connected. Instead of returning
        False, this method may raise NoRuntime with the reason. Only ``delegraph
        backends --available`` and ``delegraph doctor`` call this.
        """
        return True

    @staticmethod
    def compatible(
        header: BlobHeader,
        compile_specs: Sequence[CompileSpec],
        device: str | None = None,
    ) -> Compatibility | None:
        """Return whether this runtime can run the blob of ``header``, or None if not
        known.

        Optional. Called before a blob of a file is loaded. If the verdict is "cannot",
        the blob is not loaded: a wrong version then leads to an error with a reason,
        not to a crash. ``device``: the device to run on, if the caller names one.

        For compile specs or a header that cannot be read, the method may raise
        OptionError or FormatError. That counts as "cannot", with the error's message as
        the reason. It must not raise other errors, not even for a damaged header.
        """
        return None

    @staticmethod
    def load(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> Delegate:
        """Load a blob, so that it can be called. Raises FormatError for a damaged blob.

        ``named_data``: key -> bytes that the backend stored next to the blob. If the
        compiled program writes buffers (BUFFER_MUTATION outputs), the delegate keeps
        these buffers from call to call and returns only the other outputs. Each load
        starts with the buffers' values in the compiled program.
        """
        raise NotImplementedError

    @staticmethod
    def observe(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> ObservedDelegate:
        """Load a blob as ``load`` does, so that calls also return values inside of the
        delegate, for ``verify(per_operator=True)``.

        Optional: without this method, only the outputs of the delegate are compared.
        """
        raise NotImplementedError

    @classmethod
    def observes(cls) -> bool:
        """Return whether the runtime defines ``observe``."""
        return cls.observe is not BackendRuntime.observe

    @staticmethod
    def profile(
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec],
        named_data: Mapping[str, bytes],
    ) -> ProfiledDelegate:
        """Load a blob as ``load`` does, so that calls also return the times of the
        delegate's operators.

        Optional: without this method, ``LoweredProgram.profile`` times calls of the
        delegate as a whole.
        """
        raise NotImplementedError


class Observer(Protocol):
    """Receives the values of one call of a lowered program; see
    ``LoweredProgram.observe``.

    The methods are called in the order of execution; for a delegate, ``inside`` comes
    before ``see``. Values belong to the program, which may overwrite them: an observer
    must not write them, and must copy those that it keeps.
    """

    def begin(self, values: Mapping[Node, Any]) -> None:
        """The call begins. ``values``: placeholder -> input, parameter or buffer."""

    def see(self, node: Node, value: Any) -> None:
        """``node``, a call on the host or of a delegate, has computed ``value``."""

    def enter(self, owner: Node, module: GraphModule, inputs: Sequence[Any]) -> None:
        """``module``, a branch or the body of a loop, begins to run on ``inputs``.

        ``leave`` is called when it ends. ``owner``: the ``get_attr`` node that fetches
        ``module``. Not called for bodies that torch runs vectorized.
        """

    def leave(self) -> None:
        """The branch or loop body that was entered last has ended."""

    def inside(self, delegate: DelegateInfo, values: Inside) -> None:
        """A call of a delegate has computed ``values`` inside of the delegate. Only for
        runtimes with ``observe``.
        """

    def end(self) -> None:
        """The computation has ended. Written inputs and buffers get their new values
        after this.
        """


class Timer(Observer, Protocol):
    """An Observer that gets times: delegates are loaded by ``profile`` of their
    runtimes, and ``inside`` is not called.
    """

    def spent(
        self, delegate: DelegateInfo, seconds: float, read: Callable[[], Spent]
    ) -> None:
        """A call of a delegate took ``seconds`` in its runtime. After this, ``see`` gets
        the call.

        ``read()`` returns the times of the delegate's operators. Calling it may take a
        while.
        """

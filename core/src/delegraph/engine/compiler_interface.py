"""The interfaces of a compiler. ``delegraph.compiler`` has the public names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol

from torch.export import ExportedProgram

from ..backend import CompileSpec, PreprocessResult
from ..discovery.records import InstalledBackend
from ..discovery.registry import Registry
from ..errors import DelegraphError, Unsupported
from ..partitioner import Partitioner, PartitionResult
from .failures_to_refusals import HINT, text_of


class Request(NamedTuple):
    """A partition to compile.

    ``backend``: the backend that compiles it. ``compile_specs``: the settings for it.
    ``method`` and ``tag``: the method, and the tag of the partition in that method.
    ``extract`` returns the partition's program. Each call returns a fresh one, because
    ``preprocess`` may rewrite its program.
    """

    backend: InstalledBackend
    compile_specs: tuple[CompileSpec, ...]
    method: str
    tag: str
    extract: Callable[[], ExportedProgram]

    @property
    def place(self) -> str:
        """Return a text that names the partition and its method."""
        return f"partition {self.tag} of method {self.method}"


@dataclass(frozen=True)
class Refused:
    """A partition that is not compiled, because of ``error``.

    ``error`` is Unsupported if the compiler refused the partition, and another error if
    the compiler failed.
    """

    error: DelegraphError

    @property
    def has_failed(self) -> bool:
        """Return whether the compiler raised an error of its own."""
        return not isinstance(self.error, Unsupported)

    @property
    def reason(self) -> str:
        """Return the reason in words: name and text of an exception, or the text of
        Unsupported.
        """
        return text_of(self.error) if self.has_failed else self.error.message

    @property
    def hint(self) -> str:
        """Return advice for the user, or "". After a failure of the compiler, it
        tells how to see the traceback.
        """
        return HINT if self.has_failed else self.error.hint or ""


class Compiled(NamedTuple):
    """The answer to a ``Request``.

    ``origin``: the origin of the result, for the report: "compiled", "from the cache",
    or "" for a compiler that keeps no results. ``seconds``: the time of the call that
    succeeded, divided by the number of its partitions; 0 if the request is refused.
    ``equal_to``: the position of an equal request that has the same result; None if
    there is none.
    """

    result: PreprocessResult | Refused
    origin: str = ""
    seconds: float = 0.0
    equal_to: int | None = None


class Session(Protocol):
    """Does the work of a ``Compiler`` during one lowering, which is its ``with`` block.

    At the end of the block, the lowering copies ``notes`` into the report.
    """

    @property
    def notes(self) -> Sequence[str]:
        """Return the notes so far, which are lines for the report."""

    def __enter__(self) -> Session:
        """Begin the session. Returns it."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the session, for example its worker processes."""

    def partition(
        self, partitioner: Partitioner, program: ExportedProgram
    ) -> PartitionResult:
        """Call ``partitioner`` with ``program``, and return its result.

        The call must be in a block of ``registry.attributing``, so that errors name the
        plugin. Instead of calling, a session may return the answer for an equal
        program. It then has to set the tags and the metadata of the program's nodes as
        the partitioner would.
        """

    def compile(self, requests: Sequence[Request]) -> Sequence[Compiled]:
        """Compile partitions. Returns an answer for each request, in the same order."""


class Compiler(Protocol):
    """Compiles the partitions of lowerings, for ``delegraph.lower(compiler=...)``.

    Several threads may call one compiler at once.
    """

    def session(self, registry: Registry, backends: Sequence[str]) -> Session:
        """Return a new session.

        ``backends``: names of the backends of the lowering, if known. ``registry``
        knows all backends.
        """

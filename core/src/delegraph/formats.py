"""Program formats: classes that save a lowered program as a file, read such a file, and show what is in it.

A plugin derives a class from ``ProgramFormat`` (or from ``DelegateFormat``, if a file is the blob of one delegate) and
declares it with a ``FormatSpec``, whose suffix chooses it. Importing this module imports neither torch nor numpy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from .backend import Blob, CompileSpec, NamedDataStoreOutput
from .errors import InputError, OptionError
from .io.atomic_write import write_whole
from .io.blob import join
from .runtime import BEGINNING, BlobHeader
from .summary import ConstantSummary, DelegateSummary, MethodSummary, Summary, TensorSummary

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram

    from .runtime import Delegate

__all__ = [
    "Blob",
    "ConstantSummary",
    "DelegateContents",
    "DelegateFormat",
    "DelegateSummary",
    "Inspection",
    "LoadDelegate",
    "MethodSummary",
    "ProgramContents",
    "ProgramFormat",
    "Quantization",
    "QuantizationParameters",
    "StoredBlob",
    "Summary",
    "TensorSummary",
    "Verdict",
    "defines",
    "join",
    "write_files",
    "write_whole",
]


# --- what a format is given -------------------------------------------------------------------------------------------


class DelegateContents(Protocol):
    """One delegate of a program: where it is called, and everything with which its runtime is loaded."""

    @property
    def method(self) -> str:
        """The method that calls it."""

    @property
    def name(self) -> str:
        """The attribute of the method's graph module that holds it; a ``get_attr`` node of the graph fetches it."""

    @property
    def backend_id(self) -> str:
        """The name of the backend's class."""

    @property
    def producer(self) -> str:
        """The distribution that provides the backend, and its version, such as ``acme-npu 1.0``.

        "" if that is not known.
        """

    @property
    def blob(self) -> bytes | Blob:
        """What the backend compiled. A large blob is not joined: stream it with ``write_to``, or ``join`` it."""

    @property
    def compile_specs(self) -> Sequence[CompileSpec]:
        """The settings that the backend was given and that its runtime gets, in order, duplicates included."""

    @property
    def named_data(self) -> NamedDataStoreOutput | None:
        """The data that this delegate reads by key; None if there is none."""

    @property
    def inputs(self) -> Sequence[Any]:
        """What the delegate is called with, in order.

        Each has a ``name``, a ``dtype`` and a ``shape`` (None for a number).
        """

    @property
    def outputs(self) -> Sequence[Any]:
        """What it returns, described as ``inputs`` are."""

    @property
    def fingerprint(self) -> str:
        """What the backend says that the blob depends on besides the program; "" if it does not say."""

    @property
    def debug_handle_map(self) -> Mapping[Any, tuple[int, ...]]:
        """Delegate debug identifier -> debug handles of the operators that it stands for."""


class ProgramContents(Protocol):
    """A lowered program as a format gets it.

    ``delegraph.lower`` and ``EdgeProgramManager`` both return such objects.
    """

    @property
    def methods(self) -> Collection[str]:
        """Names of the methods, in the order in which they were given."""

    @property
    def constant_methods(self) -> Mapping[str, Any]:
        """Name -> value of the methods that only return a constant."""

    @property
    def delegates(self) -> Sequence[DelegateContents]:
        """The delegates of all methods; those in branches and loop bodies have dotted names."""

    @property
    def named_data(self) -> NamedDataStoreOutput:
        """The named data of all delegates of all methods, equal contents once, as one file holds it."""

    @property
    def host_operators(self) -> int:
        """Number of the operators that no delegate computes."""

    def exported_program(self, name: str = "forward") -> ExportedProgram:
        """The program of a method: functional, with debug handles and with calls of ``exported_program.CALL_DELEGATE``.

        Calls that the host makes are those of the user's model, such as ``aten.layer_norm``. Its ``call_spec`` says how
        callers pass arguments and get results.
        """

    def core_program(self, name: str = "forward", keep: Collection[Any] = ()) -> ExportedProgram:
        """The same in core ATen, for runtimes with kernels only for its operators and those to ``keep`` whole.

        An ``EdgeProgramManager`` returns its program as it is: in core ATen as far as its user wants that.
        """


class LoadDelegate(Protocol):
    """Hands the contents of a delegate to the runtime of its backend, which loads it in the first call.

    The delegate that is returned may be called from any thread. A call raises NoRuntime if this host has no runtime for
    the backend. ``header`` is what the file says of who made the blob, if it does.
    """

    def __call__(
        self,
        backend_id: str,
        processed_bytes: bytes,
        compile_specs: Sequence[CompileSpec] = (),
        named_data: Mapping[str, bytes] | None = None,
        header: BlobHeader | None = None,
    ) -> Delegate: ...


class StoredBlob(NamedTuple):
    """A delegate in a file, as far as its runtime has to know it to say whether it runs."""

    method: str
    header: BlobHeader
    compile_specs: Sequence[CompileSpec]


# --- what a format gives ----------------------------------------------------------------------------------------------


class Inspection(Protocol):
    """What is in a file: ``str()`` for people, ``to_json()`` for programs."""

    def to_json(self) -> dict[str, Any]: ...


class Verdict(NamedTuple):
    """What another tool says about a file; ``accepted`` is None if that tool is not installed."""

    judge: str
    accepted: bool | None
    detail: str


class QuantizationParameters(NamedTuple):
    """How integers stand for real numbers: ``(integer - zero_point) * scale``."""

    dtype: str
    """``int8``, ``int16`` and the like."""
    scale: float
    zero_point: int

    def __str__(self) -> str:
        return f"{self.dtype}, scale {self.scale:.9g}, zero point {self.zero_point}"


class Quantization(NamedTuple):
    """A program's inputs and outputs by name, in order: their parameters, or None for those that are not quantized."""

    inputs: Mapping[str, QuantizationParameters | None]
    outputs: Mapping[str, QuantizationParameters | None]


class ProgramFormat:
    """One kind of file. A subclass defines the methods that the format can do; they are called on the class.

    Using a method that it leaves out raises an error that names the format. Damaged files raise FormatError. An
    exception that is no DelegraphError becomes PluginFailed, which names the plugin.
    """

    @staticmethod
    def why_not(backend_ids: Collection[str]) -> str | None:
        """Why no program that is lowered for these backends can be written; None if it can. Asked before lowering."""
        return None

    @staticmethod
    def serialize(program: ProgramContents, options: Mapping[str, Any]) -> bytes | Blob:
        """The content of the file. Raises OptionError for options of ``save`` that the format does not know."""
        raise NotImplementedError

    @classmethod
    def files(cls, program: ProgramContents, options: Mapping[str, Any]) -> Mapping[str, bytes | Blob]:
        """The contents of all files of a program by name: ``""`` is the file itself, others are written beside it.

        ``weights.ptd`` is written as ``model.weights.ptd`` beside ``model.pte``. Only a format of several files defines
        this; its ``serialize`` refuses a program that does not fit into one file.
        """
        return {"": cls.serialize(program, options)}

    @classmethod
    def write(cls, program: ProgramContents, path: Path, options: Mapping[str, Any]) -> None:
        """Write ``path``, and the files beside it, each completely or not at all.

        Only a format that does more than writing ``files`` defines this; it writes each file with ``write_whole``.
        """
        write_files(cls.files(program, options), path)

    @staticmethod
    def read(path: Path, load_delegate: LoadDelegate) -> Mapping[str, Callable[..., Any]]:
        """The methods of the program in a file, by name, each to be called as the method that was saved.

        A format whose files say how much memory or how many iterations they need also takes ``max_memory: int``, in
        bytes, and ``max_iterations: int``, with defaults; ``delegraph.load`` and ``delegraph run`` pass the user's
        limits on.
        """
        raise NotImplementedError

    @staticmethod
    def quantization(path: Path) -> Quantization:
        """How the integers that the program in a file takes and returns stand for real numbers."""
        raise NotImplementedError

    @staticmethod
    def named_data(path: Path) -> Mapping[str, bytes | memoryview]:
        """The data that a file holds by key (``ProgramContents.named_data``), for ``LoadedProgram.named_data``."""
        raise NotImplementedError

    @staticmethod
    def blobs(path: Path) -> Sequence[StoredBlob]:
        """The delegates in a file, of which no blob is read beyond its beginning; for ``inspect --can-run``."""
        raise NotImplementedError

    @staticmethod
    def load_in(runtime: str, path: Path) -> Mapping[str, Callable[..., Any]]:
        """The methods of the program in a file, executed by ``runtime``, one of the ``runtimes`` of the ``FormatSpec``.

        Raises NoRuntime, with what to install, if the runtime is not there.
        """
        raise NotImplementedError

    @staticmethod
    def inspect(path: Path) -> Inspection:
        """What is in a file. ``delegraph inspect`` needs no torch if this does not."""
        raise NotImplementedError

    @staticmethod
    def summarize(path: Path) -> Summary:
        """What is in a file on one screen, for ``delegraph inspect --summary`` and as ``summary`` of its JSON."""
        raise NotImplementedError

    @staticmethod
    def sample(path: Path, seed: int) -> list[np.ndarray[Any, Any]]:
        """Random inputs that fit the file: standard normal for floats.

        A format of several methods also takes ``method: str | None = None``, the ``--method`` of ``delegraph run``.
        """
        raise NotImplementedError

    @staticmethod
    def run(path: Path, inputs: Sequence[np.ndarray[Any, Any]]) -> list[tuple[str, np.ndarray[Any, Any]]]:
        """Execute the file with one array for each input; returns name and value of each output. Raises InputError.

        Without this method, ``delegraph run`` reads the file and calls its method with tensors. A format that knows
        loops also takes ``max_iterations: int``, with a default: ``delegraph run`` passes on its ``--max-iterations``,
        because a loop in a file need not end.
        """
        raise NotImplementedError

    @staticmethod
    def page(path: Path) -> str:
        """An HTML page that shows the file, for ``delegraph inspect --html``."""
        raise NotImplementedError

    @staticmethod
    def node_of(identifier: Any) -> tuple[str, str]:
        """What Model Explorer calls an operator of the file, by its delegate debug identifier; for node data.

        It is the name of the graph and of the node in it, as the adapter has them that lets Model Explorer open such
        files.
        """
        raise NotImplementedError

    @staticmethod
    def verify(path: Path) -> Sequence[Verdict]:
        """What other installed tools say about the file, for ``delegraph inspect --verify``."""
        raise NotImplementedError


def write_files(files: Mapping[str, bytes | Blob], path: Path) -> None:
    """Write what ``ProgramFormat.files`` returned: the file itself last, so that it never exists without the others."""
    for name in [*(n for n in files if n), ""]:
        write_whole(path.with_name(f"{path.stem}.{name}") if name else path, files[name])


def defines(kind: type[ProgramFormat], ability: str) -> bool:
    """Whether a format defines ``ability``, a method that ``ProgramFormat`` leaves to its subclasses."""
    ours, theirs = (inspect.getattr_static(k, ability) for k in (ProgramFormat, kind))
    return ours is not theirs


class DelegateFormat(ProgramFormat):
    """Files that are the blob of one delegate: a program can be saved as one if one delegate computes all of it.

    A subclass sets ``backend_id``, and defines ``inspect`` and the like. The runtime gets the blob, but no compile
    specs, so everything that it has to know is in the blob. A subclass that overrides ``serialize`` to put named data
    into the file says ``holds_named_data = True``; without that, a delegate with named data is refused.
    """

    backend_id: ClassVar[str]
    holds_named_data: ClassVar[bool] = False

    @classmethod
    def why_not(cls, backend_ids: Collection[str]) -> str | None:
        """Refuses programs without the backend whose blobs these files are."""
        return None if cls.backend_id in backend_ids else f"a file of {cls.__name__} is a blob of {cls.backend_id}"

    @classmethod
    def serialize(cls, program: ProgramContents, options: Mapping[str, Any]) -> bytes | Blob:
        """The blob. InputError unless one delegate of the backend, without data beside it, is all."""
        if options:
            raise OptionError("option-invalid", f"{cls.__name__} takes no options, such as {next(iter(options))!r}")
        count, host = len(program.delegates), program.host_operators + _computed_sizes(program)
        if count != 1 or host:
            text = "the file holds one delegate and nothing of the host;"
            text += f" this program has delegates: {count}, host operators: {host}"
            hint = "a .pte file holds all of it (delegraph-executorch), or save each with"
            hint += " lowered.delegates[k].save(path); the report says what stayed on the host, and why"
            raise InputError("not-fully-delegated", text, hint=hint)
        (delegate,) = program.delegates
        if delegate.backend_id != cls.backend_id:
            text = f"the file holds a blob of {cls.backend_id}; this program's is one of {delegate.backend_id}"
            raise InputError("input-invalid", text)
        if delegate.named_data is not None and delegate.named_data.pte_data and not cls.holds_named_data:
            text = f"the file holds a blob alone, and that of {cls.backend_id} reads named data, such as"
            text += f" {next(iter(delegate.named_data.pte_data))!r}, which would be lost"
            hint = "a .pte file holds both (delegraph-executorch); for the format's authors: put the data into the file"
            raise InputError("input-invalid", text, hint=f"{hint} and say holds_named_data = True")
        return delegate.blob

    @classmethod
    def read(cls, path: Path, load_delegate: LoadDelegate) -> Mapping[str, Callable[..., Any]]:
        """The delegate as the method ``forward``, which takes its inputs one by one and returns a tuple."""
        return {"forward": load_delegate(cls.backend_id, path.read_bytes())}

    @classmethod
    def blobs(cls, path: Path) -> Sequence[StoredBlob]:
        """The one blob that the file is. What made it such a file does not say, unless a subclass knows."""
        with path.open("rb") as file:
            header = BlobHeader(cls.backend_id, path.stat().st_size, file.read(BEGINNING))
        return [StoredBlob("forward", header, ())]


def _computed_sizes(program: ProgramContents) -> int:
    """How many numbers the host computes from sizes of tensors. They are no operators, but part of the program."""
    import torch

    from .exported.checks import find_checks

    graphs = [program.exported_program(method).graph for method in program.methods]
    nodes = [n for graph in graphs for n in {*graph.nodes} - find_checks(graph)]
    return sum(n.op == "call_function" and isinstance(n.meta.get("val"), torch.SymInt) for n in nodes)

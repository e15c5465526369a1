"""File formats of programs: classes that save a lowered program as a file, read such
files, and show their content.

A plugin derives a class from ``ProgramFormat`` (or from ``DelegateFormat``, if a file
is the blob of one delegate) and declares it with a ``FormatSpec``. Importing this
module imports neither torch nor numpy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from .backend import Blob, CompileSpec, NamedDataStoreOutput
from .errors import InputError, OptionError
from .io.atomic_write import write_whole
from .io.blob_pieces import join
from .runtime import BEGINNING, BlobHeader

if TYPE_CHECKING:
    import numpy as np
    from torch.export import ExportedProgram

    from .delegates.find_delegates import DelegateInfo
    from .runtime import Delegate, Spent

__all__ = [
    "Blob",
    "ConstantSummary",
    "DelegateFormat",
    "DelegateSummary",
    "FileTimer",
    "LoadDelegate",
    "MethodSummary",
    "Origin",
    "ProgramContents",
    "ProgramFormat",
    "Quantization",
    "QuantizationParameters",
    "Step",
    "StoredBlob",
    "Summary",
    "TensorSummary",
    "Verdict",
    "defines",
    "join",
    "write_files",
    "write_whole",
]

LARGEST = 5
"""The most constants that a summary lists."""
_LONGEST_NAME = 60
"""The most characters of a name that the text of a tensor shows."""


# --- arguments of formats -------------------------------------------------------------


class ProgramContents(Protocol):
    """The lowered program that a format gets: a ``LoweredProgram`` or an
    ``EdgeProgramManager``.
    """

    @property
    def methods(self) -> Collection[str]:
        """Return the names of the methods, in the order in which they were passed for
        lowering.
        """

    @property
    def constant_methods(self) -> Mapping[str, Any]:
        """Return name -> value, for methods that only return a constant."""

    @property
    def delegates(self) -> Sequence[DelegateInfo]:
        """Return the delegates of all methods, including those in branches and loop
        bodies.
        """

    @property
    def named_data(self) -> NamedDataStoreOutput:
        """Return the named data of all delegates, merged for one file: equal contents
        are there once.
        """

    @property
    def host_operators(self) -> int:
        """Return the number of operators that no delegate computes, in all methods."""

    def whole_delegate(self) -> DelegateInfo:
        """Return the program's one delegate, with all inputs and outputs of its method,
        in order.

        The program must have one method, which one delegate computes. If the delegate
        in ``delegates`` has other inputs or outputs than the method, it is compiled
        again. Raises InputError if a file of one delegate cannot have the program, for
        example because the host writes buffers.
        """

    def exported_program(self, name: str = "forward") -> ExportedProgram:
        """Return the program of a method: functional, with debug handles, and with a
        ``CALL_DELEGATE`` node for each delegate.

        Calls on the host are the operators of the user's model, such as
        ``aten.layer_norm``. The ``call_spec`` of the program has the structure of
        arguments and results.
        """

    def core_program(
        self, name: str = "forward", keep: Collection[Any] = ()
    ) -> ExportedProgram:
        """Return ``exported_program(name)`` with calls on the host decomposed to core
        ATen, except operators in ``keep``.

        For runtimes that have kernels only for core ATen. An ``EdgeProgramManager``
        returns its program unchanged: its user has chosen the operators.
        """


class LoadDelegate(Protocol):
    """A function that returns a delegate for a blob. The backend's runtime loads the
    blob at the delegate's first call.

    The delegate may be called from any thread. A call raises NoRuntime if this host has
    no runtime for the backend. ``header``: the facts about the blob that the file has;
    None if the file has no such facts.
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
    """A delegate in a file: the facts for ``BackendRuntime.compatible``."""

    method: str
    header: BlobHeader
    compile_specs: Sequence[CompileSpec]


class Origin(NamedTuple):
    """The origin of an instruction: ``operators`` by name, and ``lines`` of the user's
    program as text.

    A part that is not known is empty.
    """

    operators: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


class Step(NamedTuple):
    """An executed instruction of a program in a file: its name and its origin.

    ``inside``: for a call of a delegate, the origin of its operators by delegate debug
    identifier as text; None for other instructions.
    """

    name: str
    origin: Origin = Origin()
    inside: Mapping[str, Origin] | None = None


class FileTimer(Protocol):
    """Gets the times of a program in a file. Formats call ``see``; delegraph calls
    ``spent``.
    """

    def spent(self, backend_id: str, seconds: float, read: Callable[[], Spent]) -> None:
        """Record that a call of a delegate took ``seconds`` in its runtime. After it,
        ``see`` is called with the instruction that made the call.

        ``read()`` returns the times of the delegate's operators. It may be slow.
        """

    def see(self, step: Step) -> None:
        """Record that the instruction ``step`` has just ended. It began when the
        previous instruction ended; the first began with the call of the method.
        """


# --- summaries of files ---------------------------------------------------------------


@dataclass(frozen=True)
class TensorSummary:
    """An input or output of a method.

    ``name``: "" if the file has none. ``dtype``: torch's name of the type, if torch has
    it. ``shape``: None for a number; a size of None is not known. ``bounded``: the
    sizes are upper limits. ``scale`` and ``zero_point``: an integer means
    ``(integer - zero_point) * scale``; None if the file does not have them. ``within``:
    the lowest and the highest integer that callers may pass, if the program was lowered
    for a range of integers; None: all integers of the type.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None
    bounded: bool = False
    scale: float | None = None
    zero_point: int | None = None
    within: tuple[int, int] | None = None

    def __str__(self) -> str:
        """Return name, type, sizes and quantization, as far as they are known: ``x:
        int8[1, 3], scale 0.5, zero point 0``.
        """
        text = f"{self.dtype}{self._sizes()}"
        if self.name:
            end = "…" if len(self.name) > _LONGEST_NAME else ""
            text = f"{self.name[:_LONGEST_NAME]}{end}: {text}"
        if self.scale is not None:
            text += f", scale {self.scale:.9g}, zero point {self.zero_point}"
        if self.within is not None:
            text += f", from {self.within[0]} to {self.within[1]}"
        return text

    def _sizes(self) -> str:
        """Return the shape as text: ``?`` for an unknown size, ``<=`` before upper
        limits; "" for a number.
        """
        if self.shape is None:
            return ""
        bound = "<=" if self.bounded else ""
        sizes = ["?" if size is None else f"{bound}{size}" for size in self.shape]
        return f"[{', '.join(sizes)}]"


@dataclass(frozen=True)
class ConstantSummary:
    """A constant of a file; ``bytes`` is its size there."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class DelegateSummary:
    """A delegate of a file. ``producer``: the backend that compiled it, "" if not known.
    ``bytes``: size of its blob.
    """

    backend: str
    producer: str
    bytes: int


@dataclass(frozen=True)
class MethodSummary:
    """A method. ``operators``: operator of the file -> count; operators inside of
    delegates are not included.
    """

    name: str
    inputs: tuple[TensorSummary, ...]
    outputs: tuple[TensorSummary, ...]
    operators: Mapping[str, int]
    delegates: tuple[DelegateSummary, ...] = ()


@dataclass(frozen=True)
class Summary:
    """A whole file.

    ``kind``: a name for such files, such as "TOSA program". ``version``: of the format.
    ``needs``: requirements on a device or runtime, such as {"profiles": ["FP"]}.
    ``constants`` and ``constant_bytes``: number and total size of the constants.
    ``largest``: the largest constants, at most LARGEST, the largest first.
    ``producer``: the program that wrote the file, "" if not known.
    """

    kind: str
    version: str
    bytes: int
    needs: Mapping[str, Sequence[str]]
    methods: tuple[MethodSummary, ...]
    constants: int
    constant_bytes: int
    largest: tuple[ConstantSummary, ...] = ()
    producer: str = ""

    @staticmethod
    def largest_of(constants: Sequence[ConstantSummary]) -> tuple[ConstantSummary, ...]:
        """Return the largest of ``constants``, at most LARGEST, the largest first."""
        return tuple(sorted(constants, key=lambda c: (-c.bytes, c.name))[:LARGEST])

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a dictionary of plain values."""
        return asdict(self)


# --- results of formats ---------------------------------------------------------------


class Verdict(NamedTuple):
    """The judgement of another tool (``judge``) on a file. ``accepted`` is None if the
    tool is not installed.
    """

    judge: str
    accepted: bool | None
    detail: str


class QuantizationParameters(NamedTuple):
    """The quantization of a tensor: an integer means the real number ``(integer -
    zero_point) * scale``.
    """

    dtype: str
    """``int8``, ``int16`` and the like."""
    scale: float
    zero_point: int

    def __str__(self) -> str:
        return f"{self.dtype}, scale {self.scale:.9g}, zero point {self.zero_point}"


class Quantization(NamedTuple):
    """The inputs and outputs of a program, in order: name -> parameters, or None for an
    input or output that is not quantized.
    """

    inputs: Mapping[str, QuantizationParameters | None]
    outputs: Mapping[str, QuantizationParameters | None]


class ProgramFormat:
    """Base class of file formats. A subclass defines the methods that it supports; all
    are called on the class.

    If a user needs a method that a format does not define, delegraph raises an error
    that names the format. Methods that read raise FormatError for damaged files.
    Exceptions other than DelegraphError become PluginFailed.
    """

    @staticmethod
    def why_not(backend_ids: Collection[str]) -> str | None:
        """Return why a program lowered for these backends cannot be saved; None if the
        program can be saved. Called before lowering.
        """
        return None

    @staticmethod
    def serialize(program: ProgramContents, options: Mapping[str, Any]) -> bytes | Blob:
        """Return the content of the file. ``options``: those of ``save``; raises
        OptionError for unknown ones.
        """
        raise NotImplementedError

    @classmethod
    def files(
        cls, program: ProgramContents, options: Mapping[str, Any]
    ) -> Mapping[str, bytes | Blob]:
        """Return name -> content of all files of a program. The name ``""`` is the file
        at the user's path; the other files are written into the same folder.

        For example, ``weights.ptd`` of ``model.pte`` becomes ``model.weights.ptd``.
        Only a format of several files overrides this method. Its ``serialize`` raises
        an error for a program that needs more than one file.
        """
        return {"": cls.serialize(program, options)}

    @classmethod
    def write(
        cls, program: ProgramContents, path: Path, options: Mapping[str, Any]
    ) -> None:
        """Write ``path`` and further files, each completely or not at all.

        Only a format that does more than write the result of ``files`` overrides this
        method. It must write each file by ``write_whole``.
        """
        write_files(cls.files(program, options), path)

    @staticmethod
    def read(
        path: Path, load_delegate: LoadDelegate
    ) -> Mapping[str, Callable[..., Any]]:
        """Return name -> function for each method of the program in a file, called like
        the method that was saved.

        If a file decides how much memory or how many loop iterations a call takes, the
        format's ``read`` also has the parameters ``max_memory: int`` (bytes) and
        ``max_iterations: int``, both with defaults. ``delegraph.load`` and ``delegraph
        run`` pass the user's limits to them.
        """
        raise NotImplementedError

    @staticmethod
    def profile(
        path: Path, load_delegate: LoadDelegate, see: Callable[[Step], None]
    ) -> Mapping[str, Callable[..., Any]]:
        """Return the methods as ``read`` does, but a call passes each instruction to
        ``see`` as soon as the instruction has been executed.

        Optional: without it ``delegraph profile FILE`` calls the functions of ``read``,
        and only delegates are timed.
        """
        raise NotImplementedError

    @staticmethod
    def quantization(path: Path) -> Quantization:
        """Return the quantization parameters of the inputs and outputs of the program
        in a file.
        """
        raise NotImplementedError

    @staticmethod
    def named_data(path: Path) -> Mapping[str, bytes | memoryview]:
        """Return key -> bytes of the named data in a file, for
        ``LoadedProgram.named_data``.
        """
        raise NotImplementedError

    @staticmethod
    def blobs(path: Path) -> Sequence[StoredBlob]:
        """Return the delegates in a file, for ``inspect --can-run``. Reads only the
        beginning of each blob.
        """
        raise NotImplementedError

    @staticmethod
    def load_in(runtime: str, path: Path) -> Mapping[str, Callable[..., Any]]:
        """Return the methods as ``read`` does, but ``runtime``, one of the ``runtimes``
        of the FormatSpec, executes the whole program.

        Raises NoRuntime, with the command that installs it, if the runtime is missing.
        """
        raise NotImplementedError

    @staticmethod
    def inspect(path: Path) -> Any:
        """Return the content of a file, for ``delegraph inspect``, which imports no
        torch unless this method does.

        ``str()`` of the result is for people; its method ``to_json()`` returns a
        dictionary for programs.
        """
        raise NotImplementedError

    @staticmethod
    def summarize(path: Path) -> Summary:
        """Return a summary of a file, for ``delegraph inspect --summary`` and the key
        "summary" of its JSON.
        """
        raise NotImplementedError

    @staticmethod
    def sample(path: Path, seed: int) -> list[np.ndarray[Any, Any]]:
        """Return random inputs for the program in a file; floats are standard normal.

        A format with several methods also takes ``method: str | None = None``, the
        ``--method`` of ``delegraph run``.
        """
        raise NotImplementedError

    @staticmethod
    def run(
        path: Path, inputs: Sequence[np.ndarray[Any, Any]]
    ) -> list[tuple[str, np.ndarray[Any, Any]]]:
        """Execute the file with one array for each input; returns (name, value) of each
        output.

        Raises InputError for inputs that do not fit. A format without this method is
        run by ``read`` instead. A format with loops also takes ``max_iterations: int``,
        with a default, because a loop in a file may never end; ``delegraph run`` passes
        its ``--max-iterations``.
        """
        raise NotImplementedError

    @staticmethod
    def page(path: Path) -> str:
        """Return an HTML page that shows the file, for ``delegraph inspect --html``."""
        raise NotImplementedError

    @staticmethod
    def node_of(identifier: Any) -> tuple[str, str]:
        """Return the names of an operator's graph and node in Model Explorer.

        Node data need the names that the format's Model Explorer adapter gives.
        ``identifier``: the operator's delegate debug identifier.
        """
        raise NotImplementedError

    @staticmethod
    def verify(path: Path) -> Sequence[Verdict]:
        """Return the judgements of other tools on the file, for ``delegraph inspect
        --verify``.
        """
        raise NotImplementedError


def write_files(files: Mapping[str, bytes | Blob], path: Path) -> None:
    """Write the result of ``ProgramFormat.files``: the entry "" to ``path``, and the
    other entries into the same folder.

    For ``model.pte``, the entry ``weights.ptd`` becomes ``model.weights.ptd``. ``path``
    is written last, so that it never exists without the others.
    """
    for name, content in files.items():
        if name:
            write_whole(path.with_name(f"{path.stem}.{name}"), content)
    write_whole(path, files[""])


def defines(kind: type[ProgramFormat], ability: str) -> bool:
    """Return whether the format ``kind`` overrides ``ability``, the name of a method of
    ``ProgramFormat``.
    """
    # ``getattr`` would return a new object for a class method at each access
    inherited = inspect.getattr_static(ProgramFormat, ability)
    return inspect.getattr_static(kind, ability) is not inherited


class DelegateFormat(ProgramFormat):
    """Base class of formats with the blob of one delegate as file, for programs that a
    single delegate computes.

    A subclass sets ``backend_id``, and defines further methods, such as ``inspect``.
    The runtime gets the blob without compile specs, so the blob must contain all that
    the runtime needs. A subclass with a ``serialize`` that puts named data into the
    file sets ``holds_named_data = True``. For other subclasses, ``serialize`` raises
    InputError for a delegate with named data.
    """

    backend_id: ClassVar[str]
    holds_named_data: ClassVar[bool] = False

    @classmethod
    def why_not(cls, backend_ids: Collection[str]) -> str | None:
        """Return why a program lowered for these backends cannot be saved; None if
        ``cls.backend_id`` is among them.
        """
        if cls.backend_id in backend_ids:
            return None
        return f"a file of {cls.__name__} is a blob of {cls.backend_id}"

    @classmethod
    def serialize(
        cls, program: ProgramContents, options: Mapping[str, Any]
    ) -> bytes | Blob:
        """Return the blob of ``delegate(program)``. Raises OptionError for any option,
        and the errors of ``delegate``.
        """
        if options:
            raise OptionError(
                "option-invalid",
                f"{cls.__name__} takes no options, such as {next(iter(options))!r}",
            )
        return cls.delegate(program).blob

    @classmethod
    def delegate(cls, program: ProgramContents) -> DelegateInfo:
        """Return the delegate that the file holds: the program's only one, with the
        inputs and outputs of its method.

        Raises InputError if there is no delegate, or anything else: host operators,
        other delegates, other methods, another backend's delegate, or named data (see
        ``holds_named_data``). Raises the errors of ``whole_delegate``, too.
        """
        # ``host_operators`` does not count computations of sizes, which a file of one
        # delegate cannot hold either
        count = len(program.delegates)
        host = program.host_operators + _computed_sizes(program)
        if count != 1 or host:
            text = (
                "the file holds one delegate and nothing of the host; this program has"
                f" delegates: {count}, host operators: {host}"
            )
            hint = (
                "a .pte file holds all of it (delegraph-executorch), or save each with"
                " lowered.delegates[k].save(path); the report says what stayed on the"
                " host, and why"
            )
            raise InputError("not-fully-delegated", text, hint=hint)
        methods = [*program.methods, *program.constant_methods]
        if len(methods) > 1:
            raise InputError(
                "input-invalid",
                f"a file of one delegate holds only one method; this program has"
                f" {', '.join(methods)}",
                hint="a .pte file holds all of them (delegraph-executorch)",
            )
        (delegate,) = program.delegates
        if delegate.backend_id != cls.backend_id:
            raise InputError(
                "input-invalid",
                f"the file holds a blob of {cls.backend_id}; this program's is one of"
                f" {delegate.backend_id}",
            )
        whole = program.whole_delegate()
        data = whole.named_data
        if data is not None and data.pte_data and not cls.holds_named_data:
            key = next(iter(data.pte_data))
            text = (
                f"the file holds only a blob, but the blob of {cls.backend_id} reads"
                f" named data, such as {key!r}, which would be lost"
            )
            hint = (
                "a .pte file holds both (delegraph-executorch); for the format's"
                " authors: put the data into the file and set holds_named_data = True"
            )
            raise InputError("input-invalid", text, hint=hint)
        return whole

    @classmethod
    def read(
        cls, path: Path, load_delegate: LoadDelegate
    ) -> Mapping[str, Callable[..., Any]]:
        """Return the delegate as the method ``forward``, which takes the delegate's
        inputs and returns a tuple.
        """
        return {"forward": load_delegate(cls.backend_id, path.read_bytes())}

    @classmethod
    def blobs(cls, path: Path) -> Sequence[StoredBlob]:
        """Return one blob, which is the whole file. Its header names no producer: a
        subclass that stores one overrides this method.
        """
        with path.open("rb") as file:
            header = BlobHeader(
                cls.backend_id, path.stat().st_size, file.read(BEGINNING)
            )
        return [StoredBlob("forward", header, ())]


def _computed_sizes(program: ProgramContents) -> int:
    """Return how many integers the host computes from sizes of tensors, such as
    ``x.shape[0] * 2``. ``host_operators`` does not count these.

    Integers that only an assertion needs are left out.
    """
    import torch
    from delegraph_programs import find_checks

    count = 0
    for method in program.methods:
        graph = program.exported_program(method).graph
        for node in {*graph.nodes} - find_checks(graph):
            value = node.meta.get("val")
            if node.op == "call_function" and isinstance(value, torch.SymInt):
                count += 1
    return count

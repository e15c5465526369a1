"""The delegation contract that a backend implements (names as in ExecuTorch)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Protocol, TypeVar, runtime_checkable

from .errors import ContractViolation, NamedDataError, NamedDataTypeError

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import Node

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class CompileSpec:
    """One setting for the backend: a key and its bytes. Order and duplicates are kept, for the runtime too."""

    key: str
    value: bytes


@runtime_checkable
class Blob(Protocol):
    """Bytes that are not joined yet. A backend whose blob is mostly weights returns one instead of ``bytes``.

    ``write_to`` appends all of them to a file; ``len()`` is known before. The weights are read where they are used, so
    nothing of the model may change in between: ``write_to`` raises ContractViolation if something did.
    """

    def __len__(self) -> int: ...

    def write_to(self, file: BinaryIO) -> None: ...


@dataclass(frozen=True)
class TensorLayout:
    """How the bytes of a named tensor are to be read: its element type and sizes, in C order."""

    dtype: torch.dtype
    sizes: tuple[int, ...]


@dataclass
class DataEntry:
    """Where a named piece of data lies: index into the buffers, alignment in bytes, a tensor's layout if it is one."""

    buffer_index: int
    alignment: int
    tensor_layout: TensorLayout | None = None


@dataclass
class NamedDataStoreOutput:
    """What a ``NamedDataStore`` holds: buffers, each once; key -> entry for the program file and for external files."""

    buffers: list[bytes] = field(default_factory=list)
    pte_data: dict[str, DataEntry] = field(default_factory=dict)
    external_data: dict[str, dict[str, DataEntry]] = field(default_factory=dict)


class NamedDataStore:
    """Data by key, shared between delegates and de-duplicated by content.

    A key is one name space over internal and external data. Adding a key again needs equal data, in the same place; its
    alignment becomes the least common multiple of both. What cannot be stored is a NamedDataError, and changes nothing.
    """

    def __init__(self) -> None:
        self._output = NamedDataStoreOutput()
        self._alike: dict[tuple[int, bytes], list[int]] = {}
        self._home: dict[str, str | None] = {}

    def add_named_data(
        self,
        key: str,
        data: bytes | torch.Tensor,
        alignment: int = 1,
        external_tag: str | None = None,
        tensor_layout: TensorLayout | None = None,
    ) -> None:
        """Add ``data`` under ``key``; ``external_tag`` names the external file that it goes to. Alignment in bytes.

        A tensor is stored as its bytes in C order, and says its layout itself. Raises NamedDataTypeError for what is
        neither bytes nor a tensor.
        """
        if alignment <= 0:
            raise _refused(key, f"cannot be aligned: alignment {alignment} is not positive")
        content, layout = _content(key, data, tensor_layout)
        index = self._find(content)
        self._check_known(key, index, external_tag, layout)
        if index is None:
            index = self._append(content)
        self._home[key] = external_tag
        entries = self._output.pte_data
        if external_tag is not None:
            entries = self._output.external_data.setdefault(external_tag, {})
        entry = entries.setdefault(key, DataEntry(index, alignment, layout))
        entry.alignment = math.lcm(entry.alignment, alignment)

    def get_named_data_store_output(self) -> NamedDataStoreOutput:
        return self._output

    def merge_named_data_store(self, other: NamedDataStoreOutput) -> None:
        """Take over all that ``other`` holds."""
        for tag, entries in [(None, other.pte_data), *other.external_data.items()]:
            for key, entry in entries.items():
                data = other.buffers[entry.buffer_index]
                self.add_named_data(key, data, entry.alignment, tag, entry.tensor_layout)

    def externalize_pte_data(self, max_data_bytes: int, tag_prefix: str) -> None:
        """Move what was to go into the program file to external files of at most ``max_data_bytes`` bytes each.

        Files are filled in the order of the keys, whatever the order of adding, and named ``{tag_prefix}_{digest}`` by
        the keys that they hold. Keys with one buffer stay together.
        """
        if max_data_bytes <= 0 or not tag_prefix:
            text = f"external files have a positive size and a name, not {max_data_bytes} bytes and {tag_prefix!r}"
            raise NamedDataError("contract-violation", text)
        shards = _shards(self._output, max_data_bytes)
        for keys in shards:
            digest = hashlib.sha256("\0".join(keys).encode()).hexdigest()
            tag = f"{tag_prefix}_{digest}"
            self._output.external_data[tag] = {k: self._output.pte_data.pop(k) for k in keys}
            self._home.update(dict.fromkeys(keys, tag))

    def _find(self, data: bytes) -> int | None:
        """The buffer with this content. Contents are compared only if length and first bytes agree; none is hashed."""
        alike = self._alike.get((len(data), data[:64]), ())
        return next((k for k in alike if self._output.buffers[k] == data), None)

    def _append(self, data: bytes) -> int:
        index = len(self._output.buffers)
        self._output.buffers.append(data)
        self._alike.setdefault((len(data), data[:64]), []).append(index)
        return index

    def _check_known(self, key: str, index: int | None, tag: str | None, layout: TensorLayout | None) -> None:
        if key not in self._home:
            return
        home = self._home[key]
        entry = (self._output.pte_data if home is None else self._output.external_data[home])[key]
        if entry.buffer_index != index:
            raise _refused(key, "was added before with different data")
        if home != tag:
            raise _refused(key, f"is in {home or 'the program file'} already, and cannot go to {tag or 'that'} too")
        if entry.tensor_layout != layout:
            raise _refused(key, f"was added before with layout {entry.tensor_layout}, not {layout}")


def _content(key: str, data: Any, layout: TensorLayout | None) -> tuple[bytes, TensorLayout | None]:
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data), layout
    import torch  # what has only bytes does without it

    if not isinstance(data, torch.Tensor):
        text = f"named data {key!r} is {type(data).__name__}; bytes or a tensor are wanted"
        raise NamedDataTypeError("contract-violation", text)
    own = TensorLayout(data.dtype, tuple(data.shape))
    if layout not in (None, own):
        raise _refused(key, f"is a tensor of layout {own}, and {layout} was given with it")
    flat = data.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes(), own


def _shards(output: NamedDataStoreOutput, limit: int) -> list[list[str]]:
    """Keys of the program file's data in groups, each sorted and with at most ``limit`` bytes of distinct buffers."""
    together: dict[int, list[str]] = {}
    for key in sorted(output.pte_data):
        together.setdefault(output.pte_data[key].buffer_index, []).append(key)
    found: list[list[str]] = []
    room = 0
    for index, keys in together.items():
        size = len(output.buffers[index])
        if size > limit:
            raise _refused(keys[0], f"has {size} bytes, more than the {limit} of an external file")
        if size > room or not found:
            found.append([])
            room = limit
        found[-1] += keys
        room -= size
    return [sorted(keys) for keys in found]


def _refused(key: str, why: str) -> NamedDataError:
    return NamedDataError("contract-violation", f"named data {key!r} {why}")


@dataclass
class PreprocessResult:
    """What a backend makes of one partition.

    ``debug_handle_map``: delegate debug identifier -> debug handles of the nodes it stands for.
    """

    processed_bytes: bytes | Blob = b""
    debug_handle_map: Mapping[int, tuple[int, ...]] | Mapping[str, tuple[int, ...]] | None = None
    data_store_output: NamedDataStoreOutput | None = None
    _delegate_info_meta: Any = None


def enforcedmethod(method: F) -> F:
    """Mark a method that every concrete backend must define."""
    method.__enforced__ = True  # type: ignore[attr-defined]
    return method


class BackendDetails:
    """What a backend implements. The class's name is its backend id. Never instantiated.

    A concrete subclass that lacks an enforced method is refused when the class is made; a shared base says
    ``class Base(BackendDetails, abstract=True)``.
    """

    enforced: ClassVar[tuple[str, ...]] = ("preprocess",)
    thread_safe: ClassVar[bool] = False
    """Whether ``preprocess`` may run in several threads at once, on partitions of one or of several lowerings."""

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        missing = [n for n in dir(cls) if getattr(getattr(cls, n), "__enforced__", False)]
        if missing and not abstract:
            raise ContractViolation(
                "contract-violation",
                f"backend {cls.__name__} does not define {', '.join(missing)}",
                hint=f"define it, or declare a shared base: class {cls.__name__}(BackendDetails, abstract=True)",
            )

    @staticmethod
    @enforcedmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Compile one partition: its placeholders are constants, then inputs; it returns a flat tuple."""
        raise NotImplementedError

    @classmethod
    def preprocess_multimethod(
        cls,
        edge_programs: Mapping[str, Sequence[ExportedProgram]],
        compile_specs: Mapping[str, Sequence[list[CompileSpec]]],
    ) -> dict[str, list[PreprocessResult]]:
        """Compile all partitions of all methods; the default calls ``preprocess`` for each."""
        _check_counts(cls.__name__, edge_programs, compile_specs)
        return {
            method: [cls.preprocess(p, s) for p, s in zip(programs, compile_specs[method], strict=True)]
            for method, programs in edge_programs.items()
        }


def _check_counts(backend: str, programs: Mapping[str, Sequence[Any]], specs: Mapping[str, Sequence[Any]]) -> None:
    for method, listed in programs.items():
        given = len(specs[method]) if method in specs else 0
        if given != len(listed):
            text = f"{backend}: method {method!r} has {len(listed)} partitions and {given} lists of compile specs"
            raise ContractViolation("contract-violation", text)


class DelegateMappingBuilder:
    """Delegate debug identifier -> debug handles; one identifier for many nodes (fusion), many for one (decomposition).

    Identifiers are 0, 1, 2, ... with ``generated_identifiers``, otherwise each is given by the caller, int or str.
    """

    def __init__(self, generated_identifiers: bool = False) -> None:
        self._generated = generated_identifiers
        self._map: dict[Any, tuple[int, ...]] = {}

    def insert_delegate_mapping_entry(
        self,
        nodes: Node | Sequence[Node] | None = None,
        handles: int | Sequence[int | None] | None = None,
        identifier: int | str | None = None,
    ) -> int | str:
        """Map an identifier to the handles given, or to those of the nodes given; returns the identifier."""
        if (nodes is None) == (handles is None):
            raise ContractViolation(
                "contract-violation", "a delegate mapping entry takes nodes or handles, one of both"
            )
        found = _handles_of(nodes) if nodes is not None else _listed(handles)
        known = tuple(sorted({h for h in found if h is not None}))
        if not known:
            raise ContractViolation("contract-violation", "a delegate mapping entry needs at least one debug handle")
        key = self._identifier(identifier)
        self._map[key] = known
        return key

    def get_delegate_mapping(self) -> dict[Any, tuple[int, ...]]:
        """Identifier -> sorted debug handles."""
        return dict(self._map)

    def _identifier(self, identifier: int | str | None) -> int | str:
        if self._generated == (identifier is not None):
            wanted = "generates its identifiers" if self._generated else "needs an identifier from you"
            raise ContractViolation("contract-violation", f"this DelegateMappingBuilder {wanted}")
        key = len(self._map) if identifier is None else identifier
        if key in self._map:
            raise ContractViolation("contract-violation", f"delegate debug identifier {key!r} is used already")
        return key


def _handles_of(nodes: Any) -> list[int | None]:
    return [n.meta.get("debug_handle") if n is not None else None for n in _listed(nodes)]


def _listed(items: Any) -> list[Any]:
    return list(items) if isinstance(items, (list, tuple, set, frozenset)) else [items]

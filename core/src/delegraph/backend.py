"""The delegation contract that a backend implements (names as in ExecuTorch)."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .errors import ContractViolation
from .io.blob import Blob
from .named_data import DataEntry, NamedDataStore, NamedDataStoreOutput, TensorLayout

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import Node


__all__ = [
    "BackendDetails",
    "Blob",
    "CompileSpec",
    "DataEntry",
    "DelegateMappingBuilder",
    "NamedDataStore",
    "NamedDataStoreOutput",
    "PreprocessResult",
    "TensorLayout",
    "enforcedmethod",
]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class CompileSpec:
    """One setting for the backend: a key and its bytes.

    Order and duplicates of settings are kept, also for the runtime.
    """

    key: str
    value: bytes


@dataclass
class PreprocessResult:
    """What a backend makes of one partition.

    ``debug_handle_map``: delegate debug identifier -> debug handles of the nodes that it stands for. Two more fields
    are for the report. ``facts`` are facts of the delegate by name, such as ``{"memory": "on-chip"}``; ``"target"`` is
    shown if delegates of one backend have different ones. ``figures``: identifier of ``debug_handle_map`` -> amounts by
    name, such as ``{3: {"cycles": 1200}}``, which the report adds up by delegate and by line of the user's program.
    """

    processed_bytes: bytes | Blob = b""
    debug_handle_map: Mapping[int, tuple[int, ...]] | Mapping[str, tuple[int, ...]] | None = None
    data_store_output: NamedDataStoreOutput | None = None
    _delegate_info_meta: Any = None
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    figures: Mapping[int | str, Mapping[str, int | float]] = field(default_factory=dict)


def enforcedmethod(method: F) -> F:
    """Mark a method that every concrete backend must define."""
    method.__enforcedmethod__ = True  # type: ignore[attr-defined]
    return method


class BackendDetails(ABC):
    """What a backend implements. The class's name is the backend's id; it is never instantiated.

    A concrete subclass that lacks an enforced method is refused when the class is defined. A shared base says ``class
    Base(BackendDetails, abstract=True)``.
    """

    thread_safe: ClassVar[bool] = False
    """Whether ``preprocess`` may run in several threads at once, on partitions of one or of several lowerings.

    A backend that traces with torch (``torch.export``, ``make_fx``) may not: torch's tracers keep their state per
    process.
    """

    keeps_names: ClassVar[bool] = False
    """Whether names of nodes and constants get into what ``preprocess`` makes, and people look for them there.

    Cached results are then found again by programs of the same names only. Where it is False, ``preprocess`` gets a
    program whose names say nothing (v0, v1, ...) if the user asks for a cache.
    """

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        missing = [n for n in dir(cls) if getattr(getattr(cls, n, None), "__enforcedmethod__", False)]
        if missing and not abstract:
            raise ContractViolation(
                "contract-violation",
                f"backend {cls.__name__} does not define {', '.join(missing)}",
                hint=f"define it, or declare a shared base: class {cls.__name__}(BackendDetails, abstract=True)",
            )
        check_called_on_class(cls, "preprocess", ("edge_program", "compile_specs"))
        check_called_on_class(cls, "preprocess_multimethod", ("edge_programs", "compile_specs"))

    @staticmethod
    @enforcedmethod
    @abstractmethod
    def preprocess(edge_program: ExportedProgram, compile_specs: list[CompileSpec]) -> PreprocessResult:
        """Compile one partition. Its placeholders are constants, then inputs; it returns a flat tuple.

        ``edge_program.graph_module.meta`` says where it comes from: ``meta["method"]`` is the name of the method,
        ``meta["partition"]`` is the tag that the partitioner gave it. Raises Unsupported for a partition that it cannot
        compile: ``delegraph.lower`` gives that to the next backend or to the host, and reports the reason.
        """
        raise NotImplementedError

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """What ``preprocess`` depends on besides its arguments, such as the version of a compiler; None if unknown.

        It is stored with each delegate, for the runtime's ``compatible``. Where the user asks for a cache, results are
        kept only with a fingerprint. It need not name the backend's own package, delegraph or torch. None also where
        the compile specs make ``preprocess`` write files, or make the result depend on names or source lines.
        """
        return None

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


def check_called_on_class(cls: type, name: str, arguments: Sequence[str]) -> None:
    """Raise ContractViolation if ``cls.name`` cannot be called with ``arguments``, as delegraph does."""
    try:
        inspect.signature(getattr(cls, name)).bind(*arguments)
    except TypeError as e:
        text = f"{cls.__name__}.{name} is called on the class, with ({', '.join(arguments)}), and takes something else"
        raise ContractViolation("contract-violation", f"{text}: {e}", hint="is @staticmethod missing?") from e


def _check_counts(backend: str, programs: Mapping[str, Sequence[Any]], specs: Mapping[str, Sequence[Any]]) -> None:
    """Raise ContractViolation unless there is a list of compile specs for each partition."""
    for method, listed in programs.items():
        given = len(specs[method]) if method in specs else 0
        if given != len(listed):
            text = f"{backend}: method {method!r} has {len(listed)} partitions and {given} lists of compile specs"
            raise ContractViolation("contract-violation", text)


class DelegateMappingBuilder:
    """Builds a map from delegate debug identifiers to debug handles, for ``PreprocessResult.debug_handle_map``.

    One identifier may stand for many nodes (fusion), and many for one (decomposition). With ``generated_identifiers``
    they are 0, 1, 2, ..., otherwise the caller gives each of them, an int or a str.
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
        """Map an identifier to ``handles``, or to the debug handles of ``nodes``; returns the identifier."""
        if (nodes is None) == (handles is None):
            raise ContractViolation(
                "contract-violation", "a delegate mapping entry takes nodes or handles, one of both"
            )
        found = _handles_of(nodes) if nodes is not None else _as_list(handles)
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
        """The identifier of a new entry, given by the caller or generated."""
        if self._generated == (identifier is not None):
            wanted = "generates its identifiers" if self._generated else "needs an identifier from you"
            raise ContractViolation("contract-violation", f"this DelegateMappingBuilder {wanted}")
        key = len(self._map) if identifier is None else identifier
        if key in self._map:
            raise ContractViolation("contract-violation", f"delegate debug identifier {key!r} is used already")
        return key


def _handles_of(nodes: Any) -> list[int | None]:
    """The debug handles of nodes; None for a node without one."""
    return [n.meta.get("debug_handle") if n is not None else None for n in _as_list(nodes)]


def _as_list(items: Any) -> list[Any]:
    """Several items as a list; one item as a list of one."""
    return list(items) if isinstance(items, (list, tuple, set, frozenset)) else [items]

"""The delegation contract that a backend implements (names as in ExecuTorch)."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from .errors import ContractViolation
from .io.blob_pieces import Blob
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
]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class CompileSpec:
    """One setting for a backend. Backend and runtime get settings in order, duplicates
    included.
    """

    key: str
    value: bytes


@dataclass
class PreprocessResult:
    """The result of compiling one partition.

    ``processed_bytes``: the compiled blob. ``debug_handle_map``: delegate debug
    identifier -> debug handles of its nodes; None: unknown. ``data_store_output``: data
    that is stored next to the blob; None if there is none. ``facts``: facts for the
    report by name, such as ``{"memory": "on-chip"}``. The fact "target" is shown only
    if delegates of the backend have different targets. ``figures``: identifier of
    ``debug_handle_map`` -> amounts by name, such as ``{3: {"cycles": 1200}}``. The
    report has their sums for each delegate and each line of the user's program.
    ``output``: the output of the compiler as text, for the report. For a compiler in
    another process, delegraph sets it. ``_delegate_info_meta``: ExecuTorch's field of
    that name; if it is a mapping, its entries count as facts.
    """

    processed_bytes: bytes | Blob = b""
    debug_handle_map: (
        Mapping[int, tuple[int, ...]] | Mapping[str, tuple[int, ...]] | None
    ) = None
    data_store_output: NamedDataStoreOutput | None = None
    _delegate_info_meta: Any = None
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    figures: Mapping[int | str, Mapping[str, int | float]] = field(default_factory=dict)
    output: str = ""


def enforcedmethod(method: F) -> F:
    """Mark a method that subclasses of ``BackendDetails`` must define; only shared bases
    need not.
    """
    method.__enforcedmethod__ = True  # type: ignore[attr-defined]
    return method


class BackendDetails(ABC):
    """Base class of backends. The class's name is the backend's id; the class is never
    instantiated.

    Defining a subclass without an enforced method raises ContractViolation, unless the
    subclass is a shared base, defined as ``class Base(BackendDetails, abstract=True)``.
    """

    thread_safe: ClassVar[bool] = False
    """Whether ``preprocess`` may run in several threads at once, on partitions of one
    or of several lowerings.

    Must be False for a backend that traces with torch (``torch.export``, ``make_fx``):
    tracers keep state per process.
    """

    keeps_names: ClassVar[bool] = False
    """Whether blobs contain names of nodes and constants that users want to see.

    If True, a cached result is only used for programs with the same names. If False,
    and the user asks for a cache, ``preprocess`` gets a program with neutral names (v0,
    v1, ...).
    """

    def __init_subclass__(cls, abstract: bool = False, **kwargs: Any) -> None:
        """Check the subclass ``cls`` when it is defined. ``abstract``: a shared base,
        which may lack enforced methods.

        Raises ContractViolation if an enforced method is missing, or if ``preprocess``
        or ``preprocess_multimethod`` has other parameters.
        """
        super().__init_subclass__(**kwargs)
        # A method that the subclass defines replaces the marked one, and has no mark.
        missing = [
            n
            for n in dir(cls)
            if getattr(getattr(cls, n, None), "__enforcedmethod__", False)
        ]
        if missing and not abstract:
            raise ContractViolation(
                "contract-violation",
                f"backend {cls.__name__} does not define {', '.join(missing)}",
                hint=(
                    "define it, or declare a shared base: class"
                    f" {cls.__name__}(BackendDetails, abstract=True)"
                ),
            )
        check_called_on_class(cls, "preprocess", ("edge_program", "compile_specs"))
        check_called_on_class(
            cls, "preprocess_multimethod", ("edge_programs", "compile_specs")
        )

    @staticmethod
    @enforcedmethod
    @abstractmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Compile one partition.

        The placeholders of ``edge_program`` are its constants, then its inputs; the
        program returns a flat tuple. In ``edge_program.graph_module.meta``, "method" is
        the model's method that contains the partition, and "partition" is the tag that
        the partitioner gave to the partition.
        Raises Unsupported for a partition that cannot be compiled: ``delegraph.lower``
        then leaves the partition to the next backend or the host, and reports the
        reason.
        """
        raise NotImplementedError

    @staticmethod
    def fingerprint(compile_specs: list[CompileSpec]) -> str | None:
        """Return a text with everything that ``preprocess`` depends on besides its
        arguments, such as the compiler's version.

        The text is stored with each delegate, for the runtime's ``compatible``, and is
        part of a cache's keys. Those keys also have the versions of the backend's own
        package, delegraph and torch, so the text does not need these versions.

        None means that results must not be cached. Return None in three cases: the
        dependencies are not known; ``preprocess`` writes files with these compile
        specs; the result of ``preprocess`` depends on names of nodes or on source lines.
        """
        return None

    @classmethod
    def preprocess_multimethod(
        cls,
        edge_programs: Mapping[str, Sequence[ExportedProgram]],
        compile_specs: Mapping[str, Sequence[list[CompileSpec]]],
    ) -> dict[str, list[PreprocessResult]]:
        """Compile all partitions, and return the results of each method in order.

        The default calls ``preprocess`` for each program. ``compile_specs`` has one
        list for each program. Raises ContractViolation if a method has more or fewer
        lists than programs.
        """
        results: dict[str, list[PreprocessResult]] = {}
        for method, programs in edge_programs.items():
            specs = compile_specs.get(method, ())
            if len(specs) != len(programs):
                raise ContractViolation(
                    "contract-violation",
                    f"{cls.__name__}: method {method!r} has {len(programs)} partitions"
                    f" and {len(specs)} lists of compile specs",
                )
            results[method] = [
                cls.preprocess(program, settings)
                for program, settings in zip(programs, specs, strict=True)
            ]
        return results


def check_called_on_class(cls: type, name: str, arguments: Sequence[str]) -> None:
    """Raise ContractViolation unless ``cls.name`` can be called with as many positional
    arguments as ``arguments`` has names. The error shows these names.
    """
    try:
        # ``bind`` only counts the arguments, so their names serve as values
        inspect.signature(getattr(cls, name)).bind(*arguments)
    except TypeError as e:
        text = (
            f"{cls.__name__}.{name} cannot be called on the class with"
            f" ({', '.join(arguments)})"
        )
        raise ContractViolation(
            "contract-violation", f"{text}: {e}", hint="is @staticmethod missing?"
        ) from e


class DelegateMappingBuilder:
    """Builds a map from delegate debug identifiers to debug handles, for
    ``PreprocessResult.debug_handle_map``.

    One identifier may stand for many nodes (fusion), and several for the same node
    (decomposition). With ``generated_identifiers`` the identifiers are 0, 1, 2, ...;
    otherwise the caller passes each, an int or a str.
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
        """Map an identifier to ``handles``, or to the debug handles of ``nodes``.
        Return the identifier.

        ``identifier``: must be passed, unless the builder generates identifiers; then
        it must not be passed.

        Raises ContractViolation unless exactly one of ``nodes`` and ``handles`` is
        passed, if there is no debug handle, or if ``identifier`` is missing, not wanted
        or in use.
        """
        if (nodes is None) == (handles is None):
            raise ContractViolation(
                "contract-violation",
                "an entry of a delegate mapping takes either nodes or handles",
            )
        if nodes is None:
            listed = _as_list(handles)
        else:
            present = [node for node in _as_list(nodes) if node is not None]
            listed = [node.meta.get("debug_handle") for node in present]
        # None: a node without a debug handle
        known = tuple(sorted({h for h in listed if h is not None}))
        if not known:
            raise ContractViolation(
                "contract-violation",
                "an entry of a delegate mapping needs at least one debug handle",
            )
        key = self._identifier(identifier)
        self._map[key] = known
        return key

    def get_delegate_mapping(self) -> dict[Any, tuple[int, ...]]:
        """Return identifier -> sorted debug handles."""
        return dict(self._map)

    def _identifier(self, identifier: int | str | None) -> int | str:
        """Return the identifier of a new entry: the caller's, or the next number.

        Raises ContractViolation if the caller's identifier is missing, not wanted or in
        use.
        """
        fault = None
        if self._generated and identifier is not None:
            fault = "generates its identifiers"
        elif not self._generated and identifier is None:
            fault = "needs an identifier from you"
        if fault is not None:
            raise ContractViolation(
                "contract-violation", f"this DelegateMappingBuilder {fault}"
            )
        key = len(self._map) if identifier is None else identifier
        if key in self._map:
            raise ContractViolation(
                "contract-violation",
                f"delegate debug identifier {key!r} is used already",
            )
        return key


def _as_list(items: Any) -> list[Any]:
    """Return a collection as a list; anything else as a list with that one item."""
    return list(items) if isinstance(items, (list, tuple, set, frozenset)) else [items]

"""The ``Partitioner`` contract: choosing the nodes that a backend gets (names as in
ExecuTorch).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Union,
    runtime_checkable,
)

from ..backend import CompileSpec

if TYPE_CHECKING:
    import torch
    from torch._ops import OpOverload
    from torch.export import ExportedProgram
    from torch.fx import Node


class _DelegationSpec(NamedTuple):
    backend_id: str
    compile_specs: tuple[CompileSpec, ...]


class DelegationSpec(_DelegationSpec):
    """The backend that a partition goes to (its class's name or its short name), and
    the settings for it.

    Any iterable of settings becomes a tuple. Anything else is kept, and refused when
    the partitioner returns it, by an error that can name the partitioner and the tag.
    """

    __slots__ = ()

    def __new__(
        cls, backend_id: str, compile_specs: Sequence[CompileSpec] = ()
    ) -> DelegationSpec:
        """``compile_specs`` becomes a tuple if it can be iterated; a wrong type is kept
        for the later error.
        """
        specs: Any = (
            tuple(compile_specs)
            if isinstance(compile_specs, Iterable)
            else compile_specs
        )
        return super().__new__(cls, backend_id, specs)


Unless = Union["torch.dtype", Literal["static"], "tuple[int, int]"]
"""The change that would let a backend take a node: a value in this dtype, or fixed
sizes ("static").
"""


class Reason(str):
    """Why a node stays on the host, in the user's terms. A plain str will do wherever a
    Reason is accepted.

    ``hint``: what the user can do about it, in the program, its inputs or an option.
    ``cause``: a key that users do not see. Refusals with the same cause are one row of
    the report, whatever their texts; refusals without a cause are one row if operator
    and text are the same. ``of``: the operand that the reason is about; if that is
    refused for the same cause, both are in one row. ``unless``: the dtype that ``of``
    would have to have, or ``"static"`` for fixed sizes, or the lowest and the highest
    integer of ``of``, an input. The report then asks the backend again, and says how
    many more operators it would take. ``instead``: another hint with another
    ``unless``. The report gives the hint with which the backend takes the most
    operators, the first of several.
    """

    hint: str
    cause: str
    of: Node | None
    unless: Unless | None
    instead: Reason | None

    def __new__(
        cls,
        text: str,
        *,
        hint: str = "",
        cause: str = "",
        of: Node | None = None,
        unless: Unless | None = None,
        instead: Reason | None = None,
    ) -> Reason:
        """Return the text ``text`` with the fields that the class describes."""
        reason = super().__new__(cls, text)
        reason.hint = str(hint)
        reason.cause = str(cause)
        reason.of = of
        reason.unless = unless
        reason.instead = instead
        return reason


@dataclass
class Refusal:
    """A node that stays on the host, and why, in the user's terms.

    ``reason`` may be a ``Reason``, which has a hint for the user. ``final``: the node
    is not to be decomposed either.
    """

    node: Node
    reason: str
    final: bool = False

    @property
    def hint(self) -> str:
        """What the user can do about the refusal; "" if the backend gives no hint."""
        return getattr(self.reason, "hint", "")


@dataclass
class PartitionResult:
    """The tagged program, the backend of each tag, and why other nodes were refused.

    A delegated node has ``node.meta["delegation_tag"]``: a key of ``partition_tags``,
    or, for a constant that several partitions use, a tuple of such keys. Each of these
    gets its own copy, and so does the host if the first entry is None.
    ``boundary_types`` maps names of nodes to the dtype in which that value crosses into
    or out of its delegate. ``refusals`` end up in the report.
    """

    tagged_exported_program: ExportedProgram
    partition_tags: Mapping[str, DelegationSpec]
    boundary_types: Mapping[str, torch.dtype] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)


@runtime_checkable
class Support(Protocol):
    """A backend's answers about single nodes.

    ``begin`` is called first, then ``why_not`` once for each call, in graph order.
    """

    def begin(self, exported_program: ExportedProgram) -> None:
        """Begin with a new program, about whose nodes the next questions are, and
        forget the last one.
        """

    def why_not(self, node: Node) -> str | None:
        """Return why the backend does not take ``node``, in the user's terms; None if
        it does.
        """

    def is_constant(self, node: Node) -> bool:
        """Return whether an accepted node computes a constant, so that each partition
        may have its own copy.
        """

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        """Node -> why the backend refuses it, for refusals that show only when the
        whole partition is known.

        ``nodes``: the calls of one partition, with the calls on constants that they
        need. Every other value that they read arrives at run time. {} if there are no
        such refusals: then the partition should compile, as far as that is known
        without compiling. ``delegraph.engine.extract_partition`` gives the program that
        ``preprocess`` would get.
        """


class Partitioner(ABC):
    """Tags the nodes that a backend takes, and changes nothing else, which the core
    checks.
    """

    support: Support | None = None
    """Answers questions about single nodes, also those of decompositions.

    A partitioner without it (None) sees core ATen, and the operators of its
    ``ops_to_not_decompose``.
    """

    def __init__(self, spec: Mapping[Any, Any] = MappingProxyType({})) -> None:
        self._spec = MappingProxyType(dict(spec))

    def __call__(self, exported_program: ExportedProgram) -> PartitionResult:
        return self.partition(exported_program)

    @property
    def spec(self) -> Mapping[Any, Any]:
        """Return the settings of this partitioner, read-only."""
        return self._spec

    def fingerprint(self, exported_program: ExportedProgram) -> str | None:
        """Return a text with all that the answer of ``partition`` depends on besides
        the program as ``delegraph`` writes it.

        None if that is not known, which is the default. The text has, for example,
        options, versions of other packages, and metadata of tracers that the
        partitioner reads. The code of the partitioner's package, and the versions of
        delegraph and torch, need not be in it: the key of a cached answer has them
        anyway. If the user asks for a cache, answers with a fingerprint are cached. For
        that the program is written as bytes, which pays only if the answer takes far
        longer.
        """
        return None

    def check_settings(self, programs: Mapping[str, ExportedProgram]) -> None:
        """Raise OptionError for a setting that fits none of ``programs``, such as the
        name of an input that none has.

        A lowering calls this before it asks about the first program. ``programs``:
        method -> program, for all methods about which this partitioner will be asked;
        ``partition`` sees one of them at a time.
        """
        return None

    @abstractmethod
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes of ``exported_program`` and say which backend each tag goes to."""

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """Operators that this backend wants whole, and a function that tells for which
        nodes (None: for all).
        """
        return [], None

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        """Transform the functional program before decomposition; only
        ``to_edge_transform_and_lower`` calls this.
        """
        return exported_program

"""The ``Partitioner`` contract: how a backend chooses its nodes.

The names are those of ExecuTorch.
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
    """The fields of ``DelegationSpec``, which adds a constructor."""

    backend_id: str
    compile_specs: tuple[CompileSpec, ...]


class DelegationSpec(_DelegationSpec):
    """The backend of a partition (its class's name or its short name), and settings for
    it.

    Any iterable of settings becomes a tuple. A wrong type is kept until the partitioner
    returns it, so that the error can name the partitioner and the tag.
    """

    __slots__ = ()

    def __new__(
        cls, backend_id: str, compile_specs: Sequence[CompileSpec] = ()
    ) -> DelegationSpec:
        """Make ``compile_specs`` a tuple.

        A value that cannot be iterated is kept as it is; the core reports it later.
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
    """The reason to leave a node to the host, in the user's terms.

    A plain str is accepted wherever a Reason is. For example, ``Reason("x has float64",
    of=x, unless=torch.float32)``.

    ``hint``: advice for the user about the program, its inputs or an option.

    ``cause``: a key that users do not see. Refusals with the same cause are one row of
    the report, even with different texts. Refusals without a cause are one row if
    operator and text are the same.

    ``of``: the operand with the problem. If that operand is a call refused for the same
    cause, both calls are in one row.

    ``unless``: the change of ``of`` that would remove the problem: a dtype,
    ``"static"`` for fixed sizes, or the lowest and the highest integer of an input.
    With it, the report repeats the support check and shows how many more operators the
    backend would take.

    ``instead``: a reason with another ``hint`` and another ``unless``. The report gives
    the hint with which the backend takes the most operators; if several are equal, the
    first of them.
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
    """A node that stays on the host, with a reason in the user's terms.

    ``reason`` may be a ``Reason``, which has a hint for the user. ``final``: the node
    must not be decomposed either.
    """

    node: Node
    reason: str
    final: bool = False

    @property
    def hint(self) -> str:
        """Return advice for the user; "" if the backend gives no hint."""
        return getattr(self.reason, "hint", "")


@dataclass
class PartitionResult:
    """The tagged program, the backend of each tag, and why other nodes were refused.

    A delegated node has ``node.meta["delegation_tag"]``: a key of ``partition_tags``,
    or, for a constant that several partitions use, a tuple of such keys. Each of these
    partitions gets its own copy, and so does the host if the first entry is None.
    ``boundary_types``: name of a node -> the dtype in which its value crosses into or
    out of a delegate. ``refusals`` end up in the report.
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
        """Begin with a new program, and forget the last one."""

    def why_not(self, node: Node) -> str | None:
        """Return the reason to refuse ``node``, in the user's terms, or None."""

    def is_constant(self, node: Node) -> bool:
        """Return whether an accepted node computes a constant.

        If it does, each partition may have its own copy of the node.
        """

    def partition_why_not(self, nodes: Sequence[Node]) -> Mapping[Node, str]:
        """Return node -> reason, for refusals that depend on the whole partition.

        ``nodes``: the calls of one partition, with the calls on constants that they
        need. Every other value that they read arrives at run time. If the result is {},
        the partition should compile, as far as that is known without compiling.
        ``delegraph.engine.extract_partition`` returns the program that ``preprocess``
        would get.
        """


class Partitioner(ABC):
    """Tags the nodes that a backend takes. The core checks that it changes nothing
    else.
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
        """Return a text with everything that ``partition`` depends on besides the
        program. With None, the default, answers of this partitioner are not cached.

        The text contains, for example, options, versions of other packages, and
        metadata of tracers that the partitioner reads. The code of the partitioner's
        package and the versions of delegraph and torch are part of the cache's key
        anyway. Each look-up in the cache writes the program as bytes, so return a text
        only if ``partition`` takes far longer than that.
        """
        return None

    def check_settings(self, programs: Mapping[str, ExportedProgram]) -> None:
        """Raise OptionError for a setting that fits none of ``programs``.

        An example is the name of an input that no program has. A lowering calls this
        method before ``partition``. ``programs``: method -> program, for all
        methods of this partitioner; ``partition`` sees one of them at a time. The
        default accepts all settings.
        """
        return None

    @abstractmethod
    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes of ``exported_program``, and return the backend of each tag."""

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """Return the operators that this backend wants whole, and a filter of nodes.

        The filter returns whether a node of these operators is wanted whole. Without a
        filter (``None``), each of them is. By default, no operator is wanted whole.
        """
        return [], None

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        """Return the functional program, transformed before decomposition.

        The default changes nothing. Only ``to_edge_transform_and_lower`` calls this.
        """
        return exported_program

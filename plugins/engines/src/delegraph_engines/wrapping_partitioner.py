"""``WrappingPartitioner``: gives a backend the partitions of another plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from delegraph.backend import CompileSpec
from delegraph.errors import OptionError
from delegraph.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
    WhyNot,
)
from delegraph.partitioner.check_result import check_partition_result

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.export import ExportedProgram
    from torch.fx import Node


class WrappingPartitioner(Partitioner):
    """Gives ``backend_id`` the partitions that ``inner`` would give its own backend.

    The compile specs of a partition are those of ``inner``, followed by
    ``compile_specs``. All methods call those of ``inner``, which so sees the same
    program as without the wrapper: an operator is decomposed only after ``inner``
    refused it. Raises OptionError if ``inner`` is no partitioner.
    """

    wraps = "inner"

    def __init__(
        self,
        inner: Partitioner,
        backend_id: str,
        compile_specs: Sequence[CompileSpec] = (),
    ) -> None:
        """Wrap ``inner``, and give its partitions to ``backend_id``.

        ``compile_specs``: settings to append.
        """
        if not isinstance(inner, Partitioner):
            text = (
                f"WrappingPartitioner for {backend_id!r} wraps a partitioner, not"
                f" {inner!r}"
            )
            hint = (
                "delegraph.get_partitioner(name, **options) makes that of an installed"
                " backend"
            )
            raise OptionError("option-invalid", text, hint=hint)
        self.inner = inner
        self.backend_id = backend_id
        self.compile_specs = tuple(compile_specs)
        self.support = inner.support

    @property
    def spec(self) -> Mapping[Any, Any]:
        """The ``spec`` of ``inner``."""
        return self.inner.spec

    @property
    def additional_checks(self) -> tuple[WhyNot, ...]:
        """The checks of ``inner``, if it is a ``CapabilityPartitioner``."""
        checks: tuple[WhyNot, ...] = self.inner.additional_checks  # type: ignore[attr-defined]
        return checks

    @additional_checks.setter
    def additional_checks(self, checks: Sequence[WhyNot]) -> None:
        self.inner.additional_checks = tuple(checks)  # type: ignore[attr-defined]

    def check_settings(self, programs: Mapping[str, ExportedProgram]) -> None:
        """Let ``inner`` check its settings."""
        self.inner.check_settings(programs)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """The result of ``inner``, with the partitions sent to ``backend_id``."""
        result = self.inner(exported_program)
        check_partition_result(self.inner, result, exported_program)
        tags = result.partition_tags.items()
        specs = {
            tag: DelegationSpec(
                self.backend_id, (*spec.compile_specs, *self.compile_specs)
            )
            for tag, spec in tags
        }
        return replace(result, partition_tags=specs)

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        """The transform of ``inner``."""
        return self.inner.transform_for_pre_decomposition(exported_program)

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[OpOverload], Callable[[Node], bool] | None]:
        """The operators that ``inner`` wants whole."""
        return self.inner.ops_to_not_decompose(ep)

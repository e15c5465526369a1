"""Checks the types in the result of a partitioner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..backend import CompileSpec
from ..errors import ContractViolation
from .interface import DelegationSpec, Partitioner, PartitionResult, Refusal

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def check_partition_result(
    partitioner: Partitioner, result: Any, program: ExportedProgram
) -> None:
    """Raise ContractViolation if a part of ``result``, returned by ``partitioner`` for
    ``program``, has a wrong type.

    The error names the partitioner, the tag and the value.
    """
    fault = next(_faults(result, program), None)
    if fault is not None:
        raise ContractViolation(
            "contract-violation", f"partitioner {type(partitioner).__name__}{fault}"
        )


def _faults(result: Any, program: ExportedProgram) -> Iterator[str]:
    """Yield the faults in the types of a partitioner's result.

    Each fault is the text that follows the partitioner's name in an error. The helpers
    below yield such texts, too.
    """
    if not isinstance(result, PartitionResult):
        yield f" returned {type(result).__name__}, not a PartitionResult"
    elif not isinstance(result.partition_tags, Mapping):
        kind = type(result.partition_tags).__name__
        yield (
            f": `partition_tags` is to map each tag to a DelegationSpec, and is {kind}"
        )
    elif result.tagged_exported_program is not program:
        yield " returned another program; it is to tag the one that it was given"
    else:
        for tag, spec in result.partition_tags.items():
            yield from _faults_of_tag(tag, spec)
        yield from _faults_of_boundary(result.boundary_types)
        yield from _faults_of_refusals(result.refusals)


def _faults_of_tag(tag: Any, spec: Any) -> Iterator[str]:
    """Yield the faults in one entry of ``partition_tags``: the tag and its ``spec``."""
    if not isinstance(tag, str):
        yield f" returned the tag {tag!r:.80} ({type(tag).__name__}); a tag is a str"
    elif not isinstance(spec, DelegationSpec):
        yield (
            f" returned {type(spec).__name__} for tag {tag!r}; a DelegationSpec is"
            " wanted"
        )
    elif not isinstance(spec.backend_id, str) or not spec.backend_id:
        yield (
            f" returned {_show(spec.backend_id)} as backend_id of tag {tag!r}; the name"
            " of a backend is wanted"
        )
    elif not isinstance(spec.compile_specs, tuple):
        # ``DelegationSpec`` made a tuple of any list, so this is no list either
        yield (
            f" returned {_show(spec.compile_specs)} as compile_specs of tag {tag!r}; a"
            " list of CompileSpec is wanted"
        )
    else:
        for item in spec.compile_specs:
            if not isinstance(item, CompileSpec) or not isinstance(item.key, str):
                yield (
                    f" returned {_show(item)} among the compile_specs of tag {tag!r}; a"
                    " CompileSpec is wanted"
                )


def _faults_of_boundary(types: Any) -> Iterator[str]:
    """Yield the faults in ``types``, the ``boundary_types`` of a result."""
    if not isinstance(types, Mapping):
        yield (
            f" returned {_show(types)} as boundary_types; a dict from names of nodes to"
            " dtypes is wanted"
        )
        return
    for name, dtype in types.items():
        if not isinstance(name, str) or not isinstance(dtype, torch.dtype):
            yield (
                f" returned {_show(dtype)} as boundary type of {name!r:.80}; names are"
                " str, and types torch.dtype"
            )


def _faults_of_refusals(refusals: Any) -> Iterator[str]:
    """Yield the faults in ``refusals``."""
    if not isinstance(refusals, (list, tuple)):
        yield f" returned {_show(refusals)} as refusals; a list of Refusal is wanted"
        return
    for item in refusals:
        if (
            not isinstance(item, Refusal)
            or not isinstance(item.node, Node)
            or not isinstance(item.reason, str)
        ):
            yield (
                f" returned {_show(item)} among its refusals; a Refusal of a node, with"
                " the reason, is wanted"
            )


def _show(value: Any) -> str:
    """Return a value as text, cut to 80 characters, with its type."""
    return f"{value!r:.80} ({type(value).__name__})"

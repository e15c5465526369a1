"""Checks that what a partitioner returned has the types that its contract says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from ..backend import CompileSpec
from ..errors import ContractViolation
from .contract import DelegationSpec, Partitioner, PartitionResult, Refusal

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def check_result(who: Partitioner, result: Any, program: ExportedProgram) -> None:
    """Raise ContractViolation, naming ``who``, the tag and the wrong value, if ``result`` has not the right types."""
    why = _why_not_result(result, program)
    if why is not None:
        raise ContractViolation("contract-violation", f"partitioner {type(who).__name__}{why}")


def _why_not_result(result: Any, program: ExportedProgram) -> str | None:
    if not isinstance(result, PartitionResult):
        return f" returned {type(result).__name__}, not a PartitionResult"
    if not isinstance(result.partition_tags, Mapping):
        given = type(result.partition_tags).__name__
        return f": `partition_tags` is to map each tag to a DelegationSpec, and is {given}"
    if result.tagged_exported_program is not program:
        return " returned another program; it is to tag the one that it was given"
    reasons = (_why_not_tag(tag, spec) for tag, spec in result.partition_tags.items())
    why = next((reason for reason in reasons if reason), None)
    return why or _why_not_boundary(result.boundary_types) or _why_not_refusals(result.refusals)


def _why_not_tag(tag: Any, spec: Any) -> str | None:
    if not isinstance(tag, str):
        return f" returned the tag {tag!r:.80} ({type(tag).__name__}); a tag is a str"
    if not isinstance(spec, DelegationSpec):
        return f" returned {type(spec).__name__} for tag {tag!r}; a DelegationSpec is wanted"
    if not isinstance(spec.backend_id, str) or not spec.backend_id:
        return f" returned {_show(spec.backend_id)} as backend_id of tag {tag!r}; the name of a backend is wanted"
    if not isinstance(spec.compile_specs, tuple):
        return f" returned {_show(spec.compile_specs)} as compile_specs of tag {tag!r}; a list of CompileSpec is wanted"
    for item in spec.compile_specs:
        if not isinstance(item, CompileSpec) or not isinstance(item.key, str):
            return f" returned {_show(item)} among the compile_specs of tag {tag!r}; a CompileSpec is wanted"
    return None


def _why_not_boundary(types: Any) -> str | None:
    if not isinstance(types, Mapping):
        return f" returned {_show(types)} as boundary_types; a dict from names of nodes to dtypes is wanted"
    for name, dtype in types.items():
        if not isinstance(name, str) or not isinstance(dtype, torch.dtype):
            return f" returned {_show(dtype)} as boundary type of {name!r:.80}; names are str, and types torch.dtype"
    return None


def _why_not_refusals(refusals: Any) -> str | None:
    if not isinstance(refusals, (list, tuple)):
        return f" returned {_show(refusals)} as refusals; a list of Refusal is wanted"
    for item in refusals:
        if not isinstance(item, Refusal) or not isinstance(item.node, Node) or not isinstance(item.reason, str):
            return f" returned {_show(item)} among its refusals; a Refusal of a node, with the reason, is wanted"
    return None


def _show(value: Any) -> str:
    return f"{value!r:.80} ({type(value).__name__})"

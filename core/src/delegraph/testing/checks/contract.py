"""The delegation contract: what a backend may touch, and what becomes of what it tagged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ...report import host_calls
from ..attempt import Attempt, Phase
from ..check import CheckFailed, CheckSkipped, Figures, check
from ..subject import Subject


@check
def input_program_unmodified(subject: Subject) -> Figures:
    """The caller's program is left as it was: its graph, its metadata, and the values of its tensors."""
    programs = 0
    for program in subject.programs:
        try:
            exported, inputs = program.exported()
        except Exception:  # a limit of torch.export
            continue
        kept = _Exported(program, exported, inputs)
        before = _account(exported, inputs)
        subject.attempt(kept)  # type: ignore[arg-type]
        changed = [what for what, state in _account(exported, inputs).items() if before.get(what) != state]
        programs += 1
        if changed:
            text = f"lowering changed {changed[0]} of the caller's program"
            advice = "copy what you change: graphs and meta dictionaries are yours, what they refer to is not"
            raise CheckFailed(text, program, advice, more=changed[1:])
    return {"programs": programs}


class _Exported:
    """A program that is exported already, in the place of one that is exported for each attempt."""

    def __init__(self, program: Any, exported: ExportedProgram, inputs: tuple[Any, ...]) -> None:
        self.name, self.source, self.made = program.name, program.source, (exported, inputs)

    def exported(self, dynamic: bool = False) -> tuple[ExportedProgram, tuple[Any, ...]]:
        return self.made


def _account(program: ExportedProgram, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """What can be changed, by name, as plain values."""
    account: dict[str, Any] = {"the signature": repr(program.graph_signature), "the number of nodes": 0}
    for node in program.graph.nodes:
        account["the number of nodes"] += 1
        account[f"the call of {node.name}"] = (node.op, str(node.target), repr(node.args), repr(node.kwargs))
        for key, value in node.meta.items():
            account[f"meta[{key!r}] of {node.name}"] = _plain(value)
    tensors = {**program.state_dict, **program.constants}
    tensors |= {f"input {k}": v for k, v in enumerate(pytree.tree_leaves(inputs))}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor):
            account[f"the values of {name}"] = _values(tensor)
            account[f"the version of {name}"] = (tensor._version, tensor.data_ptr())
    return account


def _values(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (
        tensor.dtype,
        tuple(tensor.shape),
        tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),
    )


def _plain(value: Any) -> Any:
    """A description that changes when the value, or what it holds, is changed."""
    if isinstance(value, torch.Tensor):
        return id(value), value.dtype, str(value.shape), str(value.stride())
    if isinstance(value, Mapping):
        return tuple((str(k), _plain(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(_plain(v) for v in value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else id(value)


@check
def only_tagged_nodes_lowered(subject: Subject) -> Figures:
    """What the partitioner tagged is delegated, nothing else is, and the rest of the graph stays as it was."""
    nodes = 0
    for one in subject.samples:
        why = _difference(one)
        if why is not None:
            advice = "a partitioner sets meta['delegation_tag'] of the nodes that it wants, and changes nothing else"
            raise CheckFailed(why, one.program, advice)
        nodes += len(one.calls)
    if not subject.samples:
        raise CheckSkipped("none of the sample programs could be exported")
    return {"programs": len(subject.samples), "calls": nodes}


def _difference(one: Attempt) -> str | None:
    if one.phase is Phase.CONTRACT:
        return f"the delegation contract was broken: {one.error}"
    if one.recording.changed:
        return f"the partitioner changed {one.recording.changed[0]}"
    if one.lowered is None:
        return None
    tagged = {n.meta["debug_handle"] for n in one.calls if n.meta.get("delegation_tag")}
    lowered = {n.meta["debug_handle"] for d in one.lowered.delegates for n in d.nodes}
    unpacking = {n.meta["debug_handle"] for n in one.calls if getattr(n.target, "__name__", "") == "getitem"}
    if lowered - unpacking != tagged - unpacking:
        odd = (lowered ^ tagged) - unpacking
        names = [n.name for n in one.calls if n.meta["debug_handle"] in odd]
        return f"tagged and delegated nodes differ: {', '.join(names)}"
    left = {_call(n) for n in one.calls if n.meta["debug_handle"] not in tagged | unpacking}
    there = {_call(n) for n in host_calls(one.lowered.exported_program().graph.nodes)}
    there = {c for c in there if c[0] not in unpacking}
    return f"the host's part of the graph changed: {sorted(left ^ there)[0]}" if left != there else None


def _call(node: Node) -> tuple[Any, str, str]:
    """A call without what names its operands, which are others once their producers are delegated."""
    literals = pytree.tree_map(lambda a: "node" if isinstance(a, Node) else repr(a), (node.args, node.kwargs))
    return node.meta["debug_handle"], str(node.target), str(literals)

"""What tells that training mode makes a difference: to a module, and to a program that was exported in it.

Of a program, torch keeps no mark of it but arguments of some calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from ..source import source_of
from .call_names import operator_name
from .schema import bound_arguments
from .subgraphs import all_nodes

_MODES = ("train", "training", "use_input_stats", "dropout_p")
"""What torch calls the argument that a module in training mode sets: to True, or to a chance above 0."""


def training_note(program: ExportedProgram) -> str | None:
    """Which calls of a program behave as in training, and what to do; None if there are none."""
    calls = [n for n in all_nodes(program.graph_module) if _is_in_training(n)]
    if not calls:
        return None
    counted = Counter(operator_name(node) for node in calls)
    source = source_of(calls[0])
    where = f" (first at {source.place})" if source else ""
    listed = ", ".join(f"{count} x {name}" for name, count in counted.items())
    text = f"exported in training mode{where}: {listed} drop values at random, or normalize by the statistics of their"
    return f"{text} batch; call model.eval() before torch.export.export, unless that is what you want"


def _is_in_training(node: Node) -> bool:
    if not isinstance(node.target, OpOverload) or not _has_mode(node.target):
        return False
    given = bound_arguments(node)
    if not any(given.get(name) for name in _MODES):
        return False
    # A norm without running statistics computes with those of the batch in evaluation, too, and an LSTM without dropout
    # is the same in both modes.
    by_batch = "running_mean" in given and given["running_mean"] is None
    return not by_batch and given.get("dropout", given.get("p")) != 0


@cache
def _has_mode(op: OpOverload) -> bool:
    return any(argument.name in _MODES for argument in op._schema.arguments)


def reads_mode(module: torch.nn.Module) -> bool:
    """Whether what a module computes may depend on ``training``: its code says so, or cannot be read.

    Dropout and norms do, and what calls their functions with ``self.training``; a wrapper around them does not.
    """
    if isinstance(module, torch.jit.ScriptModule):
        return True
    own = getattr(vars(module).get("forward"), "__code__", None)
    return _class_reads_mode(type(module)) or (own is not None and "training" in _names(own))  # type: ignore[arg-type]


_NOT_COMPUTING = {"train", "eval", "__repr__", "extra_repr"}


@cache
def _class_reads_mode(cls: type) -> bool:
    own = (c for c in cls.__mro__ if issubclass(c, torch.nn.Module) and c is not torch.nn.Module)
    functions = (f for c in own for name, f in vars(c).items() if name not in _NOT_COMPUTING)
    return any("training" in _names(code) for f in functions if (code := _code_of(f)) is not None)


def _code_of(function: Any) -> CodeType | None:
    function = getattr(function, "__func__", None) or getattr(function, "fget", None) or function
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


def _names(code: CodeType) -> Iterator[str]:
    """What the code of a function names, that of functions in it included; strings too, as ``getattr`` takes them."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield constant

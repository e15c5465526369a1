"""Decides whether training mode affects a module, or a program exported in it.

torch marks neither. A module is judged by its code, a program by the arguments of some
calls.
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

from .call_names import operator_name
from .higher_order_subgraphs import all_nodes
from .operator_schema import bound_arguments
from .source_line import source_of

_MODES = ("train", "training", "use_input_stats", "dropout_p")
"""Arguments that are True, or a probability above 0, in training mode."""


def training_note(program: ExportedProgram) -> str | None:
    """Return a note on calls that behave as in training, or None if there are none."""
    calls = [n for n in all_nodes(program.graph_module) if _is_in_training(n)]
    if not calls:
        return None
    counted = Counter(operator_name(node) for node in calls)
    source = source_of(calls[0])
    where = f" (first at {source.place})" if source else ""
    names = ", ".join(f"{count} x {name}" for name, count in counted.items())
    return (
        f"exported in training mode{where}: {names} drop values at random, or normalize"
        " by the statistics of their batch; call model.eval() before"
        " torch.export.export, unless training is intended"
    )


def _is_in_training(node: Node) -> bool:
    """Return whether a call drops random values, or uses the statistics of its batch."""
    if not isinstance(node.target, OpOverload) or not _has_mode(node.target):
        return False
    arguments = bound_arguments(node)
    if not any(arguments.get(name) for name in _MODES):
        return False
    # A norm without running statistics uses those of the batch in evaluation, too.
    if "running_mean" in arguments and arguments["running_mean"] is None:
        return False
    # With probability 0, a dropout is the same in both modes. Dropouts call the
    # probability ``p``; recurrent layers, with a dropout between layers, ``dropout``.
    return arguments.get("dropout", arguments.get("p")) != 0


@cache
def _has_mode(op: OpOverload) -> bool:
    """Return whether the operator has an argument for training mode."""
    return any(argument.name in _MODES for argument in op._schema.arguments)


def reads_mode(module: torch.nn.Module) -> bool:
    """Return whether the code of a module reads its attribute ``training``.

    True for dropout, for norms, and for a module that passes ``self.training`` to a
    function; not for a wrapper around such modules. True also for a ScriptModule,
    because its code cannot be read.
    """
    kind: Any = type(module)
    if isinstance(module, torch.jit.ScriptModule) or _class_reads_mode(kind):
        return True
    # an object may have a ``forward`` of its own in place of its class's
    code = getattr(vars(module).get("forward"), "__code__", None)
    return code is not None and "training" in _names(code)


_NOT_COMPUTING = {"train", "eval", "__repr__", "extra_repr"}
"""Methods that may read ``training`` and do not change the results of the module."""


@cache
def _class_reads_mode(cls: type) -> bool:
    """Return whether a method of a class or its bases names ``training``."""
    for base in cls.__mro__:
        if not issubclass(base, torch.nn.Module) or base is torch.nn.Module:
            continue
        for name, attribute in vars(base).items():
            code = None if name in _NOT_COMPUTING else _code_of(attribute)
            if code is not None and "training" in _names(code):
                return True
    return False


def _code_of(function: Any) -> CodeType | None:
    """Return the code of a function, method, property or decorated function, or None."""
    function = (
        getattr(function, "__func__", None)
        or getattr(function, "fget", None)
        or function
    )
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names and strings in a code object and in functions defined in it.

    Strings, because ``getattr`` takes names as strings.
    """
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str):
            yield constant

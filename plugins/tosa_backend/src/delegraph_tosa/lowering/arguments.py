"""Finds and replaces the values among the arguments of a rule, also in lists."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from ..ir.graph import Value
from ..ir.types import DType, Type


def has_dtype(dtypes: Collection[DType], arguments: Iterable[Any]) -> bool:
    """Return whether an argument, or an element of a list, has one of these types."""
    for argument in arguments:
        if isinstance(argument, Value):
            if argument.type.dtype in dtypes:
                return True
        elif isinstance(argument, (list, tuple)) and has_dtype(dtypes, argument):
            return True
    return False


def map_values(argument: Any, function: Callable[[Value], Value]) -> Any:
    """Apply ``function`` to each value in an argument of a rule, also in lists."""
    if isinstance(argument, Value):
        return function(argument)
    # a Type is a tuple, but not a list of arguments
    if isinstance(argument, (list, tuple)) and not isinstance(argument, Type):
        return [map_values(part, function) for part in argument]
    return argument

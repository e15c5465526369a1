"""Names for the targets of a program's calls.

Operators with their schemas, higher-order operators, functions of numbers.
"""

from __future__ import annotations

import math
import operator
import re
from functools import cache
from typing import Any

import torch
from delegraph.errors import FormatError
from delegraph_programs.exported_program import CALL_DELEGATE
from torch._ops import HigherOrderOperator, OpOverload

from .arguments import read, written
from .sizes import NoForm, SymbolsRead, SymbolsWritten

_OF_OPERATOR = """getitem add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor not_ lshift
    rshift""".split()
_FUNCTIONS: dict[str, Any] = {
    **{f"operator.{name}": getattr(operator, name) for name in _OF_OPERATOR},
    **{
        f"math.{name}": getattr(math, name)
        for name in ("ceil", "floor", "trunc", "sqrt")
    },
    **{
        f"torch.{name}": getattr(torch, name)
        for name in dir(torch)
        if re.fullmatch(r"_?sym_[a-z]+", name)
    },
    **{f"builtins.{function.__name__}": function for function in (round, max, min)},
}
"""Functions of Python and torch that calls of symbolic numbers call, by name."""
_FUNCTION_NAMES = {function: name for name, function in _FUNCTIONS.items()}
_SCHEMA = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)(?:\.(\w+))?\(")
"""How a schema begins: namespace, name, and the overload unless it is the default one.
"""


@cache
def name_of(target: Any) -> str:
    """The form's name for an operator or function; an ATen operator's is its schema.

    Raises NoForm if it has none.
    """
    if isinstance(target, OpOverload):
        return str(target._schema)
    if isinstance(target, HigherOrderOperator) and target is not CALL_DELEGATE:
        return f"higher_order.{target._name}"
    if target in _FUNCTION_NAMES:
        return _FUNCTION_NAMES[target]
    raise NoForm(f"the form has no words for a call of {target}")


@cache
def target_of(name: str) -> Any:
    """The inverse of ``name_of``.

    Raises FormatError if this torch lacks the operator, or has another schema.
    """
    match = _SCHEMA.match(name)
    target = _FUNCTIONS.get(name)
    if match:
        packet = getattr(getattr(torch.ops, match[1]), match[2], None)
        target = getattr(packet, match[3] or "default", None)
    elif name.startswith("higher_order."):
        target = torch._ops._higher_order_ops.get(name.removeprefix("higher_order."))
    if (
        target is None
        or target is CALL_DELEGATE
        or (match and not isinstance(target, OpOverload))
    ):
        text = (
            f"the program calls {name.split('(')[0]!r:.200}, which torch here does not"
            " have"
        )
        raise FormatError(
            "format-invalid", text, hint="import the module that registers it first"
        )
    if match and str(target._schema) != name:
        text = (
            f"the program calls {name}, and torch {torch.__version__} has"
            f" {target._schema}"
        )
        raise FormatError(
            "format-invalid", text, hint="read it with the torch that wrote it"
        )
    return target


@cache
def convention_of(op: OpOverload) -> tuple[list[str], list[Any], int, int]:
    """Of an operator's arguments: their names, their defaults as ``written`` gives
    them, and two counts.

    The first count: how many are positional. The second: how many come up to the last
    one without a default, itself included; a call has to pass these.
    """
    arguments = op._schema.arguments
    no_symbols = SymbolsWritten(())
    defaults = [written(a.default_value, {}, no_symbols, flat=True) for a in arguments]
    required = max(
        (k + 1 for k, a in enumerate(arguments) if not a.has_default_value()), default=0
    )
    return (
        [a.name for a in arguments],
        defaults,
        sum(not a.kwarg_only for a in arguments),
        required,
    )


def call_of(
    op: OpOverload, forms: list[Any], nodes: Any, symbols: SymbolsRead
) -> tuple[tuple[Any, ...], Any]:
    """The positional and keyword arguments of a call of ``op``, as torch.export would
    have them.

    ``forms``: the form of every argument, in the schema's order. ``nodes``: the earlier
    nodes by number, and ``symbols``: those of the program, which the forms refer to.
    Arguments that equal the schema's defaults are left out where that is possible.
    Raises FormatError if the count of arguments is wrong.
    """
    names, defaults, positional, required = convention_of(op)
    if len(forms) != len(names):
        raise FormatError(
            "format-invalid",
            f"a call of {op} has {len(forms)} arguments of {len(names)}",
        )
    # positions of the arguments to pass; types are compared too, since Python takes 1
    # and True for equal
    pairs = enumerate(zip(forms, defaults, strict=True))
    passed = [
        k for k, (a, b) in pairs if k < required or type(a) is not type(b) or a != b
    ]
    # positional arguments can be left out only at the end
    end = max((k + 1 for k in passed if k < positional), default=0)
    args = tuple(read(v, nodes, symbols) for v in forms[:end])
    return args, {
        names[k]: read(forms[k], nodes, symbols) for k in passed if k >= positional
    }

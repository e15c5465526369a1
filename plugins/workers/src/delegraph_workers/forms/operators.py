"""Name the targets of a program's calls.

Targets are operators with schemas, higher-order operators, and functions of numbers.
"""

from __future__ import annotations

import builtins
import math
import operator
import re
from functools import cache
from typing import Any, NamedTuple

import torch
from delegraph.errors import FormatError
from delegraph_programs.exported_program import CALL_DELEGATE
from torch._ops import HigherOrderOperator, OpOverload

from .arguments import read, written
from .sizes import NoForm, SymbolsRead, SymbolsWritten

_NAMES_BY_MODULE = {
    operator: "getitem add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt"
    " ge and_ or_ xor not_ lshift rshift".split(),
    math: ["ceil", "floor", "trunc", "sqrt"],
    builtins: ["round", "max", "min"],
    torch: [name for name in dir(torch) if re.fullmatch(r"_?sym_[a-z]+", name)],
}
_FUNCTIONS: dict[str, Any] = {}
"""Functions of Python and torch for symbolic numbers, by name."""
for _module, _names in _NAMES_BY_MODULE.items():
    for _name in _names:
        _FUNCTIONS[f"{_module.__name__}.{_name}"] = getattr(_module, _name)
_FUNCTION_NAMES = {function: name for name, function in _FUNCTIONS.items()}
_SCHEMA = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)(?:\.(\w+))?\(")
"""The beginning of a schema: namespace, name, and any overload but the default."""


@cache
def name_of(target: Any) -> str:
    """Return the form's name for an operator or function: an ATen operator has its
    schema.

    Raises NoForm if it has none.
    """
    if isinstance(target, OpOverload):
        return str(target._schema)
    if isinstance(target, HigherOrderOperator) and target is not CALL_DELEGATE:
        return f"higher_order.{target._name}"
    if target in _FUNCTION_NAMES:
        return _FUNCTION_NAMES[target]
    raise NoForm(f"it has a call of {target}")


@cache
def target_of(name: str) -> Any:
    """Return the operator or function with a name; the inverse of ``name_of``.

    Raises FormatError if this torch lacks the operator, or has another schema.
    """
    match = _SCHEMA.match(name)
    target: Any = _FUNCTIONS.get(name)
    if match:
        packet = getattr(getattr(torch.ops, match[1]), match[2], None)
        target = getattr(packet, match[3] or "default", None)
    elif name.startswith("higher_order."):
        target = torch._ops._higher_order_ops.get(name.removeprefix("higher_order."))
    is_missing = target is None or target is CALL_DELEGATE
    if is_missing or (match and not isinstance(target, OpOverload)):
        raise FormatError(
            "format-invalid",
            f"the program calls {name.split('(')[0]!r:.200}, which the torch of this"
            " process lacks",
            hint="import the module that registers it first",
        )
    if match and str(target._schema) != name:
        raise FormatError(
            "format-invalid",
            f"the program calls {name}, but torch {torch.__version__} has"
            f" {target._schema}",
            hint="read it with the torch that wrote it",
        )
    return target


class Convention(NamedTuple):
    """The arguments of an operator.

    ``defaults`` are forms (``written``). A call must pass the first ``required``
    arguments: up to the last one without a default.
    """

    names: list[str]
    defaults: list[Any]
    positional: int
    required: int


@cache
def convention_of(op: OpOverload) -> Convention:
    """Return the arguments of an operator."""
    arguments = op._schema.arguments
    no_symbols = SymbolsWritten(())
    required = 0
    for k, argument in enumerate(arguments, start=1):
        if not argument.has_default_value():
            required = k
    return Convention(
        names=[a.name for a in arguments],
        defaults=[
            written(a.default_value, {}, no_symbols, flat=True) for a in arguments
        ],
        positional=sum(not a.kwarg_only for a in arguments),
        required=required,
    )


def call_of(
    op: OpOverload, forms: list[Any], nodes: Any, symbols: SymbolsRead
) -> tuple[tuple[Any, ...], Any]:
    """Return the positional and keyword arguments of a call, as torch.export has them.

    ``forms``: the form of every argument, in the schema's order. They refer to earlier
    ``nodes`` by number, and to ``symbols`` of the program. Arguments that equal the
    schema's defaults are left out if possible. Raises FormatError for a wrong number of
    arguments.
    """
    convention = convention_of(op)
    if len(forms) != len(convention.names):
        raise FormatError(
            "format-invalid",
            f"a call of {op} has {len(forms)} arguments, not {len(convention.names)}",
        )
    passed = [
        k
        for k, (form, default) in enumerate(
            zip(forms, convention.defaults, strict=True)
        )
        if k < convention.required or _differ(form, default)
    ]
    # positional arguments can be left out only at the end
    by_position = [k for k in passed if k < convention.positional]
    end = by_position[-1] + 1 if by_position else 0
    args = tuple(read(form, nodes, symbols) for form in forms[:end])
    kwargs = {
        convention.names[k]: read(forms[k], nodes, symbols)
        for k in passed
        if k >= convention.positional
    }
    return args, kwargs


def _differ(a: Any, b: Any) -> bool:
    """Return whether two forms differ; to Python, 1 and True are equal."""
    return type(a) is not type(b) or a != b

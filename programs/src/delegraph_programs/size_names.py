"""Replaces torch's symbols for sizes, such as ``s77``, by names that users know."""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch
from torch._guards import detect_fake_mode
from torch.fx import Node

__all__ = ["named", "names_of_symbols"]


def named(text: object, nodes: list[Node]) -> str:
    """Replace torch's symbols in ``text`` by user names; ``nodes`` are the inputs."""
    names = {str(symbol): name for symbol, name in names_of_symbols(nodes).items()}
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(text))


def names_of_symbols(nodes: list[Node]) -> dict[sympy.Symbol, str]:
    """Return symbol -> the name of its Dim, or else of an input's size: ``x.size(0)``.

    ``nodes`` are the program's inputs, in order; the first input with that size gives
    the name. Symbols that are neither a Dim nor such a size are left out.
    """
    mode = detect_fake_mode([n.meta.get("val") for n in nodes if n.op == "placeholder"])
    environment: Any = None if mode is None else mode.shape_env
    dims = {} if environment is None else _names_of_dims(environment)
    if environment is not None and environment.var_to_range.keys() <= dims.keys():
        return dims  # every symbol is a Dim, so the inputs need not be searched
    names: dict[sympy.Symbol, str] = {}
    for node in nodes:
        value = node.meta.get("val")
        sizes = {node.name: value}
        if isinstance(value, torch.Tensor):
            sizes = {f"{node.name}.size({d})": n for d, n in enumerate(value.shape)}
        for name, size in sizes.items():
            expression = size.node.expr if isinstance(size, torch.SymInt) else None
            if isinstance(expression, sympy.Symbol):
                names.setdefault(expression, name)
    return names | dims


def _names_of_dims(environment: Any) -> dict[sympy.Symbol, str]:
    """Return symbol -> the name that the user gave its Dim.

    torch keeps these names by the source of a size, such as ``L['x'].size()[0]``.
    """
    name_of_source: dict[str, str] = dict(
        getattr(environment, "source_name_to_debug_name", {})
    )
    symbols = getattr(environment, "source_to_var", {})
    # If all inputs have multiples of a Dim, and none the Dim itself, then the source of
    # the Dim is its name.
    name_of_source |= {name: name for name in symbols if name.isidentifier()}
    # if torch found two symbols to be equal, ``replace`` returns the remaining one
    names = {
        environment.replace(symbols[source]): name
        for source, name in name_of_source.items()
        if source in symbols
    }
    return {
        symbol: name
        for symbol, name in names.items()
        if isinstance(symbol, sympy.Symbol)
    }

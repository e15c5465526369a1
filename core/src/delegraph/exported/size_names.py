"""Names that people understand for the sizes that torch calls ``s77``, or ``u0`` where data decides them."""

from __future__ import annotations

import re
from typing import Any

import sympy
import torch
from torch._guards import detect_fake_mode
from torch.fx import Node

__all__ = ["named", "names_of_symbols"]


def named(text: object, nodes: list[Node]) -> str:
    """``text``, a size or a shape in torch's symbols, with the names that people know. ``nodes`` are the inputs."""
    names = {str(symbol): name for symbol, name in names_of_symbols(nodes).items()}
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), str(text))


def names_of_symbols(nodes: list[Node]) -> dict[sympy.Symbol, str]:
    """Symbol -> the name of its Dim, or else of the value that has it first: ``x.size(0)``."""
    mode = detect_fake_mode([n.meta.get("val") for n in nodes if n.op == "placeholder"])
    environment: Any = None if mode is None else mode.shape_env
    dims = {} if environment is None else _names_of_dims(environment)
    if environment is not None and environment.var_to_range.keys() <= dims.keys():
        return dims  # looking at the sizes of all values takes a while
    names: dict[sympy.Symbol, str] = {}
    for node in nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol):
            names.setdefault(value.node.expr, node.name)
        for d, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol):
                names.setdefault(size.node.expr, f"{node.name}.size({d})")
    return names | dims


def _names_of_dims(environment: Any) -> dict[sympy.Symbol, str]:
    """Symbol -> the name that the user gave its Dim.

    Torch keeps these by the source of a size: ``L['x'].size()[0]``.
    """
    given: dict[str, str] = dict(getattr(environment, "source_name_to_debug_name", {}))
    symbols = getattr(environment, "source_to_var", {})
    given |= {name: name for name in symbols if name.isidentifier()}  # Dims of which inputs have only multiples
    found = {environment.replace(symbols[source]): name for source, name in given.items() if source in symbols}
    return {symbol: name for symbol, name in found.items() if isinstance(symbol, sympy.Symbol)}

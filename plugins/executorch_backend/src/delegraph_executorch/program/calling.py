"""Read a method's container: facts about delegates, and names and ranges of inputs.

A container is JSON text that ExecuTorch's runtimes ignore. It may be damaged, or come
from another tool: then the facts are missing. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from delegraph.io.escape_for_terminal import printable

from .pte_tables import ContainerMetadata

_LONGEST = 500
"""The most characters of a name."""
_MOST_FACTS = 100
"""The most facts of a delegate."""


def delegate_outputs(container: ContainerMetadata | None) -> list[int] | None:
    """Return the number of outputs of each delegate of a method; None if unknown."""
    listed = _list(_outputs(container), "delegate_outputs")
    if not listed or not all(type(n) is int and n >= 0 for n in listed):
        return None
    return listed


def producers(container: ContainerMetadata | None) -> list[str]:
    """Return the name and version of the distribution that made each delegate.

    Empty if the file does not name them; "" for an entry that is no text.
    """
    return _texts(container, "producers")


def fingerprints(container: ContainerMetadata | None) -> list[str]:
    """Return the fingerprint that the backend of each delegate made.

    Empty if the file has none; "" for an entry that is no text.
    """
    return _texts(container, "fingerprints")


def delegate_facts(container: ContainerMetadata | None) -> list[dict[str, str]]:
    """Return the facts that the backend of each delegate reported, by name."""
    listed = _list(_outputs(container), "facts") or []
    return [
        _printable_facts(by_name) if isinstance(by_name, dict) else {}
        for by_name in listed
    ]


def _printable_facts(facts: dict[str, Any]) -> dict[str, str]:
    """Return the facts that are strings, shortened and printable."""
    found = {}
    for name, text in islice(facts.items(), _MOST_FACTS):
        if isinstance(text, str):
            found[printable(name[:_LONGEST])] = printable(text[:_LONGEST])
    return found


def _texts(container: ContainerMetadata | None, key: str) -> list[str]:
    """Return the text under ``key`` for each delegate.

    If the file has one string in place of a list, it applies to every delegate.
    """
    outputs = _outputs(container)
    common = outputs.get(key)
    if isinstance(common, str):
        count = len(_list(outputs, "delegate_outputs") or ())
        return [printable(common[:_LONGEST])] * count
    listed = _list(outputs, key) or []
    return [
        printable(text[:_LONGEST]) if isinstance(text, str) else "" for text in listed
    ]


def input_names(container: ContainerMetadata | None, count: int) -> list[str]:
    """Return the names of the flat inputs, such as ``x`` or ``pair['a']``.

    The names are empty if the file does not have them.
    """
    names: list[str] = []
    try:
        content = json.loads(container.inputs) if container is not None else {}
        # {"tuple": [ARGUMENTS, KEYWORD ARGUMENTS]}
        args, kwargs = content["structure"]["tuple"]
        positional = zip(content["names"], args["tuple"], strict=False)
        for name, structure in (*positional, *kwargs["dict"]):
            leaves = _leaf_names(str(name), structure)
            # A hostile file may have many leaves. Stop at one more than ``count``: the
            # names do not fit then.
            names += islice(leaves, count + 1 - len(names))
    except (ValueError, TypeError, LookupError, RecursionError):
        names = []
    if len(names) != count:
        return [""] * count
    return [printable(name) for name in names]


def input_ranges(
    container: ContainerMetadata | None, count: int
) -> dict[int, tuple[int, int]]:
    """Return the lowest and highest integer that an input may hold, by its position."""
    return _ranges(container, count, "within")


def index_ranges(
    container: ContainerMetadata | None, count: int
) -> dict[int, tuple[int, int]]:
    """Return the lowest and highest valid index in an input, by the input's position.

    For other indices, eager PyTorch raises an error.
    """
    return _ranges(container, count, "indexed")


def _ranges(
    container: ContainerMetadata | None, count: int, key: str
) -> dict[int, tuple[int, int]]:
    """Return the ranges under ``key`` by position; empty if one is damaged."""
    try:
        rows = json.loads(container.inputs)[key] if container is not None else []
        listed = {k: (low, high) for k, low, high in rows}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    found = {}
    for k, ends in listed.items():
        if not all(type(number) is int for number in (k, *ends)):
            return {}
        if 0 <= k < count:
            found[k] = ends
    return found


def _leaf_names(name: str, structure: Any) -> Iterator[str]:
    """Yield the names of the leaves of an argument, such as ``pair['a']``.

    ``structure`` is "*" for a leaf, else ``{kind: children}``.
    """
    # cut the name first: the names of all children contain it
    name = name[:_LONGEST]
    if structure == "*":
        yield name
        return
    [(kind, content)] = dict(structure).items()
    if kind == "dict":
        parts = [(f"[{key!r}]", child) for key, child in content]
    elif kind == "named":
        parts = [(f".{field}", child) for field, child in content[1]]
    else:
        parts = [(f"[{k}]", child) for k, child in enumerate(content)]
    for part, child in parts:
        yield from _leaf_names(name + part, child)


def _outputs(container: ContainerMetadata | None) -> dict[str, Any]:
    """Return the JSON object ``container.outputs``; empty if it is damaged."""
    try:
        content = json.loads(container.outputs) if container is not None else None
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _list(outputs: dict[str, Any], key: str) -> list[Any] | None:
    """Return the list under ``key``; None if there is none."""
    listed = outputs.get(key)
    return listed if isinstance(listed, list) else None

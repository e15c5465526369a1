"""What the text of a method's container says: of its delegates, and what callers call
the inputs. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from delegraph.io.escape import printable

from .tables import ContainerMetadata

_LONGEST = 500
"""Characters of a name."""
_MOST_FACTS = 100
"""Facts of a delegate that are read."""


def delegate_outputs(container: ContainerMetadata | None) -> list[int] | None:
    """How many outputs each delegate of a method has; None if the file does not say."""
    listed = _list(_outputs(container), "delegate_outputs")
    return listed if all(type(n) is int and n >= 0 for n in listed or [None]) else None


def producers(container: ContainerMetadata | None) -> list[str]:
    """What made each delegate of a method, with its version; empty if the file does not
    say, "" for what is no text.
    """
    return _texts(container, "producers")


def fingerprints(container: ContainerMetadata | None) -> list[str]:
    """What the backend of each delegate of a method said that it depends on; read as
    ``producers`` are.
    """
    return _texts(container, "fingerprints")


def delegate_facts(container: ContainerMetadata | None) -> list[dict[str, str]]:
    """Return the facts that the backend of each delegate reported, by name; an empty
    list if the file has none.
    """
    listed = _list(_outputs(container), "facts") or []
    return [
        _printable_facts(by_name) if isinstance(by_name, dict) else {}
        for by_name in listed
    ]


def _printable_facts(facts: dict[str, Any]) -> dict[str, str]:
    return {
        printable(name[:_LONGEST]): printable(text[:_LONGEST])
        for name, text in islice(facts.items(), _MOST_FACTS)
        if isinstance(text, str)
    }


def _texts(container: ContainerMetadata | None, key: str) -> list[str]:
    """A text of each delegate. In place of a list, one text is that of all of them."""
    outputs = _outputs(container)
    common = outputs.get(key)
    if isinstance(common, str):
        return [printable(common[:_LONGEST])] * len(
            _list(outputs, "delegate_outputs") or ()
        )
    listed = _list(outputs, key) or []
    return [
        printable(text[:_LONGEST]) if isinstance(text, str) else "" for text in listed
    ]


def input_names(container: ContainerMetadata | None, count: int) -> list[str]:
    """What a caller calls each of the flat inputs: ``x``, ``pair['a']``; empty names if
    the file does not say.
    """
    try:
        content = json.loads(container.inputs) if container is not None else {}
        args, kwargs = content["structure"]["tuple"]
        roots = [*zip(content["names"], args["tuple"], strict=False), *kwargs["dict"]]
        leaves = (
            name for root, encoded in roots for name in _leaf_names(str(root), encoded)
        )
        names = list(islice(leaves, count + 1))
    except (ValueError, TypeError, LookupError, RecursionError):
        names = []
    return [printable(name) for name in names] if len(names) == count else [""] * count


def input_ranges(
    container: ContainerMetadata | None, count: int
) -> dict[int, tuple[int, int]]:
    """Position of a flat input -> the lowest and the highest integer that it may hold,
    as far as the file says it.
    """
    return _ranges(container, count, "within")


def index_ranges(
    container: ContainerMetadata | None, count: int
) -> dict[int, tuple[int, int]]:
    """Return the range of each flat input with indices, by its position; outside of it,
    eager raises an error.
    """
    return _ranges(container, count, "indexed")


def _ranges(
    container: ContainerMetadata | None, count: int, key: str
) -> dict[int, tuple[int, int]]:
    try:
        rows = json.loads(container.inputs)[key] if container is not None else []
        listed = {k: (low, high) for k, low, high in rows}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    known = all(type(n) is int for k, ends in listed.items() for n in (k, *ends))
    return {k: ends for k, ends in listed.items() if 0 <= k < count} if known else {}


def _leaf_names(name: str, encoded: Any) -> Iterator[str]:
    name = name[:_LONGEST]  # all that is below has it in its own
    if encoded == "*":
        yield name
        return
    [(kind, content)] = dict(encoded).items()
    if kind == "dict":
        parts = [(f"[{key!r}]", child) for key, child in content]
    elif kind == "named":
        parts = [(f".{field}", child) for field, child in content[1]]
    else:
        parts = [(f"[{k}]", child) for k, child in enumerate(content)]
    for part, child in parts:
        yield from _leaf_names(name + part, child)


def _outputs(container: ContainerMetadata | None) -> dict[str, Any]:
    """What the text of the outputs says; nothing for a text that is not of our form."""
    try:
        content = json.loads(container.outputs) if container is not None else None
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _list(outputs: dict[str, Any], key: str) -> list[Any] | None:
    listed = outputs.get(key)
    return listed if isinstance(listed, list) else None

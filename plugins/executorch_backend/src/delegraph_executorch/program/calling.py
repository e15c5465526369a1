"""What the text of a method's container says of its delegates, beside the structure of the outputs."""

from __future__ import annotations

import json
from typing import Any

from .tables import ContainerMetadata


def delegate_outputs(container: ContainerMetadata | None) -> list[int] | None:
    """How many outputs each delegate of a method has; None if the file does not say."""
    listed = _stated(container, "delegate_outputs")
    return listed if all(type(n) is int and n >= 0 for n in listed or [None]) else None


def producers(container: ContainerMetadata | None) -> list[str]:
    """What made each delegate of a method, with its version; empty if the file does not say."""
    return [text for text in _stated(container, "producers") or [] if isinstance(text, str)]


def _stated(container: ContainerMetadata | None, key: str) -> list[Any] | None:
    try:
        content = json.loads(container.outputs) if container is not None else None
    except (ValueError, RecursionError):
        return None
    listed = content.get(key) if isinstance(content, dict) else None
    return listed if isinstance(listed, list) else None

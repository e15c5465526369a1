"""Offer ``why_not`` functions that keep nodes on the host, by ExecuTorch's names.

Such a function returns why a node stays on the host, or None. Unlike ExecuTorch's
classes, they record nothing: the partitioner's result and the report have all refusals.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch._ops import OpOverload

if TYPE_CHECKING:
    from torch.fx import Node


class DontPartition:
    """Keeps operators on the host: overloads, or names such as "aten.add.Tensor".

    ``exact=False``: a part of the name is enough, such as "add".
    """

    def __init__(self, *targets: OpOverload | str, exact: bool = True) -> None:
        self.targets = targets
        self.exact = exact

    def __call__(self, node: Node) -> str | None:
        """Return why ``node`` stays on the host, or None.

        The operator from which it was decomposed may also match.
        """
        names = [str(node.target)]
        original = node.meta.get("original_aten")
        if original is not None:
            names.append(str(original))
        return _reason(names, map(str, self.targets), self.exact, "operator")


class DontPartitionName:
    """Keeps nodes on the host by their names in the graph.

    ``exact=False``: a part of the name is enough.
    """

    def __init__(self, *names: str, exact: bool = True) -> None:
        self.names = names
        self.exact = exact

    def __call__(self, node: Node) -> str | None:
        """Return why ``node`` stays on the host, or None."""
        return _reason([node.name], self.names, self.exact, "name")


class DontPartitionModule:
    """Keeps the calls of a module on the host, by its class or its path in the model.

    ``module_name``: the class, such as "Linear", or in full
    "torch.nn.modules.linear.Linear". ``instance_name``: the path, such as
    "encoder.attention". Calls of modules inside of it stay on the host, too.
    ``exact=False``: a part of the name is enough.
    """

    def __init__(
        self,
        *,
        module_name: str | None = None,
        instance_name: str | None = None,
        exact: bool = True,
    ) -> None:
        self.module_name = module_name
        self.instance_name = instance_name
        self.exact = exact

    def __call__(self, node: Node) -> str | None:
        """Return why ``node`` stays on the host, or None."""
        # (path, class) of each module around the call
        stack = node.meta.get("nn_module_stack", {}).values()
        is_full_name = "." in (self.module_name or "")
        paths = []
        classes = []
        for path, cls in stack:
            paths.append(path)
            name = cls
            if not isinstance(cls, str):
                name = f"{cls.__module__}.{cls.__qualname__}"
            classes.append(name if is_full_name else name.rpartition(".")[2])
        by_class = _reason(classes, [self.module_name], self.exact, "module")
        by_path = _reason(paths, [self.instance_name], self.exact, "module")
        return by_class or by_path


def _reason(
    names: Sequence[str], wanted: Iterable[str | None], exact: bool, kind: str
) -> str | None:
    """Return why a node with these ``names`` stays on the host, or None.

    A name must be one of ``wanted``, or contain one unless ``exact``. None and "" in
    ``wanted`` are skipped. ``kind`` describes the names in the text.
    """
    for part in filter(None, wanted):
        for name in names:
            if name == part or (not exact and part in name):
                return f"{kind} {name} is to stay on the host"
    return None


def is_shape_dynamic(node: Node) -> bool:
    """Return whether a value of ``node`` has a dynamic size, or is one itself."""
    val = node.meta.get("val")
    values = val if isinstance(val, (list, tuple)) else [val]
    numbers: list[object] = []
    for value in values:
        numbers += getattr(value, "shape", (value,))
    return any(isinstance(number, torch.SymInt) for number in numbers)

"""Offer parts of support checks, by ExecuTorch's names.

They are ``why_not`` functions that keep nodes on the host. They record nothing: the
partitioner's result and the report have all refusals.
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

    Unless ``exact``, parts of names match.
    """

    def __init__(self, *targets: OpOverload | str, exact: bool = True) -> None:
        self.targets = targets
        self.exact = exact

    def __call__(self, node: Node) -> str | None:
        """Return why ``node`` stays on the host, or None.

        The operator that it was decomposed from counts, too.
        """
        names = [
            str(op)
            for op in (node.target, node.meta.get("original_aten"))
            if op is not None
        ]
        return _reason(names, map(str, self.targets), self.exact, "operator")


class DontPartitionName:
    """Keeps nodes on the host by their names in the graph.

    Unless ``exact``, parts of names match.
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
    "encoder.attention". Calls of modules inside of it count, too. Unless ``exact``,
    parts of names match.
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
        names = [
            kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
            for _, kind in stack
        ]
        # compared in full if the wanted class is given in full, else by the last part
        # of the name
        classes = (
            names
            if "." in (self.module_name or "")
            else [name.rpartition(".")[2] for name in names]
        )
        by_class = _reason(classes, [self.module_name], self.exact, "module")
        return by_class or _reason(
            [path for path, _ in stack], [self.instance_name], self.exact, "module"
        )


def _reason(
    names: Sequence[str], wanted: Iterable[str | None], exact: bool, kind: str
) -> str | None:
    """Return why a node with these ``names`` stays on the host, or None.

    Unless ``exact``, a name that contains a wanted one counts as well. None and "" in
    ``wanted`` are skipped. ``kind`` describes the names in the text.
    """
    for name in filter(None, wanted):
        match = next((n for n in names if n == name or (not exact and name in n)), None)
        if match is not None:
            return f"{kind} {match} is to stay on the host"
    return None


def is_shape_dynamic(node: Node) -> bool:
    """Return whether a value of ``node`` has a dynamic size, or is one itself."""
    val = node.meta.get("val")
    values = val if isinstance(val, (list, tuple)) else [val]
    # Sizes of tensors, and numbers themselves.
    sizes = (d for v in values for d in getattr(v, "shape", (v,)))
    return any(isinstance(d, torch.SymInt) for d in sizes)

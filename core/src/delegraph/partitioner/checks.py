"""Ready-made pieces of support checks (names as in ExecuTorch): ``why_not`` functions that keep nodes on the host.

They remember nothing: what was refused, and why, is in the partitioner's result and in the report.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

if TYPE_CHECKING:
    from torch.fx import Node


class DontPartition:
    """Keeps operators on the host: overloads, or names such as "aten.add.Tensor"; parts of names unless ``exact``."""

    def __init__(self, *targets: OpOverload | str, exact: bool = True) -> None:
        self.targets, self.exact = targets, exact

    def __call__(self, node: Node) -> str | None:
        names = [str(op) for op in (node.target, node.meta.get("original_aten")) if op is not None]
        return _reason(names, map(str, self.targets), self.exact, "operator")


class DontPartitionName:
    """Keeps nodes on the host by their names in the graph; by parts of them unless ``exact``."""

    def __init__(self, *names: str, exact: bool = True) -> None:
        self.names, self.exact = names, exact

    def __call__(self, node: Node) -> str | None:
        return _reason([node.name], self.names, self.exact, "name")


class DontPartitionModule:
    """Keeps what a module computes on the host, by its class or by its place in the model.

    ``module_name``: the class, as "Linear" or in full as "torch.nn.modules.linear.Linear". ``instance_name``: the
    place, as "encoder.attention". Modules inside belong to it. Parts of names do unless ``exact``.
    """

    def __init__(self, *, module_name: str | None = None, instance_name: str | None = None, exact: bool = True) -> None:
        self.module_name, self.instance_name, self.exact = module_name, instance_name, exact

    def __call__(self, node: Node) -> str | None:
        stack = [(path, _class_name(kind)) for path, kind in node.meta.get("nn_module_stack", {}).values()]
        classes = [kind if "." in (self.module_name or "") else kind.rpartition(".")[2] for _, kind in stack]
        by_class = _reason(classes, _given(self.module_name), self.exact, "module")
        return by_class or _reason([path for path, _ in stack], _given(self.instance_name), self.exact, "module")


def _class_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _given(name: str | None) -> list[str]:
    return [name] if name else []


def _reason(names: Iterable[str], wanted: Iterable[str], exact: bool, what: str) -> str | None:
    listed = list(names)
    for each in wanted:
        found = next((n for n in listed if n == each or (not exact and each in n)), None)
        if found is not None:
            return f"{what} {found} is to stay on the host"
    return None


def is_shape_dynamic(node: Node) -> bool:
    """Whether a value of ``node`` has a size that is known only at run time."""
    val = node.meta.get("val")
    values = val if isinstance(val, (list, tuple)) else [val]
    return any(isinstance(v, torch.SymInt) or not all(map(_is_static, getattr(v, "shape", ()))) for v in values)


def _is_static(dimension: Any) -> bool:
    return isinstance(dimension, int)

"""How precise quantized numbers are, and which part of a program a setting is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from delegraph.errors import OptionError
from torch.fx import Graph, Node

from .decomposed_operators import PART_OF

OBSERVERS = ("minmax", "histogram")


@dataclass(frozen=True)
class Precision:
    """The types of quantized numbers.

    ``activations``: torch.int8 (affine) or torch.int16 (symmetric; needs EXT-INT16).
    ``weight_bits``: 8, or 4, which weights are rounded to; they are symmetric, with a
    scale for each output channel if ``per_channel``. ``observer`` chooses the limits of
    activations: ``"histogram"`` takes those with the smallest squared error (int8
    only), ``"minmax"`` all that calibration showed. None is ``"histogram"`` for int8,
    which has wide steps, and ``"minmax"`` for int16.
    """

    activations: torch.dtype = torch.int8
    weight_bits: int = 8
    per_channel: bool = True
    observer: str | None = None

    def __post_init__(self) -> None:
        if self.activations not in (torch.int8, torch.int16):
            raise _wrong(
                f"activations are torch.int8 or torch.int16, not {self.activations}"
            )
        if self.weight_bits not in (4, 8):
            raise _wrong(f"weight_bits is 4 or 8, not {self.weight_bits}")
        if self.observer is None:
            default = "histogram" if self.activations is torch.int8 else "minmax"
            object.__setattr__(self, "observer", default)
        if self.observer not in OBSERVERS:
            raise _wrong(
                f"observer is one of {', '.join(OBSERVERS)}, not {self.observer!r}"
            )
        if self.observer == "histogram" and self.activations is torch.int16:
            raise _wrong(
                "observer='histogram' has too few bins for int16; use observer='minmax'"
            )


Setting = Precision | None
"""None leaves a part of the program in floats."""


@dataclass
class Settings:
    """Settings by scope.

    The most specific one holds: name of a module, its type, operator, all.
    """

    overall: Setting = field(default_factory=Precision)
    operators: dict[Any, Setting] = field(default_factory=dict)
    module_types: dict[str, Setting] = field(default_factory=dict)
    module_names: dict[str, Setting] = field(default_factory=dict)

    def of(self, node: Node, target: Any) -> Setting:
        """Return the setting of a call of ``target``.

        If the call is a part of a decomposed operator, the setting of that operator
        takes precedence over the one of ``target``.
        """
        modules = _modules(node)
        for path, _ in reversed(modules):
            if path in self.module_names:
                return self.module_names[path]
        for _, kind in reversed(modules):
            if kind in self.module_types:
                return self.module_types[kind]
        for operator in (node.meta.get(PART_OF), target):
            if operator in self.operators:
                return self.operators[operator]
        return self.overall

    def expect_names(self, graphs: Sequence[Graph]) -> None:
        """Raise OptionError for a module name without calls in the graphs."""
        known: set[str] = set()
        for graph in graphs:
            for node in graph.nodes:
                known.update([path for path, _ in _modules(node)])
        known.discard("")
        for name in self.module_names:
            if name not in known:
                near = get_close_matches(name, sorted(known), n=3, cutoff=0)
                raise _wrong(
                    f"no call of the program belongs to a module {name!r}; modules like"
                    f" it: {', '.join(near or ['none'])}"
                )


def _modules(node: Node) -> list[tuple[str, str]]:
    """Return name and type of the modules of a call, from the outermost."""
    stack = node.meta.get("nn_module_stack") or {}
    return [(_dotted(path), _name(kind)) for path, kind in stack.values()]


def _name(kind: Any) -> str:
    """Return ``torch.nn.modules.linear.Linear`` for torch's text or class."""
    if isinstance(kind, type):
        return f"{kind.__module__}.{kind.__qualname__}"
    return str(kind)


def type_name(kind: type[torch.nn.Module]) -> str:
    """Return how a module's class is called in ``nn_module_stack``."""
    if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
        raise _wrong(f"a module type is a class of modules, not {kind!r}")
    return _name(kind)


def _dotted(path: str) -> str:
    """Return ``block.0`` for ``L['self'].block.0`` and for ``block.0``."""
    return path.replace("L['self'].", "", 1)


def expect_setting(setting: Any) -> None:
    """Raise OptionError unless the argument is a setting."""
    if setting is not None and not isinstance(setting, Precision):
        raise _wrong(f"a setting is a Precision, or None for floats, not {setting!r}")


def expect_operator(target: Any, known: Callable[[Any], bool]) -> None:
    """Raise OptionError unless integers can compute ``target``."""
    if not isinstance(target, torch._ops.OpOverload):
        raise _wrong(
            f"an operator is one like torch.ops.aten.add.Tensor, not {target!r}"
        )
    if not known(target):
        raise _wrong(
            f"{target} is not computed in integers: it stays in floats with any setting"
        )


def _wrong(why: str) -> OptionError:
    return OptionError("option-invalid", f"TOSAQuantizer: {why}")

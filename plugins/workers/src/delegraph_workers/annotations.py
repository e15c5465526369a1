"""torchao's annotations of a graph in words of JSON, and annotations of those words.

Specs and observers are rows of one table, each once: torchao lets two uses of a tensor
share an observer if they have the same one. Observers go by name: torchao's own, and
those of a plugin that is installed here as well, so a message cannot name any class to
import.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from typing import Any

import torch
from delegraph.errors import FormatError, Unsupported
from torch.fx import Graph, Node
from torchao.quantization import pt2e
from torchao.quantization.pt2e import quantizer as torchao_quantizer
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

Derive = Callable[[Sequence[Any]], tuple[torch.Tensor, torch.Tensor]]
"""A spec's function from observers to scale and zero point."""
_SPECS = {
    name: getattr(torchao_quantizer, name)
    for name in (
        "QuantizationSpec",
        "FixedQParamsQuantizationSpec",
        "SharedQuantizationSpec",
        "DerivedQuantizationSpec",
    )
}
_OBSERVERS = {
    name: kind
    for name, kind in vars(pt2e).items()
    if isinstance(kind, type)
    and issubclass(kind, (pt2e.ObserverBase, pt2e.FakeQuantizeBase))
}
_CONSTANTS = {
    str(value): value
    for value in vars(torch).values()
    if isinstance(value, (torch.dtype, torch.qscheme))
}  # "torch.int8", "torch.per_tensor_affine"


def write_annotations(graph: Graph, keep: Callable[[Derive], int]) -> list[Any]:
    """The annotations of a graph: a table of specs and observers, and a row for each
    node that has an annotation.

    ``keep`` returns the number of a function that stays in this process. Raises
    Unsupported for what has no words.
    """
    words = _Words(keep)
    rows = [
        [
            node.name,
            words.of(
                {
                    f.name: getattr(annotation, f.name)
                    for f in dataclasses.fields(annotation)
                }
            ),
        ]
        for node in graph.nodes
        if (annotation := node.meta.get(Q_ANNOTATION_KEY)) is not None
    ]
    return [words.table, rows]


class _Words:
    """Values in words of JSON. ``table``: the words of specs and observers."""

    def __init__(self, keep: Callable[[Derive], int]) -> None:
        self.table = list[Any]()
        self._keep = keep
        # id -> number in the table, and the object, which keeps the id
        self._seen: dict[int, tuple[int, Any]] = {}

    def of(self, value: Any) -> Any:
        """A value: what JSON has as it is, anything else as ``{kind: words}``."""
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, (tuple, list)):
            return {type(value).__name__: [self.of(v) for v in value]}
        if isinstance(value, dict):
            return {"dict": [[self.of(k), self.of(v)] for k, v in value.items()]}
        if isinstance(value, Node):
            return {"node": value.name}
        if str(value) in _CONSTANTS:
            return {"torch": str(value)}
        if id(value) not in self._seen:
            self.table.append(self._row(value))
            self._seen[id(value)] = len(self.table) - 1, value
        return {"row": self._seen[id(value)][0]}

    def _row(self, value: Any) -> list[Any]:
        """The words of a spec, of an observer's class, of one with arguments, or of a
        function that stays here.
        """
        if type(value) in _SPECS.values():
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return ["spec", type(value).__name__, self.of(fields)]
        if isinstance(value, type):
            own = _OBSERVERS.get(value.__name__) is value
            name = value.__name__ if own else f"{value.__module__}:{value.__name__}"
            if _observer(name) is not value:
                raise _no_observer(name)
            return ["observer", name]
        partial = getattr(value, "p", value)  # torchao wraps what ``with_args`` makes
        if (
            isinstance(partial, functools.partial)
            and not partial.args
            and not getattr(value, "callable_args", None)
        ):
            return ["partial", self.of(partial.func), self.of(dict(partial.keywords))]
        if callable(value):
            return ["function", self._keep(value)]
        raise Unsupported(
            "unsupported",
            f"its quantizer's annotations have {value!r:.80}, which cannot be sent",
        )


def apply_annotations(graph: Graph, told: Any, derive: Callable[[int], Derive]) -> None:
    """Annotate a graph as ``write_annotations`` says.

    ``derive`` makes a function of the number of one that is kept.

    Raises FormatError for what no quantizer says.
    """
    try:
        table, rows = told
        by_name = {node.name: node for node in graph.nodes}
        made = list[Any]()
        for kind, *row in table:  # rows name earlier ones alone
            made.append(_object(kind, row, made, by_name, derive))
        for name, fields in rows:
            by_name[name].meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(
                **_value(fields, made, by_name)
            )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
        text = (
            "the annotations of a quantizer elsewhere are none:"
            f" {type(e).__name__}: {e}"
        )
        raise FormatError("format-invalid", text) from e


def _object(
    kind: str, row: list[Any], made: list[Any], nodes: Mapping[str, Node], derive: Any
) -> Any:
    if kind == "spec":
        return _SPECS[row[0]](**_value(row[1], made, nodes))
    if kind == "observer":
        return _observer(row[0])
    if kind == "partial":
        return _value(row[0], made, nodes).with_args(**_value(row[1], made, nodes))
    if kind == "function":
        return derive(int(row[0]))
    raise ValueError(f"a row {kind!r:.40}")


def _observer(name: str) -> type:
    """The class of a name: torchao's own, or ``"module:Name"`` of an installed plugin;
    Unsupported for others.
    """
    if ":" not in name:
        return _OBSERVERS[name]
    module, _, kind = name.partition(":")
    plugins = {
        point.module.partition(".")[0]
        for point in metadata.entry_points(group="delegraph")
    }
    if module.partition(".")[0] not in plugins:
        raise _no_observer(name)
    try:
        found = getattr(importlib.import_module(module), kind, None)
    except ImportError as e:  # another release of the plugin
        raise _no_observer(name) from e
    if not (
        isinstance(found, type)
        and issubclass(found, (pt2e.ObserverBase, pt2e.FakeQuantizeBase))
    ):
        raise _no_observer(name)
    return found


def _no_observer(name: str) -> Unsupported:
    text = (
        f"its quantizer uses the observer {name.replace(':', '.')}, and calibration"
        " runs here"
    )
    hint = (
        "torchao's own observers work across environments, and those of a plugin that"
        " is installed here as well"
    )
    return Unsupported("unsupported", text, hint=hint)


def _value(words: Any, made: list[Any], nodes: Mapping[str, Node]) -> Any:
    """The value that ``_Words.of`` has put into words."""
    if not isinstance(words, dict):
        return words
    ((kind, given),) = words.items()
    if kind == "row":
        return made[given]
    if kind == "node":
        return nodes[given]
    if kind == "torch":
        return _CONSTANTS[given]
    if kind == "float":
        return float.fromhex(given)
    if kind == "dict":
        return {_value(k, made, nodes): _value(v, made, nodes) for k, v in given}
    if kind in ("tuple", "list"):
        return (tuple if kind == "tuple" else list)(
            _value(v, made, nodes) for v in given
        )
    raise ValueError(f"a value {kind!r:.40}")

"""Write torchao's annotations of a graph as JSON, and read them.

Specs and observers are rows of one table, each once: in torchao, two uses of a tensor
share an observer if it is the same object. An observer is written by its name. It must
belong to torchao or to an installed plugin, so that a message cannot import any class.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
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
    """Return the annotations of a graph: a table of specs and observers, and a row for
    each annotated node.

    ``keep`` returns the number of a function that stays in this process. Raises
    Unsupported for a value that cannot be sent.
    """
    writer = _Writer(keep)
    rows = []
    for node in graph.nodes:
        annotation = node.meta.get(Q_ANNOTATION_KEY)
        if annotation is not None:
            rows.append([node.name, writer.write(_fields(annotation))])
    return [writer.table, rows]


def _fields(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name."""
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}


class _Writer:
    """Writes values as JSON. ``table``: the rows of specs and observers."""

    def __init__(self, keep: Callable[[Derive], int]) -> None:
        self.table = list[Any]()
        self._keep = keep
        # id -> number in the table, and the object, which keeps its id in use
        self._seen: dict[int, tuple[int, Any]] = {}

    def write(self, value: Any) -> Any:
        """Return a value as JSON; types that JSON lacks become ``{kind: content}``."""
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return {"float": value.hex()}
        if isinstance(value, (tuple, list)):
            return {type(value).__name__: [self.write(v) for v in value]}
        if isinstance(value, dict):
            return {"dict": [[self.write(k), self.write(v)] for k, v in value.items()]}
        if isinstance(value, Node):
            return {"node": value.name}
        if str(value) in _CONSTANTS:
            return {"torch": str(value)}
        if id(value) not in self._seen:
            self.table.append(self._row(value))
            self._seen[id(value)] = len(self.table) - 1, value
        return {"row": self._seen[id(value)][0]}

    def _row(self, value: Any) -> list[Any]:
        """Return the row of a spec, of an observer class, of a class with arguments, or
        of a function that stays in this process.
        """
        if type(value) in _SPECS.values():
            return ["spec", type(value).__name__, self.write(_fields(value))]
        if isinstance(value, type):
            name = value.__name__
            if _OBSERVERS.get(name) is not value:
                name = f"{value.__module__}:{name}"
            if _observer(name) is not value:
                raise _no_observer(name)
            return ["observer", name]
        # torchao wraps the partial object of ``with_args``
        partial = getattr(value, "p", value)
        # Positional arguments, and functions that make an argument for each call
        # (``with_callable_args``), cannot be written: the object then stays here.
        can_be_written = (
            isinstance(partial, functools.partial)
            and not partial.args
            and not getattr(value, "callable_args", None)
        )
        if can_be_written:
            keywords = dict(partial.keywords)
            return ["partial", self.write(partial.func), self.write(keywords)]
        if callable(value):
            return ["function", self._keep(value)]
        raise Unsupported(
            "unsupported",
            f"its quantizer's annotations have {value!r:.80}, which cannot be sent"
            " between environments",
        )


def apply_annotations(
    graph: Graph, received: Any, derive: Callable[[int], Derive]
) -> None:
    """Annotate a graph with the result of ``write_annotations``.

    ``derive`` returns the function with a number. Raises FormatError for an invalid
    message.
    """
    try:
        table, rows = received
        reader = _Reader(graph, derive)
        for kind, *row in table:  # a row refers to earlier rows only
            reader.table.append(reader.read_row(kind, row))
        for name, fields in rows:
            annotation = QuantizationAnnotation(**reader.read(fields))
            reader.nodes[name].meta[Q_ANNOTATION_KEY] = annotation
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as e:
        raise FormatError(
            "format-invalid",
            "the annotations from another environment are invalid:"
            f" {type(e).__name__}: {e}",
        ) from e


class _Reader:
    """Reads values of ``_Writer``. ``table``: the objects of earlier rows."""

    def __init__(self, graph: Graph, derive: Callable[[int], Derive]) -> None:
        self.nodes = {node.name: node for node in graph.nodes}
        self.table = list[Any]()
        self._derive = derive

    def read_row(self, kind: str, row: list[Any]) -> Any:
        """Return the object of a row."""
        if kind == "spec":
            return _SPECS[row[0]](**self.read(row[1]))
        if kind == "observer":
            return _observer(row[0])
        if kind == "partial":
            return self.read(row[0]).with_args(**self.read(row[1]))
        if kind == "function":
            return self._derive(int(row[0]))
        raise ValueError(f"a row {kind!r:.40}")

    def read(self, content: Any) -> Any:
        """Return a value that ``_Writer.write`` wrote."""
        if not isinstance(content, dict):
            return content
        ((kind, given),) = content.items()
        if kind == "row":
            return self.table[given]
        if kind == "node":
            return self.nodes[given]
        if kind == "torch":
            return _CONSTANTS[given]
        if kind == "float":
            return float.fromhex(given)
        if kind == "dict":
            return {self.read(key): self.read(value) for key, value in given}
        if kind == "tuple":
            return tuple(self.read(value) for value in given)
        if kind == "list":
            return [self.read(value) for value in given]
        raise ValueError(f"a value {kind!r:.40}")


def _observer(name: str) -> type:
    """Return the class of a name: torchao's own, or ``"module:Name"`` of a plugin.

    Raises Unsupported for other classes.
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
    if isinstance(found, type) and issubclass(
        found, (pt2e.ObserverBase, pt2e.FakeQuantizeBase)
    ):
        return found
    raise _no_observer(name)


def _no_observer(name: str) -> Unsupported:
    return Unsupported(
        "unsupported",
        f"its quantizer uses the observer {name.replace(':', '.')}, but calibration"
        " runs in this environment, which lacks it",
        hint="use observers of torchao, or of a plugin that is also installed here",
    )

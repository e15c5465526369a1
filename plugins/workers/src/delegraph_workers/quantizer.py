"""Represent quantizers of other environments by torchao quantizers that call them.

``Quantizer_NAME`` is made on first use. This environment needs torchao, too:
calibration runs here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from .annotations import apply_annotations
from .environments import environment
from .forms import read, write
from .modules import apply_changes, program_of, tracer_names
from .plugin import described, identifier
from .tensors import read_values, write_values


def __getattr__(attribute: str) -> Any:
    """Return the classes that ``plugin`` declares."""
    for name in described():
        if attribute == f"Quantizer_{identifier(name)}":
            return _quantizer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


@cache
def _quantizer(name: str) -> type[Quantizer]:
    """Return the class that calls the quantizer of backend ``name``."""
    body = {"name": name, "__module__": __name__}
    return type(f"Quantizer_{identifier(name)}", (RemoteQuantizer,), body)


class _Annotated(NamedTuple):
    """A model, its annotations, and the process that has their functions."""

    model: GraphModule
    annotations: Any
    process: int


class RemoteQuantizer(Quantizer):  # type: ignore[misc]
    """Annotates as the quantizer of another environment with default settings."""

    name: str

    def __init__(self) -> None:
        self._annotated: _Annotated | None = None

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Change the model as the other quantizer does, which also annotates it."""
        self._annotated = self._annotations_of(model, transform=True)
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        """Annotate the model, if ``transform_for_annotation`` did not annotate it."""
        annotated = self._annotated
        self._annotated = None
        if annotated is None or annotated.model is not model:
            annotated = self._annotations_of(model, transform=False)
        process = annotated.process

        def derive(number: int) -> _RemoteFunction:
            return _RemoteFunction(self.name, number, process)

        apply_annotations(model.graph, annotated.annotations, derive)
        return model

    def validate(self, model: GraphModule) -> None:
        """Do nothing: the other quantizer has validated its annotations."""

    def _annotations_of(self, model: GraphModule, transform: bool) -> _Annotated:
        """Return the annotations of a model by the other quantizer.

        With ``transform``, the other quantizer may change the model first. The changes
        are applied to ``model``.
        """
        form = write(program_of(model))
        header = {
            "do": "quantize",
            "transform": transform,
            "names": tracer_names(model),
        }
        answer = environment(self.name).run_with_program(header, form)
        if answer.parts:
            program, *constants = answer.parts
            digests = map(bytes.fromhex, answer.content["inline"])
            new = dict(zip(digests, constants, strict=True))
            sent = {memory.digest: memory for memory in form.memories}

            def fetch(digest: bytes, size: int) -> bytearray:
                if digest in new:
                    return bytearray(new[digest])
                return bytearray(b"".join(sent[digest].pieces()))

            changed = read(program, fetch, named=True)
            apply_changes(model, changed.graph_module)
        return _Annotated(model, answer.content["annotations"], answer.process)


class _RemoteFunction:
    """A function in the other environment: from observers to scale and zero point.

    It is the ``derive_qparams_fn`` of a spec there. Only the observers' scales and zero
    points are sent.
    """

    def __init__(self, name: str, number: int, process: int) -> None:
        self._name = name
        self._number = number
        self._process = process
        environment(name).release_after(self, process, number)

    def __call__(self, observers: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        values: list[Any] = []
        for observer in observers:
            values += observer.calculate_qparams()
        rows, parts = write_values(values)
        header = {
            "do": "derive",
            "number": self._number,
            "process": self._process,
            "values": rows,
        }
        answer = environment(self._name).run(header, parts)
        scale, zero_point = read_values(answer.content["values"], answer.parts)
        return scale, zero_point

    def __deepcopy__(self, memo: Any) -> _RemoteFunction:
        return self

"""Quantizers of backends in environments of their own: torchao's, which ask there how a
graph is to be annotated.

``Quantizer_NAME`` is made when it is asked for. torchao is needed here as well:
calibration runs here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch.fx import GraphModule
from torchao.quantization.pt2e.quantizer import Quantizer

from .annotations import apply_annotations
from .environments import environment
from .forms import read, write
from .modules import follow, program_of, tracer_names
from .plugin import described, identifier
from .tensors import read_values, write_values


def __getattr__(attribute: str) -> Any:
    """The classes that ``plugin`` declares."""
    for name in described():
        if attribute == f"Quantizer_{identifier(name)}":
            return _quantizer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")


@cache
def _quantizer(name: str) -> type[Quantizer]:
    body = {"name": name, "__module__": __name__}
    return type(f"Quantizer_{identifier(name)}", (RemoteQuantizer,), body)


class RemoteQuantizer(Quantizer):  # type: ignore[misc]
    """Annotates as the quantizer of another environment does, with its settings as it
    is made.
    """

    name: str

    def __init__(self) -> None:
        # module, its annotations, and the process that knows
        self._asked: tuple[GraphModule, Any, int] | None = None

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Change the model as the other quantizer does, which annotates it at once."""
        self._asked = self._ask(model, True)
        return model

    def annotate(self, model: GraphModule) -> GraphModule:
        asked = self._asked
        self._asked = None
        if asked is None or asked[0] is not model:
            asked = self._ask(model, False)
        _, told, process = asked
        apply_annotations(
            model.graph, told, lambda number: _Derived(self.name, number, process)
        )
        return model

    def validate(self, model: GraphModule) -> None:
        """Nothing: the other quantizer has validated what it annotated."""

    def _ask(self, model: GraphModule, transform: bool) -> tuple[GraphModule, Any, int]:
        there = environment(self.name)
        form = write(program_of(model))
        header = {
            "do": "quantize",
            "transform": transform,
            "names": tracer_names(model),
        }
        told, parts, process = there.show(header, form)
        if parts:
            sent = {memory.digest: memory for memory in form.memories}
            made = dict(zip(map(bytes.fromhex, told["inline"]), parts[1:], strict=True))

            def fetch(digest: bytes, size: int) -> bytearray:
                return bytearray(
                    made[digest] if digest in made else b"".join(sent[digest].pieces())
                )

            follow(model, read(parts[0], fetch, named=True).graph_module)
        return model, told["annotations"], process


class _Derived:
    """A function of the other quantizer, from observers to scale and zero point.

    It is called there.
    """

    def __init__(self, name: str, number: int, process: int) -> None:
        self._name = name
        self._number = number
        self._process = process
        environment(name).keep_for(self, process, number)

    def __call__(self, observers: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        rows, parts = write_values(
            [value for each in observers for value in each.calculate_qparams()]
        )
        header = {
            "do": "derive",
            "number": self._number,
            "process": self._process,
            "values": rows,
        }
        told, data, _ = environment(self._name).run(header, parts)
        scale, zero_point = read_values(told["values"], data)
        return scale, zero_point

    def __deepcopy__(self, memo: Any) -> _Derived:
        return self

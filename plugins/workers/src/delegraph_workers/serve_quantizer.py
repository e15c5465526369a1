"""Annotate graphs and derive scales with a backend's quantizer, as services of
``serve``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import delegraph
from delegraph.errors import ContractViolation, Unsupported

from .constants import fetch_from
from .forms import INLINE, read, write
from .kept import keep, kept
from .message import Answer
from .tensors import read_values, write_values


def quantize(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Annotate a program with the backend's quantizer; return the annotations.

    If the quantizer changes the program, the parts of the answer are the new program and
    its new large constants. The header of the answer has their digests as "inline".
    """
    from torchao.quantization.pt2e.quantizer import Quantizer
    from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

    from .annotations import write_annotations
    from .modules import program_of

    # the import of a backend may register operators that the program calls
    delegraph.get_backend(header["backend"])
    kind = delegraph.default_registry().get_quantizer(header["backend"])
    quantizer = kind()
    if not isinstance(quantizer, Quantizer):
        raise ContractViolation(
            "contract-violation", f"{kind.__name__} is no Quantizer of torchao"
        )
    callback = type(quantizer).prepare_obs_or_fq_callback
    if callback is not Quantizer.prepare_obs_or_fq_callback:
        raise Unsupported(
            "unsupported",
            f"{kind.__name__} changes observers while torchao prepares the model, but"
            " the observers are in another process",
            hint="quantize in the environment of the backend",
        )
    program = read(parts[0], fetch_from(header["folder"], {}), named=True)
    module: Any = program.graph_module
    module.train(False)
    for node in module.graph.nodes:
        if node.name in header["names"]:
            node.meta["torch_fn"] = tuple(header["names"][node.name])
    before = write(program_of(module))
    if header["transform"]:
        module = quantizer.transform_for_annotation(module)
    quantizer.annotate(module)
    quantizer.validate(module)

    # functions of specs stay in this process, and are called when scales are known
    content: dict[str, Any] = {"annotations": write_annotations(module.graph, keep)}
    for node in module.graph.nodes:
        # forms cannot express annotations
        node.meta.pop(Q_ANNOTATION_KEY, None)
    after = write(program_of(module))
    if after.key == before.key and after.labels == before.labels:
        return content, []

    # the other process has the large constants of the original program
    new = {m.digest: m for m in after.memories if m.size >= INLINE}
    for memory in before.memories:
        new.pop(memory.digest, None)
    content["inline"] = [digest.hex() for digest in new]
    changed = [b"".join(after.pieces())]
    changed += [b"".join(memory.pieces()) for memory in new.values()]
    return content, changed


class _Observed:
    """Replaces an observer of the other process: it has scale and zero point."""

    def __init__(self, scale: Any, zero_point: Any) -> None:
        self._parameters = scale, zero_point

    def calculate_qparams(self) -> Any:
        return self._parameters


def derive(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Return the scale and zero point of a tensor, derived from those of others."""
    function = kept(header["number"], header["process"])
    values = read_values(header["values"], parts)
    observers = [
        _Observed(*pair) for pair in zip(values[::2], values[1::2], strict=True)
    ]
    rows, data = write_values(function(observers))
    return {"values": rows}, data

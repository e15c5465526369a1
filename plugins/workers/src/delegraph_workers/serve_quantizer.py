"""What a worker of a backend's own environment does for its quantizer: it annotates,
and derives scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import delegraph
from delegraph.errors import ContractViolation, Unsupported

from .constants import INLINE, fetch_from
from .forms import read, write
from .kept import keep, kept
from .tensors import read_values, write_values

Answer = tuple[dict[str, Any], list[bytes]]


def quantize(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """The annotations of the backend's quantizer; and the program, if the quantizer
    changed it.
    """
    from torchao.quantization.pt2e.quantizer import Quantizer
    from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

    from .annotations import write_annotations
    from .modules import program_of

    # which may register operators that the program calls
    delegraph.get_backend(header["backend"])
    kind = delegraph.default_registry().get_quantizer(header["backend"])
    who = kind()
    if not isinstance(who, Quantizer):
        raise ContractViolation(
            "contract-violation", f"{kind.__name__} is no Quantizer of torchao"
        )
    if type(who).prepare_obs_or_fq_callback is not Quantizer.prepare_obs_or_fq_callback:
        text = (
            f"{kind.__name__} changes observers while torchao prepares the model, and"
            " they are in another process"
        )
        raise Unsupported("unsupported", text, hint="quantize in its own environment")
    module: Any = read(
        parts[0], fetch_from(header["folder"], {}), named=True
    ).graph_module
    module.train(False)
    for node in module.graph.nodes:
        if node.name in header["names"]:
            node.meta["torch_fn"] = tuple(header["names"][node.name])
    before = write(program_of(module))
    if header["transform"]:
        module = who.transform_for_annotation(module)
    who.annotate(module)
    who.validate(module)

    # functions of specs stay here, and are called when scales are known
    told = {"annotations": write_annotations(module.graph, keep)}
    for node in module.graph.nodes:
        # no part of the program, and a form has no words for it
        node.meta.pop(Q_ANNOTATION_KEY, None)
    after = write(program_of(module))
    if (after.key, after.beside) == (before.key, before.beside):
        return told, []
    new = {m.digest: m for m in after.memories if m.size >= INLINE}
    for memory in before.memories:
        new.pop(memory.digest, None)
    whole = [
        b"".join(after.pieces()),
        *(b"".join(memory.pieces()) for memory in new.values()),
    ]
    return {**told, "inline": [digest.hex() for digest in new]}, whole


class _Observed:
    """Stands for an observer that is in the process that asks: what its tensor's scale
    and zero point are.
    """

    def __init__(self, scale: Any, zero_point: Any) -> None:
        self._parameters = scale, zero_point

    def calculate_qparams(self) -> Any:
        return self._parameters


def derive(header: Mapping[str, Any], parts: Sequence[memoryview]) -> Answer:
    """Scale and zero point of a tensor that follow from those of others."""
    function = kept(header["number"], header["process"])
    values = read_values(header["values"], parts)
    observers = [
        _Observed(*pair) for pair in zip(values[::2], values[1::2], strict=True)
    ]
    rows, data = write_values(function(observers))
    return {"values": rows}, data

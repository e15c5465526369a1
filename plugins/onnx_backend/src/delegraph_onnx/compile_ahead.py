"""Compile models ahead for an execution provider, such as Qualcomm's.

The result is an ONNX model. Each part that the provider compiled is one node of it,
``EPContext``, with the provider's own code. Other nodes run on the CPU. If a provider
cannot store its code, the model stays as it is, and the provider compiles it at load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import onnx
import onnxruntime as ort
from delegraph.errors import FormatError, Unsupported

from .exporter import Draft
from .providers import CPU, make_options
from .session import make_session, reason_of
from .settings import Settings

CONTEXT = "EPContext"
IR_VERSION = 10
"""The version of the format in all models; ``torch.onnx.export`` has the same."""
RECORD = "session.record_ep_graph_assignment_info"
"""A session option: record which provider runs each node."""


class Compiled(NamedTuple):
    """A model for an execution provider."""

    content: bytes
    contexts: int
    """The number of parts that were compiled ahead; 0: the provider compiles at load."""
    on_cpu: Mapping[str, int]
    """Operators that the provider did not take -> how many there are."""


def compile_ahead(draft: Draft, settings: Settings) -> Compiled:
    """Compile a model for the provider of ``settings``.

    Raises Unsupported if the provider takes no operator, and ``draft.failure`` if the
    provider fails.
    """
    content = draft.content()
    options = make_options(settings)
    try:
        compiler = ort.ModelCompiler(
            options, content, embed_compiled_data_into_model=True
        )
        compiled = compiler.compile_to_bytes()
    except Exception as error:  # ONNX Runtime's errors have no common class
        raise draft.failure(reason_of(error)) from error
    model = onnx.ModelProto.FromString(compiled)
    contexts = [node for node in model.graph.node if node.op_type == CONTEXT]
    if contexts:
        names = [node.op_type for node in model.graph.node]
        on_cpu = Counter(name for name in names if name != CONTEXT)
        portable = _portable(model)
        if on_cpu:
            # a provider may write parts that it cannot load together with others
            _load(draft, portable, settings)
        return Compiled(portable, len(contexts), on_cpu)
    return Compiled(content, 0, _operators_on_cpu(draft, content, settings))


def _portable(model: onnx.ModelProto) -> bytes:
    """Return a compiled model that older readers accept as well.

    ONNX Runtime writes the newest version of the format, and all operator sets that it
    knows. A compiled model has no branches or loops: the plugin refuses them here.
    """
    used = {node.domain for node in model.graph.node}
    kept = [opset for opset in model.opset_import if opset.domain in {*used, ""}]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    model.ir_version = IR_VERSION
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def _operators_on_cpu(draft: Draft, content: bytes, settings: Settings) -> Counter[str]:
    """Return how often each operator is left to the CPU.

    Raises Unsupported if the provider takes no operator.
    """
    recording = settings._replace(session={**settings.session, RECORD: "1"})
    session = _load(draft, content, recording)
    on_cpu = list[str]()
    is_taken = False
    for part in session.get_provider_graph_assignment_info():
        if part.ep_name == CPU:
            on_cpu += [node.op_type for node in part.get_nodes()]
        else:
            is_taken = True
    if not is_taken:
        text = f"the execution provider {settings.ep} takes no operator"
        raise Unsupported("unsupported", text)
    return Counter(on_cpu)


def _load(draft: Draft, content: bytes, settings: Settings) -> ort.InferenceSession:
    """Return a session of a model. Raises as ``compile_ahead`` if it does not load."""
    try:
        return make_session(content, settings, {})
    except FormatError as error:
        raise draft.failure(error.message) from error

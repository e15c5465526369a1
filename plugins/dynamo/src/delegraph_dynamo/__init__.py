"""``torch.compile(model, backend="delegraph")``: lowers the graphs that Dynamo finds.

The entry point ``delegraph`` in torch's group ``torch_dynamo_backends`` names
``compile_graph``.
"""

from __future__ import annotations

from .backend import compile_graph
from .graph import CompiledGraph

__all__ = ["CompiledGraph", "compile_graph"]
